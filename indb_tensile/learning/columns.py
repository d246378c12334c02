"""Column descriptions as PostgreSQL gives them, and column values as they are stored in memory."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.int64]  # positions of rows in a table
Mask = npt.NDArray[np.bool_]


class ColumnKind(StrEnum):
    """The kinds of columns that the package distinguishes. Several SQL types share a kind."""

    INTEGER = "integer"
    FLOAT = "float"
    BOOLEAN = "boolean"
    TEXT = "text"
    DATE = "date"
    TIME = "time"  # a timestamp, with or without time zone
    ARRAY = "array"


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyEncoding:
    """The encoding of a column's values in COPY's binary format, and the conversion to be applied to them.

    `item` is the big-endian numpy dtype of a scalar or of an array's element. It is empty for values of variable
    length: text and numeric. `form` names the conversion from the type's binary form (learning/binaryvalues.py):
    `numeric`, or a key of its TEXT_FORMS. `stored` is the dtype of an array's element in memory where that differs
    from `item`.
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
    is no wider); bool; object (str); float64 seconds since 1970 for dates and times; or, for arrays, float32 or
    float64 of shape (rows, *shape). Values at missing positions are undefined. Compute with `numbers()`. `missing`
    may be read-only.
    """

    kind: ColumnKind
    values: npt.NDArray[Any]
    missing: Mask

    def take(self, rows: Rows) -> "ColumnData":
        """Return a copy of these rows, in this order."""
        return ColumnData(kind=self.kind, values=self.values[rows], missing=self.missing[rows])

    def part(self, start: int, end: int) -> "ColumnData":
        """Return a view of the rows from `start` to `end`, without a copy."""
        return ColumnData(kind=self.kind, values=self.values[start:end], missing=self.missing[start:end])

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of one value: () for a scalar."""
        return tuple(self.values.shape[1:])

    def absent(self) -> Mask:
        """Return a mask of the values that a model cannot learn from.

        These are NULL, numbers that are not finite, and arrays that contain a number that is not finite.
        """
        if not np.issubdtype(self.values.dtype, np.floating):
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


Columns = Mapping[str, ColumnData]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TableData:
    """The rows that were read from a relation in one snapshot, in physical order.

    `row_hash` identifies each row by its primary key, or by its values if there is none. `digest` is the SHA-256 in
    hexadecimal of the names, types and entire contents of the columns.
    """

    columns: dict[str, ColumnData]
    described: tuple[Column, ...]
    rows: int
    row_hash: npt.NDArray[np.uint64]
    digest: str

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
        return self.key or tuple(sorted(self.columns))

    def take(self, rows: Rows) -> dict[str, ColumnData]:
        """Return a copy of these rows of every column."""
        return {name: data.take(rows) for name, data in self.columns.items()}
