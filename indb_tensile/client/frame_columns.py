"""Columns of DataFrames as columns of PostgreSQL: names, types and values, block by block.

pandas, polars and pyarrow are the user's own installations. A frame exists only if its library is imported already,
so the libraries are looked up among the imported modules, and never imported from here.
"""

import datetime
import decimal
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from sqlalchemy import BigInteger, Boolean, Date, DateTime, Double, Interval, Numeric, Text, Time
from sqlalchemy.dialects.postgresql import ARRAY, JSONB, REAL
from sqlalchemy.types import TypeEngine

from indb_tensile.errors import DataError, RequestError
from indb_tensile.request.json_text import json_text

MOST_NAME_BYTES = 63  # longest name in PostgreSQL, which cuts longer names without an error
ROW_NUMBER = "tensile row"  # the column of a frame's temporary table that numbers its rows, from 0
BLOCK_ROWS = 10_000
Values = list[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameColumn:
    """The name of a column, and its type in PostgreSQL."""

    name: str
    type: TypeEngine[Any]


@runtime_checkable
class Frame(Protocol):
    """A DataFrame of any library."""

    @property
    def rows(self) -> int:
        """Return the number of rows."""
        ...

    @property
    def names(self) -> Sequence[Any]:
        """Return the names of the columns."""
        ...

    def declared(self, name: Any) -> TypeEngine[Any] | None:
        """Return the type that the column declares, or None if only its values tell."""
        ...

    def block(self, name: Any, start: int, end: int) -> Values:
        """Return values as Python objects, None where missing."""
        ...

    def like(self, columns: Mapping[str, Sequence[Any]]) -> Any:
        """Return a frame of the same library with these columns and the same index."""
        ...


def as_frame(table: object) -> Frame | None:
    """Return the frame, or None for any other object."""
    pandas, polars, pyarrow = (sys.modules.get(name) for name in ("pandas", "polars", "pyarrow"))
    if pandas is not None and isinstance(table, pandas.DataFrame):
        return _PandasFrame(table)
    if polars is not None and isinstance(table, polars.LazyFrame):
        return _PolarsFrame(table.collect())
    if polars is not None and isinstance(table, polars.DataFrame):
        return _PolarsFrame(table)
    if pyarrow is not None and isinstance(table, pyarrow.Table | pyarrow.RecordBatch):
        return _ArrowFrame(table)
    return table if isinstance(table, Frame) else None


def described_columns(frame: Frame) -> tuple[FrameColumn, ...]:
    """Return the columns of a frame with their types in PostgreSQL.

    Raises RequestError for a name that no column can have, and DataError for values of no type or of several.
    """
    if not frame.names:
        raise RequestError("the frame has no columns", hint="Give a frame with at least one column.")
    for name in frame.names:
        _check_name(name, frame.names)
    return tuple(FrameColumn(name=name, type=frame.declared(name) or _type_of(frame, name)) for name in frame.names)


def frame_rows(frame: Frame, columns: Sequence[FrameColumn], *, numbered: bool = False) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a frame for COPY; `numbered` adds the row's number, from 0, as the last value."""
    arrays = [isinstance(column.type, JSONB) for column in columns]
    for start in range(0, frame.rows, BLOCK_ROWS):
        end = min(start + BLOCK_ROWS, frame.rows)
        blocks = [
            [None if value is None else _jsonb(value) for value in block] if document else block
            for column, document in zip(columns, arrays, strict=True)
            for block in (frame.block(column.name, start, end),)
        ]
        if numbered:
            blocks.append(list(range(start, end)))
        yield from zip(*blocks, strict=True)


def make_frame(library: str, columns: Mapping[str, Sequence[Any]]) -> Any:
    """Return a new frame of a library, by name. Raises RequestError if it is unknown or not installed."""
    if library not in ("pandas", "polars", "pyarrow"):
        raise RequestError(f'frame is "{library}"', hint="Name one of pandas, polars and pyarrow.")
    from importlib import import_module

    try:
        module: Any = import_module(library)
    except ModuleNotFoundError:
        raise RequestError(
            f"{library} is not installed", hint=f"Install it: pip install {library}; or read the rows one by one."
        ) from None
    return module.table(dict(columns)) if library == "pyarrow" else module.DataFrame(dict(columns))


@dataclass(frozen=True, slots=True)
class _PandasFrame:
    frame: Any

    @property
    def rows(self) -> int:
        return len(self.frame)

    @property
    def names(self) -> Sequence[Any]:
        return list(self.frame.columns)

    def declared(self, name: Any) -> TypeEngine[Any] | None:
        dtype = self.frame[name].dtype
        kind = getattr(dtype, "kind", "O")
        if kind == "M":
            return DateTime(timezone=getattr(dtype, "tz", None) is not None)
        return _NUMPY_TYPES.get(f"{kind}{getattr(dtype, 'itemsize', '')}") or _NUMPY_TYPES.get(kind)

    def block(self, name: Any, start: int, end: int) -> Values:
        values = self.frame[name].iloc[start:end]
        missing = values.isna().to_numpy()
        objects = values.astype(object).tolist()
        return [None if absent else _plain(value) for value, absent in zip(objects, missing, strict=True)]

    def like(self, columns: Mapping[str, Sequence[Any]]) -> Any:
        return type(self.frame)(dict(columns), index=self.frame.index)


@dataclass(frozen=True, slots=True)
class _PolarsFrame:
    frame: Any

    @property
    def rows(self) -> int:
        return int(self.frame.height)

    @property
    def names(self) -> Sequence[Any]:
        return list(self.frame.columns)

    def declared(self, name: Any) -> TypeEngine[Any] | None:
        dtype = str(self.frame.schema[name])
        return DateTime(timezone="time_zone=None" not in dtype) if dtype.startswith("Datetime") else _TYPES.get(dtype)

    def block(self, name: Any, start: int, end: int) -> Values:
        return [_without_nan(value) for value in self.frame[name].slice(start, end - start).to_list()]

    def like(self, columns: Mapping[str, Sequence[Any]]) -> Any:
        return type(self.frame)(dict(columns))


@dataclass(frozen=True, slots=True)
class _ArrowFrame:
    frame: Any

    @property
    def rows(self) -> int:
        return int(self.frame.num_rows)

    @property
    def names(self) -> Sequence[Any]:
        return list(self.frame.schema.names)

    def declared(self, name: Any) -> TypeEngine[Any] | None:
        dtype = str(self.frame.schema.field(name).type)
        return DateTime(timezone="tz=" in dtype) if dtype.startswith("timestamp") else _TYPES.get(dtype)

    def block(self, name: Any, start: int, end: int) -> Values:
        return [_without_nan(value) for value in self.frame.column(name).slice(start, end - start).to_pylist()]

    def like(self, columns: Mapping[str, Sequence[Any]]) -> Any:
        return make_frame("pyarrow", columns)


_INTEGER: TypeEngine[Any] = BigInteger()
_SINGLE: TypeEngine[Any] = REAL()
_DOUBLE: TypeEngine[Any] = Double()
_BOOLEAN: TypeEngine[Any] = Boolean()
_NUMPY_TYPES: dict[str, TypeEngine[Any]] = {
    "b": _BOOLEAN,
    "i": _INTEGER,
    "u": _INTEGER,
    "u8": Numeric(),
    "f2": _SINGLE,
    "f4": _SINGLE,
    "f": _DOUBLE,
    "m": Interval(),
}
# The names that polars and pyarrow give their types.
_TYPES: dict[str, TypeEngine[Any]] = {
    **dict.fromkeys(("Boolean", "bool"), _BOOLEAN),
    **dict.fromkeys(("Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32"), _INTEGER),
    **dict.fromkeys(("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"), _INTEGER),
    **dict.fromkeys(("UInt64", "uint64"), Numeric()),
    **dict.fromkeys(("Float16", "Float32", "halffloat", "float"), _SINGLE),
    **dict.fromkeys(("Float64", "double"), _DOUBLE),
    **dict.fromkeys(("String", "string", "large_string", "string_view"), Text()),
    **dict.fromkeys(("Date", "date32[day]", "date64[ms]"), Date()),
}
# Of Python's types, each before those that it is a kind of: a bool is an int, a datetime is a date.
_PYTHON_TYPES: tuple[tuple[type, TypeEngine[Any]], ...] = (
    (bool, _BOOLEAN),
    (int, _INTEGER),
    (float, _DOUBLE),
    (str, Text()),
    (decimal.Decimal, Numeric()),
    (datetime.datetime, DateTime()),
    (datetime.date, Date()),
    (datetime.time, Time()),
    (datetime.timedelta, Interval()),
    (Mapping, JSONB()),
)


def _type_of(frame: Frame, name: Any) -> TypeEngine[Any]:
    """Return the type that all values of a column have: text for a column without any."""
    type_by_name: dict[str, TypeEngine[Any]] = {}
    for start in range(0, frame.rows, BLOCK_ROWS):
        for value in frame.block(name, start, min(start + BLOCK_ROWS, frame.rows)):
            if value is not None:
                kind = _value_type(name, value)
                type_by_name.setdefault(repr(kind), kind)
    kinds = list(type_by_name.values())
    if len(kinds) == 2 and all(isinstance(kind, BigInteger | Double) for kind in kinds):
        return _DOUBLE
    if len(kinds) == 2 and all(isinstance(kind, ARRAY) and isinstance(kind.item_type, Double) for kind in kinds):
        return kinds[0]
    if len(kinds) > 1:
        raise DataError(
            f'column "{name}" of the frame has values of several types: {", ".join(sorted(type_by_name))}',
            hint="Convert the column to one type.",
        )
    return kinds[0] if kinds else Text()


def _value_type(name: Any, value: Any) -> TypeEngine[Any]:
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        return DateTime(timezone=True)
    if isinstance(value, list | tuple):
        return ARRAY(Text()) if value and isinstance(value[0], str) else ARRAY(_DOUBLE)
    for python_type, kind in _PYTHON_TYPES:
        if isinstance(value, python_type):
            return kind
    raise DataError(
        f'column "{name}" of the frame has a value of type {type(value).__name__}',
        hint="Convert it to a number, a text, a time, a list or a dict, or leave the column out.",
    )


def _check_name(name: Any, names: Sequence[Any]) -> None:
    if not isinstance(name, str):
        raise RequestError(
            f"the frame has a column named {name!r}, of type {type(name).__name__}", hint="Name all columns by texts."
        )
    if not name or "\0" in name or len(name.encode("utf-8", "replace")) > MOST_NAME_BYTES:
        raise RequestError(
            f"the frame has a column named {name[:80]!r}",
            detail=f"A name in PostgreSQL has 1 to {MOST_NAME_BYTES} bytes, and no character of code 0.",
            hint="Rename the column.",
        )
    if list(names).count(name) > 1:
        raise RequestError(f'the frame has {list(names).count(name)} columns "{name}"', hint="Rename all but one.")


def _plain(value: Any) -> Any:
    """Return numpy's scalars and arrays, and pandas's times, as Python's own objects."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    return getattr(value, "to_pydatetime", getattr(value, "to_pytimedelta", lambda: value))()


def _without_nan(value: Any) -> Any:
    if isinstance(value, float) and value != value:
        return None
    return value


def _jsonb(value: Any) -> Any:
    from psycopg.types.json import Jsonb

    return Jsonb(value, dumps=json_text)
