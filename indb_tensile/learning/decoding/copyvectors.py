"""Decodes pgvector's `vector` and `halfvec` in COPY's binary format.

A value has the number of its dimensions and an unused word, 16 bits each, then its elements: floats of 32 or of 16
bits, most significant byte first.
"""

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from indb_tensile.errors import DataError, InvariantError
from indb_tensile.learning.decoding.copyrows import Segment
from indb_tensile.learning.storage.columns import CopyEncoding, Mask

FORMS = ("vector", "halfvec")
_HEADER = struct.Struct(">HH")


def first_length(segments: Sequence[Segment], field: int) -> tuple[int, ...] | None:
    """Return the shape of the first vector of the field, or None if all are NULL."""
    for segment in segments:
        starts, lengths = segment.spans(field)
        present = np.flatnonzero(lengths >= _HEADER.size)
        if len(present):
            return (int(_HEADER.unpack_from(segment.data, int(starts[present[0]]))[0]),)
    return None


def decode_vectors(
    segments: Sequence[Segment],
    field: int,
    name: str,
    wire: CopyEncoding,
    missing: Mask,
    shape: tuple[int, ...],
    rows_before: int,
) -> npt.NDArray[Any]:
    """Decode a column. Raises DataError for a vector of another length than the first one."""
    item = np.dtype(wire.item)
    values = np.zeros((len(missing), *shape), wire.stored or item.newbyteorder("="))
    size = _HEADER.size + shape[0] * item.itemsize
    row = 0
    for segment in segments:
        present = ~missing[row : row + segment.rows]
        starts, lengths = segment.spans(field)
        wrong = present & (lengths != size)
        if wrong.any():
            at = int(np.argmax(wrong))
            _refuse_length(segment.data, int(starts[at]), int(lengths[at]), item, name, shape, rows_before + row + at)
        if present.any():
            raw = segment.gather(field, present, size)
            if (raw[:, :2].view(">u2")[:, 0] != shape[0]).any():
                raise InvariantError(f'column "{name}": a vector of {shape[0]} elements is malformed')
            values[row : row + segment.rows][present] = np.ascontiguousarray(raw[:, _HEADER.size :]).view(item)
        row += segment.rows
    return values


def _refuse_length(
    data: bytes | bytearray, start: int, length: int, item: np.dtype[Any], name: str, shape: tuple[int, ...], row: int
) -> None:
    own = int(_HEADER.unpack_from(data, start)[0]) if length >= _HEADER.size else -1
    if length != _HEADER.size + own * item.itemsize:
        raise InvariantError(f'column "{name}", row {row + 1}: a vector of {length} bytes is malformed')
    raise DataError(
        f'column "{name}", row {row + 1}: the vector has {own} elements, the rows before it have {shape[0]}',
        hint="Vectors of one column must have one length: declare it, as in vector(3), or leave the column out with "
        "exclude.",
    )
