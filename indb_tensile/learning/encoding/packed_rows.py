"""Encoded rows with images in a compact form: their other numbers as bytes, then a byte for each pixel and channel.

The rows of a training are stored in this form, which takes a quarter of the memory of single precision. A batch is
unpacked to single precision while it is gathered, on the thread that gathers (batch_prefetch.py).
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from indb_tensile.learning.encoding.image_encoders import Images
from indb_tensile.learning.encoding.narrow_rows import NarrowForm

Packed = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

_FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedForm:
    """The layout of a packed row: `numbers` of single precision, then the pixels of each of `images`.

    `input_shape` is the shape of an unpacked row.
    """

    numbers: int
    images: tuple[Images, ...]
    input_shape: tuple[int, ...]

    @property
    def row_bytes(self) -> int:
        """Return the bytes of a row."""
        return _FLOAT_BYTES * self.numbers + sum(image.size for image in self.images)

    @property
    def begins(self) -> dict[str, int]:
        """Return the byte of a row at which the pixels of each column begin."""
        ends = itertools.accumulate((image.size for image in self.images), initial=_FLOAT_BYTES * self.numbers)
        return dict(zip((image.name for image in self.images), ends, strict=False))

    def pack(self, numbers: Floats, pixels: Sequence[Packed]) -> Packed:
        """Return the rows of these numbers (rows, numbers) and pixels."""
        dense = np.ascontiguousarray(numbers).view(np.uint8).reshape(len(numbers), _FLOAT_BYTES * self.numbers)
        return np.hstack([dense, *pixels])

    def dense(self, packed: Packed) -> Floats:
        """Return the numbers that are no pixels, as (rows, numbers)."""
        if not self.numbers:
            return np.empty((len(packed), 0), np.float32)
        return np.ascontiguousarray(packed[:, : _FLOAT_BYTES * self.numbers]).view(np.float32)

    def with_dense(self, packed: Packed, numbers: Floats) -> Packed:
        """Return the rows with other numbers in place of those that are no pixels."""
        changed = packed.copy()
        dense = np.ascontiguousarray(numbers).view(np.uint8)
        changed[:, : _FLOAT_BYTES * self.numbers] = dense.reshape(len(packed), -1)
        return changed

    def pixels(self, packed: Packed) -> list[Packed]:
        """Return the pixels of each column of images, as (rows, channels, height, width)."""
        parts, begin = [], _FLOAT_BYTES * self.numbers
        for image in self.images:
            own = packed[:, begin : begin + image.size]
            parts.append(own.reshape(len(packed), *image.shape))
            begin += image.size
        return parts

    def unpack(self, packed: Packed, out: Floats, pixels: Sequence[Packed] | None = None) -> None:
        """Write the rows (rows, *input_shape) to `out`, with other `pixels` if they are given."""
        rows = len(packed)
        flat = out.reshape(rows, -1)
        if self.numbers:
            flat[:, : self.numbers] = self.dense(packed)
        begin = self.numbers
        for image, own in zip(self.images, self.pixels(packed) if pixels is None else pixels, strict=True):
            image.convert(own.reshape(rows, image.size), flat[:, begin : begin + image.size])
            begin += image.size

    def unpacked(self, packed: Packed) -> Floats:
        """Return the rows in single precision."""
        out = np.empty((len(packed), *self.input_shape), np.float32)
        self.unpack(packed, out)
        return out


class UnpackedRows:
    """Packed or narrow rows in place of an array in single precision.

    The rows that are taken from it are such an array.
    """

    def __init__(self, packed: npt.NDArray[Any], form: PackedForm | NarrowForm) -> None:
        self._packed = packed
        self._form = form

    def __len__(self) -> int:
        return len(self._packed)

    def __getitem__(self, places: npt.NDArray[np.int64] | slice) -> Floats:
        """Return the rows at these places."""
        return self._form.unpacked(self._packed[places])
