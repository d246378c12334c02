"""How much memory the rows of a training take, foretold before they are read: from statistics, sizes and types.

The rows are in memory twice, and never both times in full: as columns, while they are read and the encoders are
fitted, then as tensors, whose pages replace those of the columns (encoding.py). The rows of the test part are kept as
they were read, too, so that another version of the model can be judged on them.

Statistics are estimates. What is foretold refuses a table that cannot fit before hours are spent on it; what is read
is counted all the same (columnstore.py).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from indb_tensile.errors import HostMemoryError, MemoryLimitError
from indb_tensile.learning.columns import Column, Kind, Wire
from indb_tensile.learning.columnstore import stored_bytes
from indb_tensile.learning.encoders import FIT_BLOCK_NUMBERS
from indb_tensile.learning.feature_options import FeatureOptions
from indb_tensile.sizes import size

_MIB = 1024 * 1024
# Of each row: its hash, its position among the rows with a target, its position in its part, and temporary memory.
_ROW_BYTES = 8 + 8 + 8 + 8
_TARGET_BYTES = 8
_WORK_BYTES = 64 * _MIB  # at most: blocks in decoding and encoding, and what the C library keeps
# Features of a timestamp, at most: the epoch, sine and cosine of month, weekday and hour, and an indicator.
_TIME_NUMBERS = 8
# Temporary memory while an encoder is fitted. Encoders are fitted one column at a time.
_FIT_BYTES = 40  # of each training row of a scalar column: its float64 value and intermediate results
_FIT_ELEMENT_BYTES = 8  # of each element of a column of vectors: the copy of the training rows
_FIT_BLOCK_BYTES = 32  # of each element of the one block whose means are being computed
_FIT_WHOLE_BYTES = 24  # of each element of arrays with two or more dimensions, which have one common mean
_TEXT_BYTES = 57  # of a str beside its characters
_SHARED_TEXTS = 65_536  # so many different texts are kept once each (copybinary.py)
_ARRAY_HEADER_BYTES = 24  # as an array of one dimension is stored
_POINTER_BYTES = 18  # what a value that is stored out of line counts in the statistics


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnStatistics:
    """What ANALYZE found: the mean width of stored values, how many differ, and the share of NULLs."""

    width_bytes: float
    distinct: float
    null_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """What is known of a table before it is read.

    `analyzed` says whether the rows were counted by ANALYZE or VACUUM; otherwise they are guessed from the size on
    disk. `columns` lacks those without statistics. `shapes` are those of arrays, as soon as one was seen.
    """

    rows: int
    analyzed: bool
    stored_bytes: int
    columns: Mapping[str, ColumnStatistics]
    wires: Mapping[str, Wire]
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def seen(self, shapes: Mapping[str, tuple[int, ...]]) -> "Statistics":
        """The same with the shapes of arrays that have arrived."""
        return replace(self, shapes=shapes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What a trainer may take for the rows: by its setting, at most on this machine, and now."""

    limit_bytes: int
    host_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """What the rows take. `kept_bytes` are of the columns that stay until all is encoded: texts are objects."""

    statistics: Statistics
    columns_bytes: int
    kept_bytes: int
    encoded_bytes: int
    held_out_bytes: int
    fit_bytes: int

    @property
    def peak_bytes(self) -> int:
        """The most at once: while encoders are fitted, when encoding begins, or when it ends."""
        begun = self.columns_bytes + self.held_out_bytes
        ended = self.kept_bytes + self.encoded_bytes + self.held_out_bytes
        work = min(_WORK_BYTES, self.columns_bytes + self.encoded_bytes)
        return max(self.columns_bytes + self.fit_bytes, begun, ended) + self.statistics.rows * _ROW_BYTES + work

    def figures(self) -> dict[str, Any]:
        """For the job's history."""
        return {
            "rows": self.statistics.rows,
            "analyzed": self.statistics.analyzed,
            "stored_bytes": self.statistics.stored_bytes,
            "columns_bytes": self.columns_bytes,
            "encoded_bytes": self.encoded_bytes,
            "held_out_bytes": self.held_out_bytes,
            "peak_bytes": self.peak_bytes,
        }

    def check(self, table: str, memory: Memory) -> None:
        """Raise MemoryLimitError where the rows can never fit, HostMemoryError where they do not fit now."""
        needs = f"the rows of table {table} need about {size(self.peak_bytes)} of memory"
        if self.peak_bytes > memory.limit_bytes:
            raise MemoryLimitError(
                f"{needs}, more than the {size(memory.limit_bytes)} that a trainer may use for them "
                "(read_limit_bytes)",
                detail=f"{self._detail()} {size(memory.free_bytes)} are free now.",
                hint=f"{self._hint()}, or let the administrator raise TENSILE_READ_LIMIT_BYTES.",
            )
        if self.peak_bytes > memory.host_bytes:
            raise MemoryLimitError(
                f"{needs}, more than the {size(memory.host_bytes)} that the machine or its container has",
                detail=f"{self._detail()} {size(memory.free_bytes)} are free now.",
                hint=f"{self._hint()}, or give the machine or the container more memory.",
            )
        if self.peak_bytes > memory.free_bytes:
            raise HostMemoryError(
                f"{needs}, and {size(memory.free_bytes)} are free now",
                detail=f"{self._detail()} The limit for a trainer is {size(memory.limit_bytes)} (read_limit_bytes).",
                hint=f"{self._hint()}, let fewer jobs run at a time (max_jobs), or give the machine more memory.",
            )

    def _detail(self) -> str:
        told = (
            "by its statistics" if self.statistics.analyzed else "guessed from its size, since it was never analyzed"
        )
        return (
            f"About {self.statistics.rows} rows, {told}: {size(self.columns_bytes)} as they are read, "
            f"{size(self.encoded_bytes)} encoded, {size(self.held_out_bytes)} held out to judge by; on disk "
            f"the table takes {size(self.statistics.stored_bytes)}."
        )

    def _hint(self) -> str:
        first = "" if self.statistics.analyzed else "Run ANALYZE on the table, so that its rows are known; "
        way = "leave columns out with exclude, train on a sample (create table ... as select ... tablesample)"
        return first + way if first else way[0].upper() + way[1:]


def footprint(
    statistics: Statistics, *, target: str, described: Sequence[Column], options: FeatureOptions, test_size: float
) -> Footprint:
    """What the columns of `statistics.wires` take in a training with this target.

    Columns of the key that are no features only travel. Arrays of which neither statistics nor a value tell the shape
    count nothing: they are counted when the first has arrived.
    """
    rows, keys = statistics.rows, {column.name for column in described if column.primary_key}
    kept_names = [name for name in statistics.wires if name not in keys or name == target]
    columns = {name: _column_bytes(statistics, name) for name in kept_names}
    texts = sum(columns[name] for name in kept_names if statistics.wires[name].kind is Kind.TEXT)
    width = sum(_width(statistics, name, options) for name in kept_names if name != target)
    columns_bytes, train_rows = sum(columns.values()), round(rows * (1 - test_size))
    return Footprint(
        statistics=statistics,
        columns_bytes=columns_bytes,
        kept_bytes=texts + columns.get(target, 0),
        encoded_bytes=rows * (4 * width + _TARGET_BYTES),
        held_out_bytes=round(test_size * columns_bytes),
        fit_bytes=max((_fit_bytes(statistics, name, train_rows) for name in kept_names), default=0),
    )


def _fit_bytes(statistics: Statistics, name: str, train_rows: int) -> int:
    """What fitting the encoder of this column takes beside the column."""
    numbers, shape = train_rows * _elements(statistics, name), statistics.shapes.get(name, ())
    if not numbers:
        return train_rows * _FIT_BYTES
    if len(shape) > 1:
        return numbers * _FIT_WHOLE_BYTES
    return numbers * _FIT_ELEMENT_BYTES + min(numbers, FIT_BLOCK_NUMBERS) * _FIT_BLOCK_BYTES


def _column_bytes(statistics: Statistics, name: str) -> int:
    wire, told, rows = statistics.wires[name], statistics.columns.get(name), statistics.rows
    mask_bytes = rows if told is not None and told.null_share > 0 else 0
    if wire.kind is Kind.TEXT:
        width_bytes, distinct = (32.0, 0.0) if told is None else (told.width_bytes, told.distinct)
        texts = distinct if distinct <= _SHARED_TEXTS else rows
        return round(8 * rows + texts * (_TEXT_BYTES + width_bytes)) + mask_bytes
    return rows * stored_bytes(wire) * (_elements(statistics, name) if wire.kind is Kind.ARRAY else 1) + mask_bytes


def _elements(statistics: Statistics, name: str) -> int:
    """Numbers in one array of the column; 0 for another column, and where nobody knows."""
    wire, told, shape = statistics.wires[name], statistics.columns.get(name), statistics.shapes.get(name)
    if wire.kind is not Kind.ARRAY:
        return 0
    if shape is not None:
        return int(np.prod(shape))
    if told is None or told.width_bytes <= _POINTER_BYTES or not wire.item:
        return 0
    return max(0, round((told.width_bytes - _ARRAY_HEADER_BYTES) / np.dtype(wire.item).itemsize))


def _width(statistics: Statistics, name: str, options: FeatureOptions) -> int:
    """How many numbers of a row's tensor come of this column."""
    told, kind = statistics.columns.get(name), statistics.wires[name].kind
    indicator = int(options.rule(name, kind) == "indicator")
    match kind:
        case Kind.TEXT:
            most = options.most_categories(name)
            return 2 + (most if told is None else min(most, round(told.distinct)))
        case Kind.INTEGER | Kind.FLOAT | Kind.BOOLEAN:
            return 1 + indicator
        case Kind.ARRAY:
            return _elements(statistics, name) + indicator
        case _:
            return _TIME_NUMBERS
