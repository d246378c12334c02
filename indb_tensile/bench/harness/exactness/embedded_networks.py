"""The networks for tables as kinds of `bench exact`: small ones, each with one of the embeddings of numbers.

Texts are read by one kind for each way to turn tokens into a vector, and so are images.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from indb_tensile.job import Task
from indb_tensile.learning.encoding.narrow_rows import NarrowForm
from indb_tensile.learning.networks.architectures import build
from indb_tensile.learning.networks.cut_texts import CutColumn
from indb_tensile.learning.networks.row_embeddings import fit_embeddings
from indb_tensile.request.network_rules import IMAGE_ENCODERS, TEXT_ENCODERS

NUMBERS, OTHERS = 5, 2
CATEGORIES = (4, 30)
# By the name of the kind: the architecture with the embedding and the sizes that it differs in.
_DECLARED: dict[str, dict[str, Any]] = {
    "tabm": {"members": 3, "hidden": [16, 12], "number_embedding": "piecewise", "bins": 6},
    "residual_mlp": {"width": 16, "number_embedding": "periodic", "frequencies": 5},
    "ft_transformer": {"embedding_width": 8, "heads": 2, "blocks": 1, "number_embedding": "linear"},
    "dcn": {"hidden": [12], "number_embedding": "none"},
    "wide_and_deep": {"hidden": [12, 8], "number_embedding": "piecewise", "activation": "silu"},
}

IMAGES = ((1, 8, 10), (3, 9, 8))  # of two columns: channels, height, width
_PIXELS = sum(math.prod(shape) for shape in IMAGES)
VOCABULARIES, LENGTHS = (40, 9), (12, 5)  # of two columns of texts
_NARROW = NarrowForm(numbers=NUMBERS + OTHERS + len(CATEGORIES), tokens=sum(LENGTHS))
_SHORT = 7  # tokens of the longer column in a batch of short texts


def builders(outputs: int) -> dict[str, Callable[[], nn.Module]]:
    """Return a builder for each network for tables, whose weights are drawn from torch's generator."""
    return {kind: partial(_network, kind, outputs) for kind in _DECLARED}


def encoded_rows(rows: int) -> torch.Tensor:
    """Draw encoded rows: numbers, other values, and numbers of categories."""
    codes = [torch.randint(size, (rows, 1)).float() for size in CATEGORIES]
    return torch.cat([torch.randn(rows, NUMBERS + OTHERS), *codes], dim=1)


def text_builders(outputs: int) -> dict[str, Callable[[], nn.Module]]:
    """Return a builder for each encoder of texts, whose network also reads numbers and categories."""
    return {f"text_{encoder}": partial(_text_network, encoder, outputs) for encoder in TEXT_ENCODERS}


def encoded_texts(rows: int) -> torch.Tensor:
    """Draw encoded rows with the tokens of texts of several lengths, of which the first ones are empty."""
    tokens = []
    for size, length in zip(VOCABULARIES, LENGTHS, strict=True):
        read = torch.arange(length) < (torch.arange(rows) % (length + 1))[:, None]
        tokens.append(torch.randint(1, size, (rows, length)) * read)
    return torch.cat([encoded_rows(rows), *tokens], dim=1)


def narrow_texts(rows: int) -> torch.Tensor:
    """Draw the same rows as a training on texts stores and uploads them (learning/encoding/narrow_rows.py)."""
    return torch.from_numpy(_NARROW.pack(encoded_texts(rows).numpy()))


def short_texts(rows: int) -> torch.Tensor:
    """Draw the same narrow rows cut as those of a batch of short texts are (learning/networks/cut_texts.py)."""
    begin = _NARROW.width - _NARROW.tokens
    return CutColumn(begin=begin, end=begin + LENGTHS[0]).cut(narrow_texts(rows), _SHORT)


def towers() -> nn.Module:
    """Build two towers for rows of `encoded_texts`, each of which reads numbers, a category and a text."""
    text = NUMBERS + OTHERS + len(CATEGORIES) + LENGTHS[0]
    ranges = [3, NUMBERS, NUMBERS + 1, NUMBERS + OTHERS, text - LENGTHS[0] - 1, text - LENGTHS[0], text]
    layout: dict[str, Any] = {"numbers": NUMBERS, "categories": list(CATEGORIES)}
    layout |= {
        "vocabularies": list(VOCABULARIES),
        "lengths": list(LENGTHS),
        "item_ranges": [*ranges, text + LENGTHS[1]],
    }
    sizes = {"hidden": [12], "width": 6, "text_width": 8, "embedding_width": 5, "bins": 6}
    declared = {"type": "two_towers", "text_encoder": "convolution", **sizes, **layout}
    return build(declared, (text + LENGTHS[1],), 12, task=Task.PAIRS, seed=int(torch.randint(1 << 30, ())))


def item_targets(rows: int) -> torch.Tensor:
    """Draw numbers of items, of which some are equal, and logarithms of frequencies."""
    return torch.stack([torch.randint(3, (rows,)).float(), -5 * torch.rand(rows)], dim=1)


def pretrained_builders(outputs: int) -> dict[str, Callable[[], nn.Module]]:
    """Return a builder for each part of a registered network that can learn, on texts beside numbers.

    They need the package's extra `pretrained`.
    """
    cases = (("head", "bert"), ("lora", "gpt2"), ("all", "distilbert"))
    return {f"pretrained_{part}": partial(_pretrained_network, part, family, outputs) for part, family in cases}


def _pretrained_network(part: str, family: str, outputs: int) -> nn.Module:
    # Imported here because most benchmarks need no registered network.
    from indb_tensile.bench.harness.networks.tiny_networks import SPECIAL, tiny_network

    seed = int(torch.randint(1 << 30, ()))
    words = [f"w{number}" for number in range(max(VOCABULARIES) - len(SPECIAL) - 1)]
    network = tiny_network(family, words, seed=seed, positions=16)
    layout: dict[str, Any] = {"numbers": NUMBERS, "categories": list(CATEGORIES)}
    layout |= {"vocabularies": [network.tokenizer.size] * len(LENGTHS), "lengths": list(LENGTHS)}
    width = NUMBERS + OTHERS + len(CATEGORIES) + sum(LENGTHS)
    declared = {"type": "pretrained", "from": network.name, "train": part, "hidden": [12]}
    module = build({**declared, **layout}, (width,), outputs, seed=seed, network=network)
    fit_embeddings(module, encoded_texts(40))
    return module


def image_builders(outputs: int) -> dict[str, Callable[[], nn.Module]]:
    """Return a builder for each encoder of images, whose network also reads numbers and categories."""
    return {f"image_{encoder}": partial(_image_network, encoder, outputs) for encoder in IMAGE_ENCODERS}


def encoded_images(rows: int) -> torch.Tensor:
    """Draw encoded rows with the pixels of two columns of images."""
    return torch.cat([encoded_rows(rows), torch.randn(rows, _PIXELS)], dim=1)


def picture_builders(outputs: int) -> dict[str, Callable[[], nn.Module]]:
    """Return a builder for each network of a single image."""
    declared: dict[str, dict[str, Any]] = {
        "resnet": {"stages": [1, 2], "width": 6, "dropout": 0.1},
        "vit": {"patch": 4, "width": 8, "heads": 2, "blocks": 1, "dropout": 0.1},
    }
    return {kind: partial(_picture_network, {"type": kind, **own}, outputs) for kind, own in declared.items()}


def _picture_network(declared: dict[str, Any], outputs: int) -> nn.Module:
    return build(declared, (3, 12, 12), outputs, seed=int(torch.randint(1 << 30, ())))


def _image_network(encoder: str, outputs: int) -> nn.Module:
    sizes: dict[str, Any] = {"hidden": [12], "image_encoder": encoder, "image_width": 8}
    if encoder == "vit":
        sizes |= {"image_heads": 2}
    layout = {"numbers": NUMBERS, "categories": list(CATEGORIES), "images": [size for own in IMAGES for size in own]}
    width = NUMBERS + OTHERS + len(CATEGORIES) + _PIXELS
    seed = int(torch.randint(1 << 30, ()))
    return build({"type": "wide_and_deep", **sizes, **layout}, (width,), outputs, seed=seed)


def _text_network(encoder: str, outputs: int) -> nn.Module:
    sizes: dict[str, Any] = {"hidden": [12], "text_encoder": encoder, "text_width": 8}
    if encoder == "transformer":
        sizes |= {"text_heads": 2, "text_blocks": 1}
    layout: dict[str, Any] = {"numbers": NUMBERS, "categories": list(CATEGORIES)}
    layout |= {"vocabularies": list(VOCABULARIES), "lengths": list(LENGTHS)}
    width = NUMBERS + OTHERS + len(CATEGORIES) + sum(LENGTHS)
    seed = int(torch.randint(1 << 30, ()))
    return build({"type": "wide_and_deep", **sizes, **layout}, (width,), outputs, seed=seed)


def _network(kind: str, outputs: int) -> nn.Module:
    layout = {"numbers": NUMBERS, "categories": list(CATEGORIES)}
    width = NUMBERS + OTHERS + len(CATEGORIES)
    seed = int(torch.randint(1 << 30, ()))
    module = build({"type": kind, **_DECLARED[kind], **layout}, (width,), outputs, seed=seed)
    fit_embeddings(module, encoded_rows(50))
    return module
