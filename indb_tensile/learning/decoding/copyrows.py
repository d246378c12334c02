"""Finds the rows in a block of COPY's binary format, or in records in the encoding of `record_send`.

A row is a field count of 16 bits and, per field, a length of 32 bits (-1 for NULL) and the bytes of the value. In a
record of `record_send` the count has 32 bits, and the oid of the field's type precedes each length. Consecutive
rows of one layout (equal lengths) have a constant stride, so a run of such rows is a strided numpy view that costs
nothing to build. Texts and NULLs end a run; a plain loop then scans the rows. Runs and scanned rows are segments with
the same interface.
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from indb_tensile.errors import InvariantError
from indb_tensile.learning.decoding.invalid_text_error import InvalidTextError
from indb_tensile.learning.storage.columns import Mask

_LENGTH = struct.Struct(">i")
_SHORTEST_RUN_ROWS = 64  # below this number of rows, a strided view costs more than the loop
_LONGEST_SCAN_ROWS = 4096  # scanned by the loop before the decoder looks for a run again
_CHECKED_BYTES = 256 * 1024  # the layout of a run is checked in blocks that fit into the cache
_GATHER_BYTES = 16  # up to this size an index per byte is cheaper than a slice per value


_MOST_KNOWN = 65_536  # equal values share one object; the bounds limit the memory for values that do not repeat
_MOST_KNOWN_BYTES = 16 << 20
_LARGEST_KNOWN_BYTES = 64 << 10  # few large values must not take the room of many small ones

Value = TypeVar("Value")


class KnownValues(dict[bytes, Value]):
    """The values of a column that were decoded so far, by their bytes, as long as these are few and small."""

    def __init__(self) -> None:
        super().__init__()
        self._size_bytes = 0

    def keep(self, raw: bytes, value: Value) -> None:
        """Remember the value of these bytes, unless there is no room for it."""
        fits = len(raw) <= _LARGEST_KNOWN_BYTES and self._size_bytes + len(raw) <= _MOST_KNOWN_BYTES
        if fits and len(self) < _MOST_KNOWN:
            self._size_bytes += len(raw)
            self[raw] = value


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """Consecutive rows of one layout, at a constant stride."""

    data: bytes | bytearray
    rows: int
    stride_bytes: int
    starts: tuple[int, ...]  # of the first row's values
    lengths: tuple[int, ...]

    def spans(self, field: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the start and the length of the field in each row; the length is -1 for NULL."""
        starts = self.starts[field] + self.stride_bytes * np.arange(self.rows, dtype=np.int64)
        return starts, np.full(self.rows, self.lengths[field], dtype=np.int64)

    def part(self, begin: int, end: int) -> "Run":
        """Return the rows from `begin` to before `end`."""
        starts = tuple(start + begin * self.stride_bytes for start in self.starts)
        return Run(self.data, end - begin, self.stride_bytes, starts, self.lengths)

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
class ScannedRows:
    """Consecutive rows whose values were located by a loop."""

    data: bytes | bytearray
    rows: int
    starts: npt.NDArray[np.int64]  # (rows, fields)
    lengths: npt.NDArray[np.int64]

    def spans(self, field: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the start and the length of the field in each row; the length is -1 for NULL."""
        return self.starts[:, field], self.lengths[:, field]

    def part(self, begin: int, end: int) -> "ScannedRows":
        """Return the rows from `begin` to before `end`."""
        return ScannedRows(self.data, end - begin, self.starts[begin:end], self.lengths[begin:end])

    def missing(self, field: int) -> Mask:
        """Return a mask of the rows in which the field is NULL."""
        is_null: Mask = self.lengths[:, field] < 0
        return is_null

    def gather(self, field: int, present: Mask, size_bytes: int) -> npt.NDArray[np.uint8]:
        """Return the bytes of the present values, shape (rows, size_bytes). Each value must have that size."""
        starts = self.starts[present, field]
        if size_bytes <= _GATHER_BYTES:
            data_bytes = np.frombuffer(self.data, np.uint8)
            gathered: npt.NDArray[np.uint8] = data_bytes[starts[:, None] + np.arange(size_bytes)]
            return gathered
        view = memoryview(self.data)
        joined = b"".join([view[start : start + size_bytes] for start in starts.tolist()])
        return np.frombuffer(joined, np.uint8).reshape(len(starts), size_bytes)


Segment = Run | ScannedRows


@dataclass(frozen=True, slots=True, kw_only=True)
class RowForm:
    """The layout of rows: the field count at the start of a row, and the bytes before the length of a field.

    `count_item` is the numpy dtype of the field count.
    """

    count: struct.Struct
    count_item: str
    type_bytes: int


COPIED = RowForm(count=struct.Struct(">h"), count_item=">i2", type_bytes=0)
SENT = RowForm(count=struct.Struct(">i"), count_item=">i4", type_bytes=4)


def row_segments(
    data: bytes | bytearray, position: int, fields: int, form: RowForm = COPIED
) -> tuple[list[Segment], int]:
    """Return the complete rows from `position` on, and the position after them."""
    segments: list[Segment] = []
    while (first := _scan_rows(data, position, fields, 1, form))[0].rows:
        run = _find_run(data, position, first, form)
        if run.rows >= _SHORTEST_RUN_ROWS:
            position += run.rows * run.stride_bytes
            segments.append(run)
        else:
            scanned, position = _scan_rows(data, position, fields, _LONGEST_SCAN_ROWS, form)
            segments.append(scanned)
    return segments, position


def grouped(segments: Sequence[Segment], most_rows: int) -> Iterator[list[Segment]]:
    """Yield the rows in groups of at most `most_rows`."""
    group: list[Segment] = []
    rows = 0
    for segment in segments:
        begin = 0
        while begin < segment.rows:
            end = min(segment.rows, begin + most_rows - rows)
            group.append(segment.part(begin, end))
            rows += end - begin
            begin = end
            if rows == most_rows:
                yield group
                group, rows = [], 0
    if group:
        yield group


def decode_repeated(
    segments: "Sequence[Segment]",
    field: int,
    missing: Mask,
    decode: Callable[[bytes], Value],
    known: KnownValues[Value],
    name: str,
    rows_before: int,
) -> npt.NDArray[np.object_]:
    """Decode a column of values of any length. `known` maps the bytes of repeated values to a shared object.

    Raises InvalidTextError for a text that is not valid UTF-8, with the column's name and the row's number.
    """
    values = np.empty(len(missing), object)
    row = 0
    for segment in segments:
        view = memoryview(segment.data)
        starts, lengths = segment.spans(field)
        for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
            if length >= 0:
                raw = bytes(view[start : start + length])
                value = known.get(raw)
                if value is None:
                    try:
                        value = decode(raw)
                    except UnicodeDecodeError as error:
                        raise InvalidTextError(name, error, row, rows_before) from None
                    known.keep(raw, value)
                values[row] = value
            row += 1
    return values


def decode_bytes(segments: "Sequence[Segment]", field: int, missing: Mask) -> npt.NDArray[np.object_]:
    """Decode a column of bytes, each value as an object of its own."""
    values = np.empty(len(missing), object)
    row = 0
    for segment in segments:
        view = memoryview(segment.data)
        starts, lengths = segment.spans(field)
        for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
            if length >= 0:
                values[row] = bytes(view[start : start + length])
            row += 1
    return values


def is_trailer(data: bytes | bytearray, position: int, form: RowForm = COPIED) -> bool:
    """Return whether the stream's trailer, a field count of -1, is complete at `position`."""
    return position + form.count.size <= len(data) and bool(form.count.unpack_from(data, position)[0] == -1)


def row_ends(data: bytes | bytearray, fields: int, form: RowForm) -> list[int]:
    """Return the position after each row."""
    ends: list[int] = []
    position = 0
    while True:
        scanned, position = _scan_rows(data, position, fields, 1, form)
        if not scanned.rows:
            return ends
        ends.append(position)


def _find_run(data: bytes | bytearray, position: int, scanned: tuple[ScannedRows, int], form: RowForm) -> Run:
    """Return the rows from `position` on that have the layout of the first row, which was `scanned` before."""
    first_row, end = scanned
    stride = end - position
    starts, lengths = first_row.starts[0].tolist(), first_row.lengths[0].tolist()
    complete_rows = (len(data) - position) // stride
    rows, block = 1, _SHORTEST_RUN_ROWS
    longest = max(_SHORTEST_RUN_ROWS, _CHECKED_BYTES // stride)
    while rows < complete_rows:
        size = min(block, complete_rows - rows)
        same = _count_same_layout(data, position + rows * stride, stride, size, position, starts, lengths, form)
        rows += same
        if same < size:
            break
        block = min(2 * block, longest)
    return Run(data, rows, stride, tuple(starts), tuple(lengths))


def _count_same_layout(
    data: bytes | bytearray,
    at: int,
    stride: int,
    rows: int,
    first: int,
    starts: Sequence[int],
    lengths: Sequence[int],
    form: RowForm,
) -> int:
    """Return how many of the next rows have the layout of the row at `first`."""
    same = np.ndarray((rows,), form.count_item, data, at, (stride,)) == len(starts)
    for start, length in zip(starts, lengths, strict=True):
        offset = start - _LENGTH.size - first
        same &= np.ndarray((rows,), ">i4", data, at + offset, (stride,)) == length
    return rows if same.all() else int(np.argmin(same))


def _scan_rows(
    data: bytes | bytearray, position: int, fields: int, limit: int, form: RowForm
) -> tuple[ScannedRows, int]:
    """Locate the values of up to `limit` complete rows; also return the position after these rows."""
    length_at, starts, lengths, rows = _LENGTH.unpack_from, [], [], 0
    size, last_length = len(data), len(data) - _LENGTH.size
    while rows < limit and position + form.count.size <= size and not is_trailer(data, position, form):
        count = form.count.unpack_from(data, position)[0]
        if count != fields:
            raise InvariantError(f"a row of COPY's stream has {count} fields instead of {fields}")
        at = position + form.count.size
        for _ in range(fields):
            at += form.type_bytes
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
    return ScannedRows(
        data,
        rows,
        np.array(starts[:scanned], np.int64).reshape(shape),
        np.array(lengths[:scanned], np.int64).reshape(shape),
    ), position
