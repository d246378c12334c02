"""Rows of a prediction in PostgreSQL's binary format: records that `record_send` encoded, or rows of a COPY."""

from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import msgspec

from indb_tensile.errors import InvariantError
from indb_tensile.learning.decoding.copybinary import Fields, SegmentDecoder
from indb_tensile.learning.decoding.copyrows import SENT, Segment, row_ends, row_segments
from indb_tensile.learning.storage.columns import ColumnData, Columns
from indb_tensile.request.json_text import json_text

_KEY = "\0"  # precedes the name of a key, which may be a feature too; no column's name has this character


class BinaryRows(Sequence[bytes]):
    """Rows with equal columns. A slice has the same columns. The columns of the key are integers."""

    key_names: tuple[str, ...] = ()

    @property
    @abstractmethod
    def columns(self) -> Columns:
        """The decoded columns; there is at least one row. Raises DataError for arrays of different shapes."""

    @abstractmethod
    def part(self, begin: int, end: int) -> "BinaryRows":
        """Return the rows from `begin` to before `end`."""

    def __getitem__(self, place: Any) -> Any:
        if not isinstance(place, slice):
            raise TypeError("rows are taken as a slice")
        begin, end, _ = place.indices(len(self))
        return self if (begin, end) == (0, len(self)) else self.part(begin, max(begin, end))

    @abstractmethod
    def key_column(self, name: str) -> ColumnData:
        """Return a column of the key."""

    def keys(self) -> str | None:
        """Return the keys of all rows as a list of JSON objects, or None if the rows have no key."""
        if not self.key_names:
            return None
        if len(self.key_names) == 1:  # the usual case, in a fifth of the time
            begin = "{" + json_text(self.key_names[0]) + ": "
            values = msgspec.json.encode(_values(self.key_column(self.key_names[0]))).decode()
            return f"[{begin}{values[1:-1].replace(',', '}, ' + begin)}}}]"
        form = "{" + ", ".join(json_text(name).replace("%", "%%") + ": %s" for name in self.key_names) + "}"
        columns = [_texts(self.key_column(name)) for name in self.key_names]
        return f"[{','.join(map(form.__mod__, zip(*columns, strict=True)))}]"


class SentRecords(BinaryRows):
    """Records in the encoding of `record_send`, one after the other. The columns of the key follow the others."""

    def __init__(self, records: bytes, rows: int, fields: Fields, key: Fields = ()) -> None:
        self._records, self._rows, self._fields, self._key = records, rows, tuple(fields), tuple(key)
        self.key_names = tuple(name for name, _ in key)

    def __len__(self) -> int:
        return self._rows

    def part(self, begin: int, end: int) -> "SentRecords":
        """Return the rows from `begin` to before `end`."""
        records = self._records[self._bounds[begin] : self._bounds[end]]
        return SentRecords(records, end - begin, self._fields, self._key)

    @cached_property
    def _bounds(self) -> list[int]:
        """The position before each row, and the end: all rows of a table are sliced one pass after the other."""
        return [0, *row_ends(self._records, len(self._fields) + len(self._key), SENT)]

    @cached_property
    def columns(self) -> Columns:
        """The decoded columns; there is at least one row. Raises DataError for arrays of different shapes."""
        fields = (*self._fields, *((_KEY + name, wire) for name, wire in self._key))
        segments, end = row_segments(self._records, 0, len(fields), SENT)
        columns, rows = SegmentDecoder(fields).decode(segments)
        if (rows, end) != (self._rows, len(self._records)):
            raise InvariantError(f"{len(self._records)} bytes hold {rows} rows in {end} bytes, not {self._rows} rows")
        return columns

    def key_column(self, name: str) -> ColumnData:
        """Return a column of the key."""
        return self.columns[_KEY + name]


class CopiedRows(BinaryRows):
    """Rows that COPY has sent, as segments of its blocks. The key's columns are among `fields`."""

    def __init__(self, segments: Sequence[Segment], fields: Fields, key_names: Sequence[str] = ()) -> None:
        self._segments, self._fields = list(segments), tuple(fields)
        self._rows = sum(segment.rows for segment in segments)
        self.key_names = tuple(key_names)

    def __len__(self) -> int:
        return self._rows

    def part(self, begin: int, end: int) -> "CopiedRows":
        """Return the rows from `begin` to before `end`."""
        segments: list[Segment] = []
        first = 0
        for segment in self._segments:
            low, high = max(begin - first, 0), min(end - first, segment.rows)
            if low < high:
                segments.append(segment.part(low, high))
            first += segment.rows
        return CopiedRows(segments, self._fields, self.key_names)

    @cached_property
    def columns(self) -> Columns:
        """The decoded columns; there is at least one row. Raises DataError for arrays of different shapes."""
        return SegmentDecoder(self._fields).decode(self._segments)[0]

    def key_column(self, name: str) -> ColumnData:
        """Return a column of the key."""
        return self.columns[name]


def _values(data: ColumnData) -> list[Any]:
    values: list[Any] = data.values.tolist()
    if not data.missing.any():
        return values
    return [None if missing else value for value, missing in zip(values, data.missing.tolist(), strict=True)]


def _texts(data: ColumnData) -> list[Any]:
    return ["null" if value is None else value for value in _values(data)]
