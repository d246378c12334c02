"""Small networks of the families that can be registered, with first weights and a tokenizer of words.

Nothing is downloaded: a network has the classes and the files of a pretrained one, and has learned nothing.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from indb_tensile.learning.models.artifacts import pack
from indb_tensile.learning.networks.registered_network import NetworkSizes, RegisteredNetwork, network_digest

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def sizes_of(
    family: str, *, vocabulary: int, width: int = 16, layers: int = 2, heads: int = 2, positions: int = 40
) -> NetworkSizes:
    """Return the sizes of a network; the layers behind attention are twice as wide."""
    names: Mapping[str, Any] = {
        "distilbert": {"dim": width, "n_layers": layers, "n_heads": heads, "hidden_dim": 2 * width},
        "gpt2": {"n_embd": width, "n_layer": layers, "n_head": heads, "n_inner": 2 * width, "n_positions": positions},
    }.get(
        family,
        {
            "hidden_size": width,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "intermediate_size": 2 * width,
        },
    )
    known: dict[str, Any] = {
        "model_type": family,
        "vocab_size": vocabulary,
        "max_position_embeddings": positions,
        "pad_token_id": 0,
    }
    return NetworkSizes.of_config({**known, **names})


def words_tokenizer(words: Sequence[str]) -> str:
    """Return a tokenizer.json of whole words, between the tokens of a text's begin and end."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    vocabulary = {word: number for number, word in enumerate((*SPECIAL, *words))}
    tokenizer = Tokenizer(models.WordLevel(vocab=vocabulary, unk_token=SPECIAL[1]))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    text: str = tokenizer.to_str()
    return text


def tiny_network(family: str, words: Sequence[str], seed: int = 0, name: str = "", **sizes: int) -> RegisteredNetwork:
    """Return a network with weights drawn from `seed`."""
    own = sizes_of(family, vocabulary=len(SPECIAL) + len(words), **sizes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        weights = pack(own.encoder().state_dict(), {})
    return of_parts(name or family, own, words_tokenizer(words), weights)


def of_parts(name: str, sizes: NetworkSizes, tokenizer: str, weights: bytes) -> RegisteredNetwork:
    """Return the network of these parts, with its digest."""
    digest = network_digest(sizes, tokenizer, hashlib.sha256(weights).hexdigest())
    return RegisteredNetwork(name=name, digest=digest, sizes=sizes, tokenizer_text=tokenizer, weights=weights)


def write_directory(network: RegisteredNetwork, directory: Path) -> Path:
    """Write the network as save_pretrained does, and return the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    config = network.sizes.values | {"model_type": network.sizes.family}
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "tokenizer.json").write_text(network.tokenizer_text)
    (directory / "model.safetensors").write_bytes(network.weights)
    return directory
