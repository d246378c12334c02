"""Rows of a prediction as `record_send` sends them: the binary form of each value, as in COPY's binary format."""

import json
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from indb_tensile.errors import InvariantError
from indb_tensile.learning.columns import ColumnData, Columns
from indb_tensile.learning.copybinary import Fields, SegmentDecoder
from indb_tensile.learning.copyrows import SENT, row_ends, row_segments

_KEY = "\0"  # precedes the name of a key, which may be a feature too; no column's name has this character


class RowImages(Sequence[bytes]):
    """Rows with equal columns, one image after the other. A slice has the same columns.

    The columns of the key are integers and follow the others.
    """

    def __init__(self, images: bytes, rows: int, fields: Fields, key: Fields = ()) -> None:
        self._images, self._rows, self._fields, self._key = images, rows, tuple(fields), tuple(key)

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, place: Any) -> Any:
        if not isinstance(place, slice):
            raise TypeError("rows are taken as a slice")
        begin, end, _ = place.indices(self._rows)
        if (begin, end) == (0, self._rows):
            return self
        end = max(begin, end)
        images = self._images[self._bounds[begin] : self._bounds[end]]
        return RowImages(images, end - begin, self._fields, self._key)

    @cached_property
    def _bounds(self) -> list[int]:
        """The position before each row, and the end: all rows of a table are sliced one pass after the other."""
        return [0, *row_ends(self._images, len(self._fields) + len(self._key), SENT)]

    @cached_property
    def columns(self) -> Columns:
        """The decoded columns; there is at least one row. Raises DataError for arrays of different shapes."""
        fields = (*self._fields, *((_KEY + name, wire) for name, wire in self._key))
        segments, end = row_segments(self._images, 0, len(fields), SENT)
        columns, rows = SegmentDecoder(fields).decode(segments)
        if (rows, end) != (self._rows, len(self._images)):
            raise InvariantError(f"{len(self._images)} bytes hold {rows} rows in {end} bytes, not {self._rows} rows")
        return columns

    def keys(self) -> str | None:
        """Return the keys of all rows as a list of JSON objects, or None if the rows have no key."""
        if not self._key:
            return None
        form = "{" + ", ".join(json.dumps(name).replace("%", "%%") + ": %s" for name, _ in self._key) + "}"
        values = [_texts(self.columns[_KEY + name]) for name, _ in self._key]
        return f"[{','.join(map(form.__mod__, zip(*values, strict=True)))}]"


def _texts(data: ColumnData) -> list[Any]:
    values: list[Any] = data.values.tolist()
    if not data.missing.any():
        return values
    return ["null" if missing else value for value, missing in zip(values, data.missing.tolist(), strict=True)]
