"""Encoded rows whose tokens take two bytes each instead of four, on the host and while they are uploaded.

A narrow row consists of int16 values: first the bits of its other numbers, two values for each, then its tokens. The
network widens the batch by its first operators, so the numbers that it computes with are the same. Tokens above
32,767 are stored as negative values.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Floats = npt.NDArray[np.float32]
Narrow = npt.NDArray[np.int16]

MOST_TOKENS = 1 << 16  # of one column: how many different numbers two bytes have
_SIGNED_TOKENS = 1 << 15  # of one column: numbers that int16 holds as they are
_PER_NUMBER = 2  # int16 values in a number of single precision


@dataclass(frozen=True, slots=True, kw_only=True)
class NarrowForm:
    """The layout of a narrow row: `numbers` of single precision, then `tokens`."""

    numbers: int
    tokens: int

    @classmethod
    def of(cls, layout: Mapping[str, Any], width: int) -> "NarrowForm | None":
        """Return the form of rows of `width` numbers and this layout (`Preprocessor.layout`).

        Return None for rows without tokens, with images or pairs of items, and where a column has too many different
        tokens.
        """
        lengths = layout.get("lengths")
        if not lengths or layout.get("images") or layout.get("item_ranges"):
            return None
        if max(layout["vocabularies"]) > MOST_TOKENS:
            return None
        return cls(numbers=width - sum(lengths), tokens=sum(lengths))

    @property
    def width(self) -> int:
        """Return the int16 values of a row."""
        return _PER_NUMBER * self.numbers + self.tokens

    @property
    def encoded_width(self) -> int:
        """Return the numbers of a row in single precision."""
        return self.numbers + self.tokens

    @property
    def added(self) -> int:
        """Return by how many places a token stands further behind than in a row of single precision."""
        return (_PER_NUMBER - 1) * self.numbers

    def pack(self, rows: Floats) -> Narrow:
        """Return rows of single precision (rows, encoded_width) as narrow ones (rows, width)."""
        packed = np.empty((len(rows), self.width), np.int16)
        split = self.width - self.tokens
        packed[:, :split] = np.ascontiguousarray(rows[:, : self.numbers]).view(np.int16)
        packed[:, split:] = rows[:, self.numbers :].astype(np.uint16).view(np.int16)
        return packed

    def unpacked(self, rows: Narrow) -> Floats:
        """Return narrow rows in single precision."""
        out = np.empty((len(rows), self.encoded_width), np.float32)
        split = self.width - self.tokens
        out[:, : self.numbers] = np.ascontiguousarray(rows[:, :split]).view(np.float32)
        out[:, self.numbers :] = np.ascontiguousarray(rows[:, split:]).view(np.uint16)
        return out


def widened(x: Tensor, numbers: int) -> tuple[Tensor, Tensor]:
    """Return the numbers (batch, numbers) of narrow rows in single precision, and their tokens as they are."""
    split = _PER_NUMBER * numbers
    dense = x[:, :split]
    if numbers:  # a clone, because the stride of a single row that counts as contiguous may be odd
        dense = dense.clone(memory_format=torch.contiguous_format).view(torch.float32)
    return dense, x[:, split:]


def token_numbers(tokens: Tensor, vocabularies: Sequence[int]) -> Tensor:
    """Return tokens, narrow or not, as int64."""
    numbers = tokens.long()
    if tokens.dtype is torch.int16 and max(vocabularies) > _SIGNED_TOKENS:
        return numbers & (MOST_TOKENS - 1)
    return numbers
