"""COPY's binary format, decoded with numpy, block by block.

A row is a 16-bit field count and, per field, a 32-bit length (-1 for NULL) and that many bytes. Rows of one
layout (same lengths) follow one another at one stride, so a run of them is a strided view and costs nothing to
find; text and NULLs end a run, and there a plain loop walks the rows. Both give segments with the same face.

A stream is decoded while it arrives. Between two blocks only the rest of an incomplete row is kept, so a stream takes
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
from indb_tensile.learning.columns import ColumnData, Kind, Mask, Wire

SIGNATURE = b"PGCOPY\n\xff\r\n\x00"
BLOCK_BYTES = 2 * 1024 * 1024  # each column's pass over a block finds it in the cache; smaller ones cost more calls

_COUNT = struct.Struct(">h")
_LENGTH = struct.Struct(">i")
_SHORTEST_RUN_ROWS = 64  # below this a strided view costs more than the loop
_LONGEST_WALK_ROWS = 4096  # then look for a run again
_CHECKED_BYTES = 256 * 1024  # a run is checked in blocks that stay in the cache
_GATHER_BYTES = 16  # up to here an index per byte is cheaper than a slice per value
_MOST_KNOWN_TEXTS = 65536  # categories repeat, and share one str each; texts that are all different need not be kept
_EPOCH_S = 946_684_800  # 2000-01-01, PostgreSQL's day zero, in seconds since 1970
_ARRAY_HEADER_BYTES = 12  # dimensions, flags, element type; then size and lower bound of each dimension
_MOST_DIMENSIONS = 6  # PostgreSQL's MAXDIM

Fields = Sequence[tuple[str, Wire]]
Sink = Callable[[dict[str, ColumnData], int], None]


class Decoder:
    """Gives `sink` the columns and the number of rows of each block of one or more streams.

    Faults name column and row; rows are numbered from 1 on through all streams. Raises DataError for values that no
    column can hold (arrays that make no tensor), InvariantError for a stream that is not as described.
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
        """Expect a new stream."""
        self._data = bytearray()
        self._in_rows = False
        self._ended = False

    def feed(self, part: bytes | bytearray | memoryview) -> None:
        """Take the next bytes of the stream; a bytearray is the decoder's own from then on."""
        if self._data:
            self._data += part
        else:
            self._data = part if isinstance(part, bytearray) else bytearray(part)
        if len(self._data) >= self._block_bytes:
            self._decode()

    def end(self) -> None:
        """Decode what is left of the stream."""
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
            self._give(segments)
        self._ended = _at_end(self._data, end)
        if end:
            self._data = self._data[end:]  # views may still hold the old buffer, which then cannot be cut

    def _give(self, segments: Sequence["_Segment"]) -> None:
        rows = sum(segment.rows for segment in segments)
        columns = {name: self._column(segments, f, name, wire) for f, (name, wire) in enumerate(self._fields)}
        self._rows += rows
        self._sink(columns, rows)

    def _column(self, segments: Sequence["_Segment"], field: int, name: str, wire: Wire) -> ColumnData:
        missing = np.concatenate([segment.missing(field) for segment in segments])
        match wire.kind:
            case Kind.ARRAY:
                if name not in self._shapes:
                    shape = _first_shape(segments, field, name, self._rows)
                    if shape is not None:
                        self._shapes[name] = shape
                shape = self._shapes.get(name, (0,))
                values: npt.NDArray[Any] = _arrays(segments, field, name, wire, missing, shape, self._rows)
            case Kind.TEXT:
                values = _texts(segments, field, missing, TEXT_FORMS[wire.form], self._texts[name])
            case _:
                values = _scalars(segments, field, name, wire, missing)
        return ColumnData(kind=wire.kind, values=values, missing=missing)


@dataclass(frozen=True, slots=True, eq=False)
class _Run:
    """Rows of one layout at one stride."""

    data: bytearray
    rows: int
    stride_bytes: int
    starts: tuple[int, ...]  # of the first row's values
    lengths: tuple[int, ...]

    def spans(self, field: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Where each row's value starts, and its length (-1: NULL)."""
        starts = self.starts[field] + self.stride_bytes * np.arange(self.rows, dtype=np.int64)
        return starts, np.full(self.rows, self.lengths[field], dtype=np.int64)

    def missing(self, field: int) -> Mask:
        """Which rows have NULL."""
        return np.full(self.rows, self.lengths[field] < 0)

    def gather(self, field: int, present: Mask, size_bytes: int) -> npt.NDArray[np.uint8]:
        """The bytes of the present values, (rows, size_bytes); each must be that long."""
        if self.lengths[field] < 0:
            return np.empty((0, size_bytes), np.uint8)
        strides = (self.stride_bytes, 1)
        return np.ndarray((self.rows, size_bytes), np.uint8, self.data, self.starts[field], strides)


@dataclass(frozen=True, slots=True, eq=False)
class _Walk:
    """Rows whose values lie where a loop found them."""

    data: bytearray
    rows: int
    starts: npt.NDArray[np.int64]  # (rows, fields)
    lengths: npt.NDArray[np.int64]

    def spans(self, field: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        return self.starts[:, field], self.lengths[:, field]

    def missing(self, field: int) -> Mask:
        absent: Mask = self.lengths[:, field] < 0
        return absent

    def gather(self, field: int, present: Mask, size_bytes: int) -> npt.NDArray[np.uint8]:
        starts = self.starts[present, field]
        if size_bytes <= _GATHER_BYTES:
            every = np.frombuffer(self.data, np.uint8)
            gathered: npt.NDArray[np.uint8] = every[starts[:, None] + np.arange(size_bytes)]
            return gathered
        view = memoryview(self.data)
        joined = b"".join([view[start : start + size_bytes] for start in starts.tolist()])
        return np.frombuffer(joined, np.uint8).reshape(len(starts), size_bytes)


_Segment = _Run | _Walk


def _segments(data: bytearray, position: int, fields: int) -> tuple[list[_Segment], int]:
    """The whole rows from `position` on, and where they end."""
    segments: list[_Segment] = []
    while (first := _walk(data, position, fields, 1))[0].rows:
        run = _run(data, position, first)
        if run.rows >= _SHORTEST_RUN_ROWS:
            position += run.rows * run.stride_bytes
            segments.append(run)
        else:
            walk, position = _walk(data, position, fields, _LONGEST_WALK_ROWS)
            segments.append(walk)
    return segments, position


def _header_end(data: bytearray) -> int | None:
    """Where the first row begins; None where the header is not whole yet."""
    if not data.startswith(SIGNATURE[: len(data)]):
        raise InvariantError(f"COPY's stream starts with {bytes(data[:11])!r}, not with its signature")
    flags_end = len(SIGNATURE) + 4
    if len(data) < flags_end + 4:
        return None
    end = flags_end + 4 + int(_LENGTH.unpack_from(data, flags_end)[0])
    return end if end <= len(data) else None


def _at_end(data: bytearray, position: int) -> bool:
    return position + _COUNT.size <= len(data) and bool(_COUNT.unpack_from(data, position)[0] == -1)


def _run(data: bytearray, position: int, walked: tuple[_Walk, int]) -> _Run:
    """The rows from `position` on that have the layout of the first one, which was walked."""
    first, end = walked
    stride = end - position
    starts, lengths = first.starts[0].tolist(), first.lengths[0].tolist()
    most = (len(data) - position) // stride
    rows, block = 1, _SHORTEST_RUN_ROWS
    longest = max(_SHORTEST_RUN_ROWS, _CHECKED_BYTES // stride)
    while rows < most:
        size = min(block, most - rows)
        alike = _alike(data, position + rows * stride, stride, size, position, starts, lengths)
        rows += alike
        if alike < size:
            break
        block = min(2 * block, longest)
    return _Run(data, rows, stride, tuple(starts), tuple(lengths))


def _alike(
    data: bytearray,
    at: int,
    stride: int,
    rows: int,
    first: int,
    starts: Sequence[int],
    lengths: Sequence[int],
) -> int:
    """How many of the next rows repeat the layout of the row at `first`."""
    same = np.ndarray((rows,), ">i2", data, at, (stride,)) == len(starts)
    for start, length in zip(starts, lengths, strict=True):
        offset = start - _LENGTH.size - first
        same &= np.ndarray((rows,), ">i4", data, at + offset, (stride,)) == length
    return rows if same.all() else int(np.argmin(same))


def _walk(data: bytearray, position: int, fields: int, limit: int) -> tuple[_Walk, int]:
    """Up to `limit` whole rows one by one, and where they end."""
    length_at, starts, lengths, rows = _LENGTH.unpack_from, [], [], 0
    size, last_length = len(data), len(data) - _LENGTH.size
    while rows < limit and position + _COUNT.size <= size and not _at_end(data, position):
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
        if at > size:  # the row is not whole yet
            break
        position = at
        rows += 1
    shape = (rows, fields)
    walked = rows * fields
    return _Walk(
        data,
        rows,
        np.array(starts[:walked], np.int64).reshape(shape),
        np.array(lengths[:walked], np.int64).reshape(shape),
    ), position


def _scalars(segments: Sequence[_Segment], field: int, name: str, wire: Wire, missing: Mask) -> npt.NDArray[Any]:
    values = np.zeros(len(missing), np.dtype(wire.item or ">f8").newbyteorder("="))
    row = 0
    for segment in segments:
        present = ~missing[row : row + segment.rows]
        if wire.form == "numeric":
            raw = _numerics(segment, field, present)
        else:
            raw = _fixed(segment, field, name, wire, present)
        every = len(raw) == segment.rows  # as a rule, and much quicker than by a mask
        values[row : row + segment.rows][slice(None) if every else present] = raw
        row += segment.rows
    return _meaning(values, wire)


def _fixed(segment: _Segment, field: int, name: str, wire: Wire, present: Mask) -> npt.NDArray[Any]:
    item = np.dtype(wire.item)
    lengths = np.array(segment.lengths[field]) if isinstance(segment, _Run) else segment.lengths[:, field]
    odd = lengths[(lengths >= 0) & (lengths != item.itemsize)]
    if odd.size:
        raise InvariantError(f'column "{name}" travels in values of {odd[0]} bytes, not {item.itemsize}')
    return segment.gather(field, present, item.itemsize).view(item)[:, 0]


def _numerics(segment: _Segment, field: int, present: Mask) -> npt.NDArray[np.float64]:
    starts, lengths = segment.spans(field)
    every = np.frombuffer(segment.data, np.uint8)
    return numeric_floats(every, starts[present], lengths[present])


def _meaning(values: npt.NDArray[Any], wire: Wire) -> npt.NDArray[Any]:
    """From what travels to what `ColumnData` promises."""
    match wire.kind:
        case Kind.INTEGER:
            return values.astype(np.int64, copy=False)
        case Kind.FLOAT:
            return values.astype(np.float64, copy=False)
        case Kind.BOOLEAN:
            return values.astype(np.bool_)
        case _:
            return _seconds(values)


def _seconds(values: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Seconds since 1970 of days (4 bytes) or microseconds (8 bytes) since 2000; infinity stays infinite."""
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
    wire: Wire,
    missing: Mask,
    shape: tuple[int, ...],
    rows_before: int,
) -> npt.NDArray[Any]:
    values = np.zeros((len(missing), *shape), wire.stored or np.dtype(wire.item).newbyteorder("="))
    tensors = _numeric_tensors if wire.form == "numeric" else _tensors
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


def _tensors(
    segment: _Segment,
    field: int,
    name: str,
    wire: Wire,
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
        odd = (elements["size"] != item.itemsize).any(axis=1) | ~_headers_alike(raw, shape)
        if not odd.any():
            return elements["value"].reshape(-1, *shape)
        wrong = np.zeros_like(present)
        wrong[np.flatnonzero(present)[odd]] = True
    at = int(np.argmax(wrong))
    raw_value = bytes(memoryview(segment.data)[int(starts[at]) : int(starts[at] + lengths[at])])
    _check_array(raw_value, shape, name, rows_before + at + 1)
    raise InvariantError(f'column "{name}", row {rows_before + at + 1}: an array of {lengths[at]} bytes is malformed')


def _numeric_tensors(
    segment: _Segment,
    field: int,
    name: str,
    wire: Wire,
    shape: tuple[int, ...],
    present: Mask,
    rows_before: int,
) -> npt.NDArray[Any]:
    """Elements of numeric arrays differ in length: each is walked."""
    header = _ARRAY_HEADER_BYTES + 8 * len(shape)
    rows, (starts, lengths) = np.flatnonzero(present), segment.spans(field)
    size = int(np.prod(shape))
    values = np.empty((len(rows), size))
    every, view, length_at = np.frombuffer(segment.data, np.uint8), memoryview(segment.data), _LENGTH.unpack_from
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
        values[place] = numeric_floats(every, np.array(positions, np.int64), np.array(sizes, np.int64))
    return values.reshape(-1, *shape)


def _headers_alike(raw: npt.NDArray[np.uint8], shape: tuple[int, ...]) -> Mask:
    """Which arrays have these dimensions, each from one on; the flag for NULLs may be set without any."""
    dims = np.array([part for size in shape for part in (size, 1)], ">i4").tobytes()
    same: Mask = (raw[:, :4] == np.frombuffer(_LENGTH.pack(len(shape)), np.uint8)).all(axis=1)
    bounds = raw[:, _ARRAY_HEADER_BYTES : _ARRAY_HEADER_BYTES + len(dims)]
    same &= (bounds == np.frombuffer(dims, np.uint8)).all(axis=1)
    return same


def _array_header(raw: bytes) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Sizes and lower bounds of an array's dimensions."""
    dims = _LENGTH.unpack_from(raw, 0)[0]
    if not 0 <= dims <= _MOST_DIMENSIONS:
        raise InvariantError(f"an array of {dims} dimensions in COPY's stream")
    words = struct.unpack_from(f">{2 * dims}i", raw, _ARRAY_HEADER_BYTES)
    return words[::2], words[1::2]


def _check_array(raw: bytes, shape: tuple[int, ...], name: str, row: int) -> None:
    """Raise DataError where this array is not a full one of this shape."""
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
            f"{where}: the array has shape {_by(own)}, the rows before it have {_by(shape)}",
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


def _by(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))
