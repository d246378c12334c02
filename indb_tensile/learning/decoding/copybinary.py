"""Decodes COPY's binary format with numpy, block by block.

`copyrows.py` finds the rows of a block, and `copyarrays.py` decodes arrays. A stream is
decoded while it arrives. Between two blocks only the rest of an incomplete row is kept. So a stream needs the memory
of its columns, one block and one row.
"""

import struct
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from indb_tensile.errors import InvariantError
from indb_tensile.learning.decoding.binarytimes import to_seconds
from indb_tensile.learning.decoding.binaryvalues import TEXT_FORMS, numeric_floats
from indb_tensile.learning.decoding.copyarrays import decode_arrays, first_shape
from indb_tensile.learning.decoding.copylabels import Labels, decode_labels
from indb_tensile.learning.decoding.copyrows import (
    KnownValues,
    Run,
    Segment,
    decode_bytes,
    decode_repeated,
    is_trailer,
    row_segments,
)
from indb_tensile.learning.decoding.invalid_text_error import InvalidTextError
from indb_tensile.learning.storage.columns import ColumnData, ColumnKind, CopyEncoding, Mask

SIGNATURE = b"PGCOPY\n\xff\r\n\x00"
BLOCK_BYTES = 2 * 1024 * 1024  # fits into the cache while each column is decoded; smaller blocks cost more calls

_LENGTH = struct.Struct(">i")

Fields = Sequence[tuple[str, CopyEncoding]]
Sink = Callable[[dict[str, ColumnData], int], None]
SegmentSink = Callable[[list[Segment]], None]


class SegmentStream:
    """Finds the rows of one or more streams and calls `sink` with the segments of each block.

    `fields` is the number of fields of a row. Raises InvariantError for a stream that does not match it.
    """

    def __init__(self, fields: int, sink: SegmentSink, block_bytes: int = BLOCK_BYTES) -> None:
        self._fields = fields
        self._sink = sink
        self._block_bytes = block_bytes
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
        segments, end = row_segments(self._data, position, self._fields)
        if segments:
            self._sink(segments)
        self._ended = is_trailer(self._data, end)
        if end:
            self._data = self._data[end:]  # numpy views may still refer to the old buffer, so it cannot be shortened


class CopyDecoder(SegmentStream):
    """Decodes one or more streams and calls `sink` with the columns and the number of rows of each block.

    Error messages contain the column and the row; rows are numbered from 1 through all streams. Raises DataError for
    values that no column can store (arrays of different shapes), InvariantError for a stream that does not match the
    fields.
    """

    def __init__(
        self,
        fields: Fields,
        sink: Sink,
        block_bytes: int = BLOCK_BYTES,
        decoder: "SegmentDecoder | None" = None,
        key: Collection[str] = (),
    ) -> None:
        """`decoder` decodes the segments; the default is one of these fields, whose errors name rows by `key`."""
        self._columns = tuple(fields)
        self._decoder = SegmentDecoder(self._columns, key) if decoder is None else decoder
        self._sink_columns = sink
        super().__init__(len(self._columns), lambda segments: sink(*self._decoder.decode(segments)), block_bytes)

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the columns, in the order of their fields."""
        return tuple(name for name, _ in self._columns)

    def of_columns(self, names: Collection[str]) -> "CopyDecoder":
        """Return a decoder of these columns of another table, whose arrays must have the shapes of this one's."""
        columns = tuple((name, wire) for name, wire in self._columns if name in names)
        return CopyDecoder(columns, self._sink_columns, self._block_bytes, self._decoder.of_columns(columns))


class SegmentDecoder:
    """Converts rows that were found to columns: the first fields of each row, if rows have more.

    Error messages number the rows of all calls together, from 1. `key` are columns by which an error names its row.
    """

    def __init__(self, fields: Fields, key: Collection[str] = ()) -> None:
        self._fields = tuple(fields)
        self._key = key
        self._rows = 0
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._texts: dict[str, KnownValues[str]] = {name: KnownValues() for name, _ in fields}
        self._labels: dict[str, KnownValues[Labels]] = {name: KnownValues() for name, _ in fields}

    def of_columns(self, fields: Fields) -> "SegmentDecoder":
        """Return a decoder that expects the shapes of arrays that this one has decoded, and counts rows from 1."""
        decoder = SegmentDecoder(fields)
        decoder._shapes |= self._shapes
        return decoder

    def decode(self, segments: Sequence[Segment]) -> tuple[dict[str, ColumnData], int]:
        """Return the columns of the rows, and the number of rows. There is at least one row."""
        rows = sum(segment.rows for segment in segments)
        try:
            columns = {name: self._column(segments, f, name, wire) for f, (name, wire) in enumerate(self._fields)}
        except InvalidTextError as error:
            if key := self._key_of_row(segments, error.place):
                error.detail = f"The row's key is {key}. {error.detail}"
            raise
        self._rows += rows
        return columns, rows

    def _key_of_row(self, segments: Sequence[Segment], place: int) -> str:
        """Return the key of a row with the names of its columns, as far as it can be decoded."""
        for segment in segments:
            if place < segment.rows:
                break
            place -= segment.rows
        values = []
        for field, (name, wire) in enumerate(self._fields):
            if name in self._key:
                with suppress(InvalidTextError):
                    values.append(
                        f"{name} {self._column([segment.part(place, place + 1)], field, name, wire).values[0]}"
                    )
        return ", ".join(values)

    def _column(self, segments: Sequence[Segment], field: int, name: str, wire: CopyEncoding) -> ColumnData:
        missing = np.concatenate([segment.missing(field) for segment in segments])
        match wire.kind:
            case ColumnKind.ARRAY:
                if name not in self._shapes:
                    shape = first_shape(segments, field, name, wire, self._rows)
                    if shape is not None:
                        self._shapes[name] = shape
                shape = self._shapes.get(name, (0,))
                values: npt.NDArray[Any] = decode_arrays(segments, field, name, wire, missing, shape, self._rows)
            case ColumnKind.TEXT | ColumnKind.DOCUMENT:
                form, texts = TEXT_FORMS[wire.form], self._texts[name]
                values = decode_repeated(segments, field, missing, form, texts, name, self._rows)
            case ColumnKind.IMAGE:
                values = decode_bytes(segments, field, missing)
            case ColumnKind.LABELS:
                form, labels = TEXT_FORMS[wire.form], self._labels[name]
                values = decode_labels(segments, field, missing, form, labels, name, self._rows)
            case _:
                values = _scalars(segments, field, name, wire, missing)
        return ColumnData(kind=wire.kind, values=values, missing=missing)


def _header_end(data: bytearray) -> int | None:
    """Return the position of the first row, or None if the header is not complete yet."""
    if not data.startswith(SIGNATURE[: len(data)]):
        raise InvariantError(f"COPY's stream starts with {bytes(data[:11])!r}, not with its signature")
    flags_end = len(SIGNATURE) + 4
    if len(data) < flags_end + 4:
        return None
    end = flags_end + 4 + int(_LENGTH.unpack_from(data, flags_end)[0])
    return end if end <= len(data) else None


def _scalars(
    segments: Sequence[Segment], field: int, name: str, wire: CopyEncoding, missing: Mask
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
    segment: Segment, field: int, name: str, wire: CopyEncoding, present: Mask
) -> npt.NDArray[Any]:
    item = np.dtype(wire.item)
    lengths = np.array(segment.lengths[field]) if isinstance(segment, Run) else segment.lengths[:, field]
    wrong = lengths[(lengths >= 0) & (lengths != item.itemsize)]
    if wrong.size:
        raise InvariantError(f'column "{name}" arrives in values of {wrong[0]} bytes, not {item.itemsize}')
    return segment.gather(field, present, item.itemsize).view(item)[:, 0]


def _numeric_values(segment: Segment, field: int, present: Mask) -> npt.NDArray[np.float64]:
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
            return to_seconds(values, wire)
