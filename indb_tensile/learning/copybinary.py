"""Decodes COPY's binary format with numpy, block by block.

A row is a 16-bit field count and, per field, a 32-bit length (-1 for NULL) and the bytes of the value. Consecutive
rows of one layout (equal lengths) have a constant stride, so a run of such rows is a strided numpy view that costs
nothing to build. Texts and NULLs end a run; a plain loop then scans the rows. Runs and scanned rows are segments with
the same interface.

A stream is decoded while it arrives. Between two blocks only the rest of an incomplete row is kept. So a stream needs
the memory of its columns, one block and one row.
"""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from indb_tensile.errors import DataError, InvariantError
from indb_tensile.learning.binaryvalues import TEXT_FORMS, numeric_floats
from indb_tensile.learning.columns import ColumnData, ColumnKind, CopyEncoding, Mask

SIGNATURE = b"PGCOPY\n\xff\r\n\x00"
BLOCK_BYTES = 2 * 1024 * 1024  # fits into the cache while each column is decoded; smaller blocks cost more calls

_COUNT = struct.Struct(">h")
_LENGTH = struct.Struct(">i")
_SHORTEST_RUN_ROWS = 64  # for fewer rows a strided view costs more than the loop
_LONGEST_SCAN_ROWS = 4096  # scanned by the loop before the decoder looks for a run again
_CHECKED_BYTES = 256 * 1024  # the layout of a run is checked in blocks that fit into the cache
_GATHER_BYTES = 16  # up to this size an index per byte is cheaper than a slice per value
_MOST_KNOWN_TEXTS = 65536  # repeated texts share one str; the bound limits the memory for texts that do not repeat
_EPOCH_S = 946_684_800  # 2000-01-01, PostgreSQL's epoch, in seconds since 1970
_ARRAY_HEADER_BYTES = 12  # dimensions, flags, element type; size and lower bound of each dimension follow
_MOST_DIMENSIONS = 6  # PostgreSQL's MAXDIM

Fields = Sequence[tuple[str, CopyEncoding]]
Sink = Callable[[dict[str, ColumnData], int], None]


class CopyDecoder:
    """Decodes one or more streams and calls `sink` with the columns and the number of rows of each block.

    Error messages contain the column and the row; rows are numbered from 1 through all streams. Raises DataError for
    values that no column can store (arrays of different shapes), InvariantError for a stream that does not match the
    fields.
    """

    def __init__(self, fields: Fields, sink: Sink, block_bytes: int = BLOCK_BYTES) -> None:
        self._fields = tuple(fields)
        self._sink = sink
        self._block_bytes = block_bytes
        self._rows = 0
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._texts: dict[str, dict[bytes, str]] = {name: {} for name, _ in fields}
        self.begin()

    def begin(self) -> None:
        """Start a new stream."""
        self._data = bytearray()
        self._in_rows = False
        self._ended = False

    def feed(self, part: bytes | bytearray | memoryview) -> None:
        """Add the next bytes of the stream. The decoder takes ownership of a bytearray."""
        if self._data:
            self._data += part
        else:
            self._data = part if isinstance(part, bytearray) else bytearray(part)
        if len(self._data) >= self._block_bytes:
            self._decode()

    def end(self) -> None:
        """Decode the rest of the stream. Raises InvariantError if the stream has no trailer."""
        self._decode()
        if not self._ended:
            raise InvariantError("COPY's stream ends without its trailer")

    def _decode(self) -> None:
        position = 0 if self._in_rows else _header_end(self._data)
        if position is None:
            return
        self._in_rows = True
        segments, end = _segments(self._data, position, len(self._fields))
        if segments:
            self._emit(segments)
        self._ended = _is_trailer(self._data, end)
        if end:
            self._data = self._data[end:]  # numpy views may still refer to the old buffer, so it cannot be shortened

    def _emit(self, segments: Sequence["_Segment"]) -> None:
        """Convert the segments to columns and call the sink."""
        rows = sum(segment.rows for segment in segments)
        columns = {name: self._column(segments, f, name, wire) for f, (name, wire) in enumerate(self._fields)}
        self._rows += rows
        self._sink(columns, rows)

    def _column(self, segments: Sequence["_Segment"], field: int, name: str, wire: CopyEncoding) -> ColumnData:
        missing = np.concatenate([segment.missing(field) for segment in segments])
        match wire.kind:
            case ColumnKind.ARRAY:
                if name not in self._shapes:
                    shape = _first_shape(segments, field, name, self._rows)
                    if shape is not None:
                        self._shapes[name] = shape
                shape = self._shapes.get(name, (0,))
                values: npt.NDArray[Any] = _arrays(segments, field, name, wire, missing, shape, self._rows)
            case ColumnKind.TEXT:
                values = _texts(segments, field, missing, TEXT_FORMS[wire.form], self._texts[name])
            case _:
                values = _scalars(segments, field, name, wire, missing)
        return ColumnData(kind=wire.kind, values=values, missing=missing)


@dataclass(frozen=True, slots=True, eq=False)
class _Run:
    """Consecutive rows of one layout, at a constant stride."""

    data: bytearray
    rows: int
    stride_bytes: int
    starts: tuple[int, ...]  # of the first row's values
    lengths: tuple[int, ...]

    def spans(self, field: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the start and the length of the field in each row; the length is -1 for NULL."""
        starts = self.starts[field] + self.stride_bytes * np.arange(self.rows, dtype=np.int64)
        return starts, np.full(self.rows, self.lengths[field], dtype=np.int64)

    def missing(self, field: int) -> Mask:
        """Return a mask of the rows in which the field is NULL."""
        return np.full(self.rows, self.lengths[field] < 0)

    def gather(self, field: int, present: Mask, size_bytes: int) -> npt.NDArray[np.uint8]:
        """Return the bytes of the present values, shape (rows, size_bytes). Each value must have that size."""
        if self.lengths[field] < 0:
            return np.empty((0, size_bytes), np.uint8)
        strides = (self.stride_bytes, 1)
        return np.ndarray((self.rows, size_bytes), np.uint8, self.data, self.starts[field], strides)


@dataclass(frozen=True, slots=True, eq=False)
class _ScannedRows:
    """Consecutive rows whose values were located by a loop."""

    data: bytearray
    rows: int
    starts: npt.NDArray[np.int64]  # (rows, fields)
    lengths: npt.NDArray[np.int64]

    def spans(self, field: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        return self.starts[:, field], self.lengths[:, field]

    def missing(self, field: int) -> Mask:
        is_null: Mask = self.lengths[:, field] < 0
        return is_null

    def gather(self, field: int, present: Mask, size_bytes: int) -> npt.NDArray[np.uint8]:
        starts = self.starts[present, field]
        if size_bytes <= _GATHER_BYTES:
            data_bytes = np.frombuffer(self.data, np.uint8)
            gathered: npt.NDArray[np.uint8] = data_bytes[starts[:, None] + np.arange(size_bytes)]
            return gathered
        view = memoryview(self.data)
        joined = b"".join([view[start : start + size_bytes] for start in starts.tolist()])
        return np.frombuffer(joined, np.uint8).reshape(len(starts), size_bytes)


_Segment = _Run | _ScannedRows


def _segments(data: bytearray, position: int, fields: int) -> tuple[list[_Segment], int]:
    """Return the complete rows from `position` on, and the position after them."""
    segments: list[_Segment] = []
    while (first := _scan_rows(data, position, fields, 1))[0].rows:
        run = _find_run(data, position, first)
        if run.rows >= _SHORTEST_RUN_ROWS:
            position += run.rows * run.stride_bytes
            segments.append(run)
        else:
            scanned, position = _scan_rows(data, position, fields, _LONGEST_SCAN_ROWS)
            segments.append(scanned)
    return segments, position


def _header_end(data: bytearray) -> int | None:
    """Return the position of the first row, or None if the header is not complete yet."""
    if not data.startswith(SIGNATURE[: len(data)]):
        raise InvariantError(f"COPY's stream starts with {bytes(data[:11])!r}, not with its signature")
    flags_end = len(SIGNATURE) + 4
    if len(data) < flags_end + 4:
        return None
    end = flags_end + 4 + int(_LENGTH.unpack_from(data, flags_end)[0])
    return end if end <= len(data) else None


def _is_trailer(data: bytearray, position: int) -> bool:
    return position + _COUNT.size <= len(data) and bool(_COUNT.unpack_from(data, position)[0] == -1)


def _find_run(data: bytearray, position: int, scanned: tuple[_ScannedRows, int]) -> _Run:
    """Return the rows from `position` on that have the layout of the first row, which was `scanned` before."""
    first_row, end = scanned
    stride = end - position
    starts, lengths = first_row.starts[0].tolist(), first_row.lengths[0].tolist()
    complete_rows = (len(data) - position) // stride
    rows, block = 1, _SHORTEST_RUN_ROWS
    longest = max(_SHORTEST_RUN_ROWS, _CHECKED_BYTES // stride)
    while rows < complete_rows:
        size = min(block, complete_rows - rows)
        same = _count_same_layout(data, position + rows * stride, stride, size, position, starts, lengths)
        rows += same
        if same < size:
            break
        block = min(2 * block, longest)
    return _Run(data, rows, stride, tuple(starts), tuple(lengths))


def _count_same_layout(
    data: bytearray,
    at: int,
    stride: int,
    rows: int,
    first: int,
    starts: Sequence[int],
    lengths: Sequence[int],
) -> int:
    """Return how many of the next rows have the layout of the row at `first`."""
    same = np.ndarray((rows,), ">i2", data, at, (stride,)) == len(starts)
    for start, length in zip(starts, lengths, strict=True):
        offset = start - _LENGTH.size - first
        same &= np.ndarray((rows,), ">i4", data, at + offset, (stride,)) == length
    return rows if same.all() else int(np.argmin(same))


def _scan_rows(data: bytearray, position: int, fields: int, limit: int) -> tuple[_ScannedRows, int]:
    """Locate the values of up to `limit` complete rows; also return the position after these rows."""
    length_at, starts, lengths, rows = _LENGTH.unpack_from, [], [], 0
    size, last_length = len(data), len(data) - _LENGTH.size
    while rows < limit and position + _COUNT.size <= size and not _is_trailer(data, position):
        count = _COUNT.unpack_from(data, position)[0]
        if count != fields:
            raise InvariantError(f"a row of COPY's stream has {count} fields instead of {fields}")
        at = position + _COUNT.size
        for _ in range(fields):
            if at > last_length:
                at = size + 1
                break
            length = length_at(data, at)[0]
            at += _LENGTH.size
            starts.append(at)
            lengths.append(length)
            if length > 0:
                at += length
        if at > size:  # the row is not complete yet
            break
        position = at
        rows += 1
    shape = (rows, fields)
    scanned = rows * fields
    return _ScannedRows(
        data,
        rows,
        np.array(starts[:scanned], np.int64).reshape(shape),
        np.array(lengths[:scanned], np.int64).reshape(shape),
    ), position


def _scalars(
    segments: Sequence[_Segment], field: int, name: str, wire: CopyEncoding, missing: Mask
) -> npt.NDArray[Any]:
    values = np.zeros(len(missing), np.dtype(wire.item or ">f8").newbyteorder("="))
    row = 0
    for segment in segments:
        present = ~missing[row : row + segment.rows]
        if wire.form == "numeric":
            raw = _numeric_values(segment, field, present)
        else:
            raw = _fixed_width_values(segment, field, name, wire, present)
        all_present = len(raw) == segment.rows  # the usual case; a slice is much faster than a mask
        values[row : row + segment.rows][slice(None) if all_present else present] = raw
        row += segment.rows
    return _converted(values, wire)


def _fixed_width_values(
    segment: _Segment, field: int, name: str, wire: CopyEncoding, present: Mask
) -> npt.NDArray[Any]:
    item = np.dtype(wire.item)
    lengths = np.array(segment.lengths[field]) if isinstance(segment, _Run) else segment.lengths[:, field]
    wrong = lengths[(lengths >= 0) & (lengths != item.itemsize)]
    if wrong.size:
        raise InvariantError(f'column "{name}" arrives in values of {wrong[0]} bytes, not {item.itemsize}')
    return segment.gather(field, present, item.itemsize).view(item)[:, 0]


def _numeric_values(segment: _Segment, field: int, present: Mask) -> npt.NDArray[np.float64]:
    starts, lengths = segment.spans(field)
    data_bytes = np.frombuffer(segment.data, np.uint8)
    return numeric_floats(data_bytes, starts[present], lengths[present])


def _converted(values: npt.NDArray[Any], wire: CopyEncoding) -> npt.NDArray[Any]:
    """Convert the scalars of a stream to the types that `ColumnData` promises."""
    match wire.kind:
        case ColumnKind.INTEGER:
            return values.astype(np.int64, copy=False)
        case ColumnKind.FLOAT:
            return values.astype(np.float64, copy=False)
        case ColumnKind.BOOLEAN:
            return values.astype(np.bool_)
        case _:
            return _seconds(values)


def _seconds(values: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Convert days (4 bytes) or microseconds (8 bytes) since 2000 to seconds since 1970; infinity stays infinite."""
    limits = np.iinfo(values.dtype)
    scale = 86_400.0 if values.dtype.itemsize == 4 else 1e-6
    seconds = values.astype(np.float64) * scale + _EPOCH_S
    seconds[values == limits.max] = np.inf
    seconds[values == limits.min] = -np.inf
    return seconds


def _texts(
    segments: Sequence[_Segment],
    field: int,
    missing: Mask,
    form: Callable[[bytes], str],
    known: dict[bytes, str],
) -> npt.NDArray[np.object_]:
    """Decode a text column. `known` maps the bytes of repeated texts to a shared str."""
    values = np.empty(len(missing), object)
    row = 0
    for segment in segments:
        view = memoryview(segment.data)
        starts, lengths = segment.spans(field)
        for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
            if length >= 0:
                raw = bytes(view[start : start + length])
                text = known.get(raw)
                if text is None:
                    text = form(raw)
                    if len(known) < _MOST_KNOWN_TEXTS:
                        known[raw] = text
                values[row] = text
            row += 1
    return values


def _arrays(
    segments: Sequence[_Segment],
    field: int,
    name: str,
    wire: CopyEncoding,
    missing: Mask,
    shape: tuple[int, ...],
    rows_before: int,
) -> npt.NDArray[Any]:
    """Decode an array column; all its arrays have the given shape."""
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


def _first_shape(segments: Sequence[_Segment], field: int, name: str, rows_before: int) -> tuple[int, ...] | None:
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
    segment: _Segment,
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
    segment: _Segment,
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
