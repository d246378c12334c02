"""Column descriptions as PostgreSQL gives them, and column values as they are stored in memory."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from indb_tensile.learning.storage.byte_strings import ByteStrings, StoredTexts
from indb_tensile.learning.storage.coded_texts import CodedTexts
from indb_tensile.learning.storage.row_storage import (
    MEMORY,
    RowStorage,
    SelectedRows,
    gathered,
    row_blocks,
    will_need,
)

Rows = npt.NDArray[np.int64]  # positions of rows in a table
Mask = npt.NDArray[np.bool_]


_GAP_ROWS = 1024  # rows of a file that are read with fewer rows between them are read at once


class ColumnKind(StrEnum):
    """The kinds of columns that the package distinguishes. Several SQL types share a kind."""

    INTEGER = "integer"
    FLOAT = "float"
    BOOLEAN = "boolean"
    TEXT = "text"
    DATE = "date"
    TIME = "time"  # a timestamp, with or without time zone
    CLOCK = "clock"  # a time of day, with or without time zone
    DURATION = "duration"  # an interval
    ARRAY = "array"
    LABELS = "labels"  # an array of texts, as a set
    DOCUMENT = "document"  # json or jsonb
    IMAGE = "image"  # bytea


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyEncoding:
    """The encoding of a column's values in COPY's binary format, and the conversion to be applied to them.

    `item` is the big-endian numpy dtype of a scalar or of an array's element. It is empty for values of variable
    length: text and numeric. `form` names the conversion from the type's binary form: `numeric`, `vector`, `halfvec`,
    or a key of TEXT_FORMS in learning/decoding/binaryvalues.py, which for labels converts the elements. `stored` is
    the dtype of an array's element in memory where that differs from `item`.
    """

    kind: ColumnKind
    item: str
    form: str = ""
    stored: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """The description of one column of a relation. `wire` is None for a type that models cannot learn from."""

    name: str
    type: str
    wire: CopyEncoding | None
    not_null: bool = False
    primary_key: bool = False
    identity: bool = False
    generated: bool = False
    dims: int = 0
    number: int = 0  # PostgreSQL's number of the column in its table, which no later column has again


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ColumnData:
    """The values of one column, and a mask of the rows that are NULL.

    `values` has one of these types: int64 or int32; float64 or float32 (the narrow types where the column's SQL type
    is no wider); bool; object (str, also for documents; a sorted tuple of str for labels; bytes for images), or in
    its place CodedTexts, StoredTexts or ByteStrings; float64 seconds, since 1970 for dates and timestamps, since
    midnight for times of day; or, for arrays, float32, float64 or bool of shape (rows, *shape). Decoded images are
    uint8 (rows, channels, height, width). Values at missing positions are undefined. Compute with `numbers()`.
    `missing` may be read-only. If `all_finite`, every value that is not NULL is known to be finite.
    """

    kind: ColumnKind
    values: npt.NDArray[Any]
    missing: Mask
    all_finite: bool = False

    @property
    def present(self) -> bool:
        """Return whether no value is NULL, if the mask tells without a look at all its rows."""
        return len(self.missing) > 0 and not any(self.missing.strides)  # one value stands for all rows

    def take(self, rows: Rows) -> "ColumnData":
        """Return a copy of these rows, in this order."""
        self._will_need(rows)
        return ColumnData(
            kind=self.kind, values=self.values[rows], missing=self.missing[rows], all_finite=self.all_finite
        )

    def stored(self, rows: Rows, storage: RowStorage) -> "ColumnData":
        """Return these rows: a copy in memory, or for a column in a file what reads them from there."""
        if storage is MEMORY:
            return self.take(rows)
        values: Any = self.values
        if isinstance(values, ByteStrings):
            values = values[rows]
        elif isinstance(values, StoredTexts):
            values = values.select(rows)
        elif isinstance(values, CodedTexts):
            values = CodedTexts(SelectedRows(values.codes, rows), values.texts)
        else:
            values = SelectedRows(values, rows)
        missing = np.broadcast_to(np.False_, len(rows)) if self.present else gathered(self.missing, rows, storage)
        return ColumnData(
            kind=self.kind, values=cast(npt.NDArray[Any], values), missing=missing, all_finite=self.all_finite
        )

    def part(self, start: int, end: int) -> "ColumnData":
        """Return a view of the rows from `start` to `end`, without a copy."""
        if isinstance(self._stored, np.ndarray):
            will_need(self._stored, start, min(end, len(self.missing)))
        return ColumnData(
            kind=self.kind,
            values=self.values[start:end],
            missing=self.missing[start:end],
            all_finite=self.all_finite,
        )

    @property
    def _stored(self) -> npt.NDArray[Any]:
        """Return the array that is stored: for texts in a file their numbers."""
        values: Any = self.values
        if isinstance(values, ByteStrings | StoredTexts):
            return values.ends
        return values.codes if isinstance(values, CodedTexts) else self.values

    def _will_need(self, rows: Rows) -> None:
        """Announce the read of ascending rows of a file."""
        if len(rows) and isinstance(self._stored, np.ndarray) and self._stored.base is not None:
            ends = np.append(np.flatnonzero(np.diff(rows) > _GAP_ROWS), len(rows) - 1)
            firsts, lasts = rows[np.append(0, ends[:-1] + 1)].tolist(), rows[ends].tolist()
            for first, last in zip(firsts, lasts, strict=True):
                if first <= last:
                    will_need(self._stored, first, last + 1)

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of one value: () for a scalar."""
        return tuple(self.values.shape[1:])

    def absent(self) -> Mask:
        """Return a mask of the values that a model cannot learn from.

        These are NULL, numbers that are not finite, and arrays that contain a number that is not finite.
        """
        if self.all_finite or not np.issubdtype(self.values.dtype, np.floating):
            return self.missing
        not_finite: Mask = ~np.isfinite(self.values).reshape(len(self.values), -1).all(axis=1)
        return self.missing | not_finite

    def numbers(self, out: npt.NDArray[np.float64] | None = None) -> npt.NDArray[np.float64]:
        """Return the values as float64, NaN where missing; written to `out` if it is given."""
        numbers = np.empty(self.values.shape) if out is None else out
        numbers[...] = self.values
        if self.missing.any():
            numbers[self.missing] = np.nan
        return numbers


@dataclass(frozen=True, slots=True, eq=False)
class ColumnRows:
    """Some rows of a column. They are copied block by block, so they never need to be in memory together."""

    data: ColumnData
    rows: Rows

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def kind(self) -> ColumnKind:
        """Return the column's kind."""
        return self.data.kind

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of one value: () for a scalar."""
        return self.data.shape

    def blocks(self, numbers: int) -> Iterator[ColumnData]:
        """Yield copies of the rows in their order, each with at most this many numbers, or one row."""
        step = max(1, numbers // max(1, math.prod(self.shape)))
        return (self.data.take(self.rows[start:end]) for start, end in row_blocks(len(self.rows), step))


Columns = Mapping[str, ColumnData]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TableData:
    """The rows that were read from a relation in one snapshot, in physical order.

    `row_hash` identifies each row by its primary key, or by its values if there is none. `digest` is the SHA-256 in
    hexadecimal of the names, types and entire contents of the columns. `storage` is the place of the columns.
    `sections` has the half-open range of the rows that come from the table of a part, by part. These rows follow
    those of the relation.
    """

    columns: dict[str, ColumnData]
    described: tuple[Column, ...]
    rows: int
    row_hash: npt.NDArray[np.uint64]
    digest: str
    storage: RowStorage = MEMORY
    sections: dict[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def own_rows(self) -> int:
        """Return the number of rows of the relation itself."""
        return min((start for start, _ in self.sections.values()), default=self.rows)

    @property
    def key(self) -> tuple[str, ...]:
        """Return the columns of the primary key."""
        return tuple(column.name for column in self.described if column.primary_key)

    @property
    def keyed(self) -> bool:
        """Return whether the relation has a primary key."""
        return bool(self.key)

    @property
    def identity(self) -> tuple[str, ...]:
        """Return the columns that `row_hash` is computed from: the primary key, or else all columns read."""
        own = {column.name for column in self.described}
        return self.key or tuple(sorted(name for name in self.columns if name in own))

    @property
    def timed(self) -> tuple[str, ...]:
        """Return the columns of `identity` whose seconds, and not their texts, `row_hash` is computed from."""
        kinds = (ColumnKind.CLOCK, ColumnKind.DURATION)
        return tuple(name for name in self.identity if name in self.columns and self.columns[name].kind in kinds)

    def take(self, rows: Rows) -> dict[str, ColumnData]:
        """Return a copy of these rows of every column, in the table's storage."""
        return {name: data.stored(rows, self.storage) for name, data in self.columns.items()}
