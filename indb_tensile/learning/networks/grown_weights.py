"""Copies the weights of a version into a network that has more inputs or more classes than the version.

A network grows where a table has got more columns or its target more classes. The weights of the columns and classes
that the version knows are copied to their new places, which follow from names. Those of the others keep the values
that the network was built with.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from indb_tensile.learning.encoding.preprocessor import Preprocessor
from indb_tensile.learning.networks.pretrained_vectors import PretrainedVectors
from indb_tensile.learning.networks.row_embeddings import RowEmbedding, TokenEmbedding
from indb_tensile.learning.networks.table_networks import CrossNetwork

_Keys = Sequence[object]


@dataclass(frozen=True, slots=True, kw_only=True)
class GrownDimension:
    """A dimension that grows from `old_size` to `size`. `places` are those of the old entries among the new ones."""

    size: int
    old_size: int
    places: tuple[int, ...]

    @classmethod
    def of(cls, keys: _Keys, old_keys: _Keys) -> "GrownDimension | None":
        """Return how entries with the old keys are found among those with the new ones; None if nothing is added.

        An old key that the new ones lack gives None too: then the shapes differ, and the caller refuses them.
        """
        place_of = {key: place for place, key in enumerate(keys)}
        if len(keys) <= len(old_keys) or any(key not in place_of for key in old_keys):
            return None
        return cls(size=len(keys), old_size=len(old_keys), places=tuple(place_of[key] for key in old_keys))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Growth:
    """What a network has more than that of a version: `dimensions` that grow, and whole tensors that are new."""

    dimensions: tuple[GrownDimension, ...] = ()
    new_tensors: frozenset[str] = frozenset()

    @classmethod
    def between(
        cls, module: nn.Module, preprocessor: Preprocessor, old_module: nn.Module, old_preprocessor: Preprocessor
    ) -> "Growth":
        """Return what the network has more than the old one. The preprocessors say what inputs and outputs mean."""
        grown = [
            GrownDimension.of(preprocessor.target.labels, old_preprocessor.target.labels),
            GrownDimension.of(preprocessor.outputs, old_preprocessor.outputs),
        ]
        prefix, embedding = _embedding(module)
        old_embedding = _embedding(old_module)[1]
        new_tensors: set[str] = set()
        if embedding is not None and old_embedding is not None:
            pairs = zip(
                _grown_keys(module, embedding, preprocessor),
                _grown_keys(old_module, old_embedding, old_preprocessor),
                strict=True,
            )
            grown += [GrownDimension.of(keys, old_keys) for keys, old_keys in pairs]
            names, before = embedding.state_dict(), old_embedding.state_dict()
            new_tensors = {f"{prefix}.{name}" for name in names.keys() - before.keys()}
        return cls(dimensions=tuple(own for own in grown if own is not None), new_tensors=frozenset(new_tensors))

    def places(self, shape: torch.Size, old_shape: torch.Size) -> list[Sequence[int]] | None:
        """Return where the entries of a tensor of the version go, by dimension; None if the shapes do not fit.

        Two dimensions that grow by the same sizes but to other places do not say where an entry goes: None as well.
        """
        if len(shape) != len(old_shape):
            return None
        places: list[Sequence[int]] = []
        for size, old_size in zip(shape, old_shape, strict=True):
            fitting = {own.places for own in self.dimensions if (own.size, own.old_size) == (size, old_size)}
            if size == old_size:
                places.append(range(size))
            elif len(fitting) == 1:
                places += fitting
            else:
                return None
        return places


def copy_to(tensor: Tensor, places: Sequence[Sequence[int]], old: Tensor) -> None:
    """Copy a tensor of the version to its places in one of the network."""
    if tensor.shape == old.shape:
        tensor.copy_(old)
    else:
        tensor[np.ix_(*places)] = old.to(tensor.dtype)


def _embedding(module: nn.Module) -> tuple[str, RowEmbedding | TokenEmbedding | None]:
    for name, part in module.named_modules():
        if isinstance(part, RowEmbedding | TokenEmbedding):
            return name, part
    return "", None


def _grown_keys(
    module: nn.Module, embedding: RowEmbedding | TokenEmbedding, preprocessor: Preprocessor
) -> list[_Keys]:
    """Return the keys of the entries of each dimension that depends on the columns."""
    groups = _names_by_group(embedding, preprocessor)
    codes = [(part.name, code) for part in preprocessor.recipe.codes for code in range(part.size)]
    plain = [*groups["numbers"], *groups["others"]] if embedding.numbers is None else groups["others"]
    parts = [(group, name) for group, names in groups.items() for name in names]
    values: _Keys = ()
    if isinstance(embedding, RowEmbedding):
        widths = zip(parts, embedding.part_widths, strict=True)
        values = [(*key, place) for key, width in widths for place in range(width)]
    deep = module.last.in_features - len(values) if isinstance(module, CrossNetwork) else 0
    centered = groups["texts"] if isinstance(embedding.texts, PretrainedVectors) else []
    return [groups["numbers"], plain, codes, centered, values, [*values, *range(deep)]]


def _names_by_group(embedding: RowEmbedding | TokenEmbedding, preprocessor: Preprocessor) -> Mapping[str, list[str]]:
    """Return the names of the parts of a row, in the order of RowLayout."""
    recipe, layout = preprocessor.recipe, embedding.layout
    return {
        "numbers": list(preprocessor.outputs[: layout.numbers]),
        "others": list(preprocessor.outputs[layout.numbers : layout.numbers + layout.others]),
        "categories": [part.name for part in recipe.codes],
        "texts": [*(part.name for part in recipe.tokens), *(part.name for part in recipe.network_tokens)],
        "images": [part.name for part in recipe.images],
    }
