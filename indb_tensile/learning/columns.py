"""Columns as they are described by PostgreSQL and as they lie in memory."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.int64]  # positions of rows in a table
Mask = npt.NDArray[np.bool_]


class Kind(StrEnum):
    """How a column is understood, whatever its exact SQL type."""

    INTEGER = "integer"
    FLOAT = "float"
    BOOLEAN = "boolean"
    TEXT = "text"
    DATE = "date"  # a day
    TIME = "time"  # a moment: a timestamp, of any zone
    ARRAY = "array"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """How a value travels in COPY's binary format, and what becomes of it.

    `item` is the big-endian numpy dtype of a scalar or of an array's element, empty where the length varies: text
    and numeric. `form` names the conversion from a type's binary form (learning/binaryvalues.py): `numeric`, or one
    of its TEXT_FORMS. `stored` is the dtype of an array's element in memory where `item` is another one.
    """

    kind: Kind
    item: str
    form: str = ""
    stored: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of a relation. `wire` is None for a type that cannot be learned from."""

    name: str
    type: str
    wire: Wire | None
    not_null: bool = False
    primary_key: bool = False
    identity: bool = False
    generated: bool = False
    dims: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ColumnData:
    """The values of one column and which of them are NULL.

    `values` is int64 or int32, float64 or float32 (the narrow ones where the column's type is no wider), bool,
    object (str), float64 seconds since 1970 (dates and times), or for arrays float32 or float64 of shape (rows,
    *shape). What lies at a missing position is of no meaning. Compute with `numbers()`. `missing` may be read-only.
    """

    kind: Kind
    values: npt.NDArray[Any]
    missing: Mask

    def take(self, rows: Rows) -> "ColumnData":
        """These rows only, in this order."""
        return ColumnData(kind=self.kind, values=self.values[rows], missing=self.missing[rows])

    def part(self, start: int, end: int) -> "ColumnData":
        """The rows from `start` to `end`, not copied."""
        return ColumnData(kind=self.kind, values=self.values[start:end], missing=self.missing[start:end])

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one value: () for a scalar."""
        return tuple(self.values.shape[1:])

    def absent(self) -> Mask:
        """Where there is nothing to learn from: NULL, or a number that is not finite (in an array: any)."""
        if not np.issubdtype(self.values.dtype, np.floating):
            return self.missing
        strange: Mask = ~np.isfinite(self.values).reshape(len(self.values), -1).all(axis=1)
        return self.missing | strange

    def numbers(self, out: npt.NDArray[np.float64] | None = None) -> npt.NDArray[np.float64]:
        """The values as float64, NaN where missing; in `out`, where that is given."""
        numbers = np.empty(self.values.shape) if out is None else out
        numbers[...] = self.values
        if self.missing.any():
            numbers[self.missing] = np.nan
        return numbers


Columns = Mapping[str, ColumnData]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Table:
    """What was read of a relation in one snapshot, in physical order.

    `row_hash` identifies each row by its primary key, else by its values; `digest` is the SHA-256 of names,
    types and all content in hexadecimal.
    """

    columns: dict[str, ColumnData]
    described: tuple[Column, ...]
    rows: int
    row_hash: npt.NDArray[np.uint64]
    digest: str

    @property
    def key(self) -> tuple[str, ...]:
        """The columns of the primary key."""
        return tuple(column.name for column in self.described if column.primary_key)

    @property
    def keyed(self) -> bool:
        """Whether a primary key tells the rows apart."""
        return bool(self.key)

    @property
    def identity(self) -> tuple[str, ...]:
        """The columns that `row_hash` is made of: the key, else all that were read."""
        return self.key or tuple(sorted(self.columns))

    def take(self, rows: Rows) -> dict[str, ColumnData]:
        """These rows of every column."""
        return {name: data.take(rows) for name, data in self.columns.items()}
