"""Divides the values of input columns into bins, so that predicted rows can be compared with the training rows.

The bins are fitted to the training rows and stored with the version, in two figures: `input_counts` has the names of
the columns and how many training rows are in each bin, and `input_bins` has the bounds of the bins, which are values
of the table. `tensile.stat_drift` compares the counts of the training rows with those of predicted rows.

Numbers have ten bins of about equally many training rows, as is usual for the population stability index; fewer if
there are few training rows. Texts that are categories have a bin each for the most frequent ones, and texts that a
network reads as tokens are measured by their length. A column's last bin has the missing values.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from indb_tensile.errors import DatabaseError
from indb_tensile.learning.encoding.preprocessor import Preprocessor
from indb_tensile.learning.storage.coded_texts import CodedTexts
from indb_tensile.learning.storage.columns import ColumnData, ColumnKind, ColumnRows, Columns, Rows

COUNTS_FIGURE, BINS_FIGURE = "input_counts", "input_bins"  # names in tensile.version_figures

_MOST_ROWS = 20_000  # training rows that the bins are fitted to: the share of a tenth is known to 0.2 percent
_MOST_INTERVALS = 10
_ROWS_OF_INTERVAL = 20  # fewest training rows of an interval on average
_MOST_CATEGORIES = 20
_ROWS_OF_CATEGORY = 5  # fewest training rows of a category with a bin of its own, as is usual for chi-squared tests
_LONGEST_CATEGORY = 64  # characters
_MOST_BYTES = 450_000  # of the bounds as text, the larger figure, which may have 524,288 bytes (sql/20_tables.sql)
_FORMAT = 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_NOT_MEASURED = {
    ColumnKind.IMAGE: "columns of images are not measured",
    ColumnKind.ARRAY: "columns of arrays are not measured",
    ColumnKind.LABELS: "columns of arrays of texts are not measured",
    ColumnKind.DOCUMENT: "columns of json documents are not measured",
}


class Measure(StrEnum):
    """What is measured of a column's values."""

    NUMBER = "number"
    TIME = "time"
    BOOLEAN = "boolean"
    CATEGORY = "category"
    LENGTH = "length"  # characters of a text


@dataclass(frozen=True, slots=True, kw_only=True)
class InputBins:
    """The bins of one column.

    Numbers are in the first bin whose upper bound in `edges` is not lower, and in one more bin above all edges. If
    `below`, a bin for numbers lower than the first edge precedes them: the first edge is then the smallest training
    value. Each of `categories` has a bin, and the other ones have one together, except for booleans. The last bin has
    the missing values.
    """

    feature: str
    measure: Measure
    edges: tuple[float, ...] = ()
    below: bool = False
    categories: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Return the number of bins."""
        if self.measure is Measure.BOOLEAN:
            return 3
        if self.measure is Measure.CATEGORY:
            return len(self.categories) + 2
        return len(self.edges) + self.below + 2

    def counts(self, data: ColumnData) -> npt.NDArray[np.int64]:
        """Return how many values of the column are in each bin."""
        return np.bincount(self._places(data), minlength=self.size).astype(np.int64)

    def shown_edges(self) -> list[str]:
        """Return the edges as texts of few digits, from which `tensile.bin_labels` makes descriptions of the bins."""
        return [self._shown(edge) for edge in self.edges]

    def _places(self, data: ColumnData) -> npt.NDArray[np.int64]:
        """Return the number of each value's bin."""
        if self.measure is Measure.CATEGORY:
            known = {text: place for place, text in enumerate(self.categories)}
            return _of_texts(data, lambda text: known.get(text, len(known)), self.size - 1)
        if self.measure is Measure.LENGTH:
            numbers = _of_texts(data, len, -1).astype(np.float64)
            numbers[numbers < 0] = np.nan
        else:
            numbers = data.numbers()
        places = np.empty(len(numbers), np.int64)
        if self.measure is Measure.BOOLEAN:
            places[:] = numbers != 0
        else:
            places[:] = np.searchsorted(self.edges, numbers, side="left")
            if self.below:
                places += 1
                places[numbers < self.edges[0]] = 0
        places[~np.isfinite(numbers)] = self.size - 1
        return places

    def _shown(self, edge: float) -> str:
        if self.measure is Measure.TIME:
            try:
                return (_EPOCH + timedelta(seconds=edge)).replace(tzinfo=None).isoformat(" ")
            except OverflowError:
                return f"{edge:.15g} s since 1970"
        return f"{edge:.15g}" if edge.is_integer() else f"{edge:.6g}"


class InputCounter:
    """Counts rows by the bins of their columns. `counts` has the bins of the first column, then those of the next."""

    def __init__(self, bins: Sequence[InputBins]) -> None:
        self._bins = tuple(bins)
        self.rows = 0
        self.counts = np.zeros(sum(own.size for own in bins), np.int64)

    def add(self, columns: Columns) -> None:
        """Count the rows of these columns, which have every feature of the bins."""
        begin = 0
        for own in self._bins:
            self.counts[begin : begin + own.size] += own.counts(columns[own.feature])
            begin += own.size
        if self._bins:
            self.rows += len(columns[self._bins[0].feature].missing)

    def take(self) -> tuple[int, list[int]]:
        """Return the number of rows and the counts since the last call, and begin again at nothing."""
        taken = self.rows, self.counts.tolist()
        self.rows, self.counts = 0, np.zeros_like(self.counts)
        return taken


def input_figures(columns: Columns, preprocessor: Preprocessor, train: Rows) -> dict[str, dict[str, Any]]:
    """Return the two figures that describe the training rows, by name. Equal rows give equal figures."""
    rows = _sample(train)
    counted: list[dict[str, Any]] = []
    bounds: list[dict[str, Any]] = []
    size_bytes = 0
    for name in preprocessor.recipe.features:
        reason = _NOT_MEASURED.get(columns[name].kind)
        if reason is None and size_bytes < _MOST_BYTES:
            own = _fitted(name, ColumnRows(columns[name], rows), preprocessor)
            counts = sum((own.counts(block) for block in _blocks(columns[name], rows)), np.zeros(own.size, np.int64))
            count_entry = {"feature": name, "measure": own.measure.value, "counts": counts.tolist()}
            bound_entry = _stored(own)
            size_bytes += len(json.dumps(bound_entry))
            if size_bytes < _MOST_BYTES:
                counted.append(count_entry)
                bounds.append(bound_entry)
                continue
        counted.append({"feature": name, "reason": reason or "the columns before it have as many bins as are stored"})
    return {
        COUNTS_FIGURE: {"format": _FORMAT, "rows": len(rows), "inputs": counted},
        BINS_FIGURE: {"format": _FORMAT, "inputs": bounds},
    }


def read_bins(figure: Mapping[str, Any]) -> tuple[InputBins, ...]:
    """Return the bins of the stored figure `input_bins`. Raises DatabaseError for anything else."""
    try:
        stored = msgspec.convert(figure, _StoredBins)
    except msgspec.ValidationError as error:
        raise DatabaseError(f"the stored bins of a version's inputs cannot be read: {error}") from error
    if stored.format != _FORMAT:
        raise DatabaseError(
            f"the stored bins of a version's inputs have format {stored.format}, this version reads {_FORMAT}"
        )
    return tuple(
        InputBins(
            feature=own.feature,
            measure=own.measure,
            edges=own.edges,
            below=own.below,
            categories=own.categories,
        )
        for own in stored.inputs
    )


def _stored(own: InputBins) -> dict[str, Any]:
    return {
        "feature": own.feature,
        "measure": own.measure.value,
        "edges": list(own.edges),
        "below": own.below,
        "categories": list(own.categories),
        "ends": own.shown_edges(),
    }


def _fitted(name: str, data: ColumnRows, preprocessor: Preprocessor) -> InputBins:
    """Fit the bins of one column to the values of these rows."""
    recipe = preprocessor.recipe
    if data.kind is ColumnKind.BOOLEAN:
        return InputBins(feature=name, measure=Measure.BOOLEAN)
    read_as_tokens = {own.name for own in recipe.tokens} | {own.name for own in recipe.network_tokens}
    if data.kind is ColumnKind.TEXT and name not in read_as_tokens:
        counted = Counter(text for block in _blocks(data.data, data.rows) for text in _texts(block))
        frequent = [text for text, rows in counted.items() if rows >= _ROWS_OF_CATEGORY]
        listed = sorted((text for text in frequent if len(text) <= _LONGEST_CATEGORY), key=lambda t: (-counted[t], t))
        return InputBins(feature=name, measure=Measure.CATEGORY, categories=tuple(listed[:_MOST_CATEGORIES]))
    if data.kind is ColumnKind.TEXT:
        lengths = [len(text) for block in _blocks(data.data, data.rows) for text in _texts(block)]
        return _intervals(name, Measure.LENGTH, np.array(lengths, np.float64))
    measure = Measure.TIME if data.kind in (ColumnKind.DATE, ColumnKind.TIME) else Measure.NUMBER
    numbers = [block.numbers() for block in _blocks(data.data, data.rows)]
    return _intervals(name, measure, np.concatenate(numbers) if numbers else np.empty(0))


def _intervals(name: str, measure: Measure, numbers: npt.NDArray[np.float64]) -> InputBins:
    """Return bins that each have about equally many of the numbers, as far as equal numbers allow that."""
    numbers = np.sort(numbers[np.isfinite(numbers)])
    if not len(numbers):
        return InputBins(feature=name, measure=measure)
    intervals = min(_MOST_INTERVALS, max(2, len(numbers) // _ROWS_OF_INTERVAL))
    # The smallest values that the shares 1/10, 2/10, ... of the rows do not exceed: values of the table, not between.
    ranks = -(-np.arange(1, intervals) * len(numbers) // intervals) - 1
    edges = np.unique(numbers[ranks])
    return InputBins(feature=name, measure=measure, edges=tuple(edges.tolist()), below=bool(edges[0] == numbers[0]))


def _sample(train: Rows) -> Rows:
    """Return the rows that bins are fitted to: all, or as many as suffice, drawn with equal chances."""
    if len(train) <= _MOST_ROWS:
        return train
    places = np.random.default_rng(0).choice(len(train), _MOST_ROWS, replace=False, shuffle=False)
    return train[np.sort(places)]


def _blocks(data: ColumnData, rows: Rows) -> Iterator[ColumnData]:
    return ColumnRows(data, rows).blocks(_MOST_ROWS)


def _texts(data: ColumnData) -> list[str]:
    """Return the texts that are not missing."""
    values = data.values[~data.missing]
    return list(values)


def _of_texts(data: ColumnData, number: Any, of_missing: int) -> npt.NDArray[np.int64]:
    """Return the number of each text, and `of_missing` where it is missing."""
    values: Any = data.values
    if isinstance(values, CodedTexts):  # every text is looked at once
        own = np.fromiter((of_missing if text is None else number(text) for text in values.texts), np.int64)
        numbers = own[values.codes]
    else:
        missing = data.missing.tolist()
        numbers = np.fromiter(
            (of_missing if gone else number(text) for text, gone in zip(values, missing, strict=True)),
            np.int64,
            len(missing),
        )
    return np.where(data.missing, of_missing, numbers).astype(np.int64)


class _StoredColumn(msgspec.Struct, frozen=True, kw_only=True):
    feature: str
    measure: Measure
    edges: tuple[float, ...] = ()
    below: bool = False
    categories: tuple[str, ...] = ()


class _StoredBins(msgspec.Struct, frozen=True, kw_only=True):
    format: int
    inputs: tuple[_StoredColumn, ...]
