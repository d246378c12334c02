"""Decodes arrays in COPY's binary format. All arrays of a column have one shape, no NULL, and subscripts from 1."""

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from indb_tensile.errors import DataError, InvariantError
from indb_tensile.learning.decoding.binaryvalues import numeric_floats
from indb_tensile.learning.decoding.copyrows import Segment
from indb_tensile.learning.decoding.copyvectors import FORMS, decode_vectors, first_length
from indb_tensile.learning.storage.columns import CopyEncoding, Mask

_LENGTH = struct.Struct(">i")
_ARRAY_HEADER_BYTES = 12  # dimensions, flags, element type; size and lower bound of each dimension follow
_MOST_DIMENSIONS = 6  # PostgreSQL's MAXDIM


def decode_arrays(
    segments: Sequence[Segment],
    field: int,
    name: str,
    wire: CopyEncoding,
    missing: Mask,
    shape: tuple[int, ...],
    rows_before: int,
) -> npt.NDArray[Any]:
    """Decode an array column; all its arrays have the given shape."""
    if wire.form in FORMS:
        return decode_vectors(segments, field, name, wire, missing, shape, rows_before)
    values = np.zeros((len(missing), *shape), wire.stored or np.dtype(wire.item).newbyteorder("="))
    tensors = _numeric_arrays if wire.form == "numeric" else _fixed_width_arrays
    row = 0
    for segment in segments:
        present = ~missing[row : row + segment.rows]
        if present.any():
            part = tensors(segment, field, name, wire, shape, present, rows_before + row)
            values[row : row + segment.rows][present] = part
        row += segment.rows
    return values


def first_shape(
    segments: Sequence[Segment], field: int, name: str, wire: CopyEncoding, rows_before: int
) -> tuple[int, ...] | None:
    """Return the shape of the first array of the field, or None if all are NULL."""
    if wire.form in FORMS:
        return first_length(segments, field)
    row = rows_before
    for segment in segments:
        starts, lengths = segment.spans(field)
        present = np.flatnonzero(lengths >= 0)
        if len(present):
            start = int(starts[present[0]])
            raw = bytes(memoryview(segment.data)[start : start + int(lengths[present[0]])])
            shape, _ = _array_header(raw)
            _check_array(raw, shape, name, row + int(present[0]) + 1)
            return shape
        row += segment.rows
    return None


def _fixed_width_arrays(
    segment: Segment,
    field: int,
    name: str,
    wire: CopyEncoding,
    shape: tuple[int, ...],
    present: Mask,
    rows_before: int,
) -> npt.NDArray[Any]:
    item = np.dtype(wire.item)
    header = _ARRAY_HEADER_BYTES + 8 * len(shape)
    size = header + int(np.prod(shape)) * (4 + item.itemsize)
    starts, lengths = segment.spans(field)
    wrong = present & (lengths != size)
    if not wrong.any():
        raw = segment.gather(field, present, size)
        elements = raw[:, header:].view(np.dtype([("size", ">i4"), ("value", item)]))
        mismatch = (elements["size"] != item.itemsize).any(axis=1) | ~_same_headers(raw, shape)
        if not mismatch.any():
            return elements["value"].reshape(-1, *shape)
        wrong = np.zeros_like(present)
        wrong[np.flatnonzero(present)[mismatch]] = True
    at = int(np.argmax(wrong))
    raw_value = bytes(memoryview(segment.data)[int(starts[at]) : int(starts[at] + lengths[at])])
    _check_array(raw_value, shape, name, rows_before + at + 1)
    raise InvariantError(f'column "{name}", row {rows_before + at + 1}: an array of {lengths[at]} bytes is malformed')


def _numeric_arrays(
    segment: Segment,
    field: int,
    name: str,
    wire: CopyEncoding,
    shape: tuple[int, ...],
    present: Mask,
    rows_before: int,
) -> npt.NDArray[Any]:
    """Decode arrays of `numeric`. The elements differ in length, so a loop locates each element."""
    header = _ARRAY_HEADER_BYTES + 8 * len(shape)
    rows, (starts, lengths) = np.flatnonzero(present), segment.spans(field)
    size = int(np.prod(shape))
    values = np.empty((len(rows), size))
    data_bytes, view, length_at = np.frombuffer(segment.data, np.uint8), memoryview(segment.data), _LENGTH.unpack_from
    for place, row in enumerate(rows.tolist()):
        start, end = int(starts[row]), int(starts[row] + lengths[row])
        _check_array(bytes(view[start : min(end, start + header)]), shape, name, rows_before + row + 1)
        at, positions, sizes = start + header, [], []
        while at < end:
            length = length_at(segment.data, at)[0]
            if length < 0:
                _check_array(bytes(view[start:end]), shape, name, rows_before + row + 1)
            positions.append(at + 4)
            sizes.append(length)
            at += 4 + length
        if len(positions) != size:
            raise InvariantError(f'column "{name}", row {rows_before + row + 1}: the array is malformed')
        values[place] = numeric_floats(data_bytes, np.array(positions, np.int64), np.array(sizes, np.int64))
    return values.reshape(-1, *shape)


def _same_headers(raw: npt.NDArray[np.uint8], shape: tuple[int, ...]) -> Mask:
    """Return a mask of the arrays that have this shape and whose subscripts start at 1.

    The flag for NULLs is ignored, since it may be set in an array without NULL.
    """
    dims = np.array([part for size in shape for part in (size, 1)], ">i4").tobytes()
    same: Mask = (raw[:, :4] == np.frombuffer(_LENGTH.pack(len(shape)), np.uint8)).all(axis=1)
    bounds = raw[:, _ARRAY_HEADER_BYTES : _ARRAY_HEADER_BYTES + len(dims)]
    same &= (bounds == np.frombuffer(dims, np.uint8)).all(axis=1)
    return same


def _array_header(raw: bytes) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the sizes and the lower bounds of an array's dimensions."""
    dims = _LENGTH.unpack_from(raw, 0)[0]
    if not 0 <= dims <= _MOST_DIMENSIONS:
        raise InvariantError(f"an array of {dims} dimensions in COPY's stream")
    words = struct.unpack_from(f">{2 * dims}i", raw, _ARRAY_HEADER_BYTES)
    return words[::2], words[1::2]


def _check_array(raw: bytes, shape: tuple[int, ...], name: str, row: int) -> None:
    """Raise DataError unless the array has this shape, subscripts from 1 and no NULL."""
    own, bounds = _array_header(raw)
    where = f'column "{name}", row {row}'
    if not own:
        raise DataError(f"{where}: the array is empty", hint="Fill it, or set it to NULL to count it as missing.")
    if any(bound != 1 for bound in bounds):
        written = ", ".join(map(str, bounds))
        hint = "Store it with subscripts from 1, as array[...] and '{...}' do."
        raise DataError(f"{where}: the array's subscripts start at {written}, not at 1", hint=hint)
    if own != shape:
        raise DataError(
            f"{where}: the array has shape {_shape_text(own)}, the rows before it have {_shape_text(shape)}",
            hint="Arrays of one column must have one shape: pad or cut them, or leave the column out with exclude.",
        )
    if _has_null(raw, len(own)):
        hint = "Replace the NULL elements, or set the whole array to NULL to count it as missing."
        raise DataError(f"{where}: the array contains NULL", hint=hint)


def _has_null(raw: bytes, dims: int) -> bool:
    position = _ARRAY_HEADER_BYTES + 8 * dims
    while position < len(raw):
        length = _LENGTH.unpack_from(raw, position)[0]
        if length < 0:
            return True
        position += 4 + length
    return False


def _shape_text(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))
