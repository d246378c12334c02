"""Encoders that convert numbers, times and arrays to numbers, one encoder class per kind of column.

An encoder is fitted once on the training rows; afterwards it is plain data. A missing value (NULL or not finite)
becomes the mean of the training rows, which is zero after standardising, unless the `missing` option says otherwise.
Texts have an encoding for missing values without any option (text_encoders.py).
"""

import datetime
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import pairwise

import numpy as np

from indb_tensile.errors import DataError
from indb_tensile.learning.encoding.scalings import Scaling, fit_scaling
from indb_tensile.learning.storage.columns import ColumnData, ColumnKind, ColumnRows, Mask, Rows
from indb_tensile.learning.storage.moments import (
    FIT_BLOCK_NUMBERS,
    Blocks,
    Matrix,
    finite_or_nan,
    median,
    moments,
    moments_by_column,
    most_frequent,
)
from indb_tensile.learning.storage.row_storage import MEMORY, RowStorage

# "mean", "median", "most_frequent", "zero", "indicator", "error", or the replacement: a number, or a text as
# {"constant": ...}
Missing = str | float | dict[str, str]

_CALENDAR = ("epoch", "month_sin", "month_cos", "weekday_sin", "weekday_cos")
TIME_PARTS = {
    ColumnKind.DATE: _CALENDAR,
    ColumnKind.TIME: (*_CALENDAR, "hour_sin", "hour_cos"),
    ColumnKind.CLOCK: ("seconds", "hour_sin", "hour_cos"),
}
MISSING_CATEGORY = "(missing)"


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """The encoder of all scalar columns together.

    The result has one column per scalar column, then one 0/1 column for each of `indicators` (positions in `names`).
    `scalings` are applied first, so `mean`, `scale` and `fill` are those of their results. `durations` are the
    positions of intervals.
    """

    names: tuple[str, ...]
    mean: tuple[float, ...]
    scale: tuple[float, ...]
    fill: tuple[float, ...]
    required: tuple[int, ...] = ()
    indicators: tuple[int, ...] = ()
    durations: tuple[int, ...] = ()
    scalings: dict[str, Scaling] = field(default_factory=dict)

    @classmethod
    def fit(
        cls,
        names: Sequence[str],
        columns: Iterable[ColumnRows],
        standardize: Sequence[bool],
        missing: Sequence[Missing],
        *,
        scaled_by: Sequence[str] = (),
        durations: Sequence[int] = (),
        storage: RowStorage = MEMORY,
    ) -> "Numbers":
        """Fit the encoder to the training rows of each column.

        A column's mean and scale are bit for bit those that the column alone would give, because numpy adds up each
        column separately. Copies that grow with the rows are in `storage`. Raises DataError for values that are
        too large.
        """
        fitting: list[tuple[str, Blocks]] = []
        constants: list[float | None] = []
        scalings: dict[str, Scaling] = {}
        for place, (name, column, rule) in enumerate(zip(names, columns, missing, strict=True)):
            blocks: Blocks = partial(_number_blocks, column)
            constant = _constant(rule, blocks, storage)
            if scaled_by and scaled_by[place] != "standard":
                scalings[name] = fit_scaling(scaled_by[place], blocks, storage)
                blocks = partial(_scaled_blocks, scalings[name], blocks)
                constant = None if constant is None else float(scalings[name].apply(np.array([constant]))[0])
            fitting.append((name, blocks))
            constants.append(constant)
        pairs = list(moments_by_column(fitting))
        fill = [mean if own is None else own for own, (mean, _) in zip(constants, pairs, strict=True)]
        mean, scale = (np.array([pair[at] for pair in pairs]) for at in (0, 1))
        unscaled = ~np.array(standardize, np.bool_)
        return cls(
            names=tuple(names),
            mean=tuple(np.where(unscaled, 0.0, mean).tolist()),
            scale=tuple(np.where(unscaled, 1.0, scale).tolist()),
            fill=tuple(fill),
            required=tuple(i for i, rule in enumerate(missing) if rule == "error"),
            indicators=tuple(i for i, rule in enumerate(missing) if rule == "indicator"),
            durations=tuple(durations),
            scalings=scalings,
        )

    def apply(self, raw: Matrix) -> Matrix:
        """Encode (rows, columns), NaN where missing, as (rows, columns + indicators)."""
        if self.scalings:
            raw = np.where(np.isfinite(raw), raw, np.nan)  # an infinite value is missing, also after its scaling
            for place, scaling in self._placed_scalings:
                raw[:, place] = scaling.apply(raw[:, place])
        mean, scale, fill = self._arrays
        absent = ~np.isfinite(raw)
        if not absent.any() and not self.indicators:
            scaled: Matrix = raw - mean
            scaled /= scale
            return scaled
        for position in self.required:
            require(self.names[position], absent[:, position])
        scaled = (np.where(absent, fill, raw) - mean) / scale
        return np.hstack([scaled, absent[:, list(self.indicators)].astype(np.float64)])

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """Return the name of each column of the result."""
        return (*self.names, *(f"{self.names[i]} {MISSING_CATEGORY}" for i in self.indicators))

    @cached_property
    def _placed_scalings(self) -> tuple[tuple[int, Scaling], ...]:
        return tuple((self.names.index(name), scaling) for name, scaling in self.scalings.items())

    @cached_property
    def _arrays(self) -> tuple[Matrix, Matrix, Matrix]:
        return np.array(self.mean), np.array(self.scale), np.array(self.fill)


@dataclass(frozen=True, kw_only=True)
class Times:
    """The encoder of a column of dates, timestamps or times of day.

    The result has the standardised epoch, the position in the year and in the week, and for a timestamp the position
    in the day. All of these are in UTC; a timestamp without time zone is taken as UTC. Infinity is missing. The hour
    includes minutes and seconds as a fraction. `parts` names the columns of the result; models stored by release 0.1
    have no `parts` and no hour. `fill` replaces a missing value, which otherwise becomes zeros.
    """

    name: str
    mean: float
    scale: float
    required: bool = False
    indicator: bool = False
    parts: tuple[str, ...] = _CALENDAR
    fill: float | None = None

    @classmethod
    def fit(cls, name: str, data: ColumnRows, missing: Missing, storage: RowStorage = MEMORY) -> "Times":
        """Fit the encoder to the training rows. Copies that grow with the rows are in `storage`."""
        blocks = partial(_number_blocks, data)
        mean, scale = moments((block[:, None] for block in blocks()), [name])
        return cls(
            name=name,
            mean=float(mean[0]),
            scale=float(scale[0]),
            required=missing == "error",
            indicator=missing == "indicator",
            parts=TIME_PARTS[data.kind],
            fill=_constant(missing, blocks, storage),
        )

    def apply(self, data: ColumnData) -> Matrix:
        """Encode a column as (rows, parts), with one more column for the indicator.

        A missing value is encoded as zeros.
        """
        seconds = data.numbers()
        absent = ~np.isfinite(seconds)
        if self.required:
            require(self.name, absent)
        known = np.where(absent, 0.0 if self.fill is None else self.fill, seconds)
        if self.fill is not None:
            absent = np.zeros_like(absent)
        scaled = (known - self.mean) / self.scale
        encoded = {"epoch": scaled, "seconds": scaled} | _cycles(known)
        matrix = np.where(absent[:, None], 0.0, np.column_stack([encoded[part] for part in self.parts]))
        return np.column_stack([matrix, absent]) if self.indicator else matrix

    @property
    def outputs(self) -> tuple[str, ...]:
        """Return the name of each column of the result."""
        own = tuple(f"{self.name} {part}" for part in self.parts)
        return (*own, f"{self.name} {MISSING_CATEGORY}") if self.indicator else own


@dataclass(frozen=True, kw_only=True)
class Arrays:
    """The encoder of a column of arrays of one shape, which it flattens.

    One-dimensional arrays are standardised per element. Arrays of more dimensions are standardised as a whole: in an
    image, a pixel that is always dark should stay comparable with its neighbours. `mean` and `scale` contain one
    number per element or one number for all.
    """

    name: str
    shape: tuple[int, ...]
    mean: tuple[float, ...]
    scale: tuple[float, ...]
    fill: tuple[float, ...]
    required: bool = False
    indicator: bool = False

    @classmethod
    def fit(
        cls, name: str, data: ColumnRows, *, standardize: bool, missing: Missing, storage: RowStorage = MEMORY
    ) -> "Arrays":
        """Fit the encoder to the training rows. Raises DataError for values that are too large."""
        width = data.shape[0] if len(data.shape) == 1 else 1  # of the numbers that are standardised separately

        def blocks() -> Iterator[Matrix]:
            return (block.reshape(-1, width) for block in _number_blocks(data))

        if len(data.shape) == 1 and len(data) * width <= _SEPARATE_NUMBERS:
            mean, scale = _moments_of_elements(name, data)
        else:
            mean, scale = moments(blocks(), [name] * width)
        elements = [partial(_column_blocks, blocks, element) for element in range(width)]
        fill = _fill(missing, mean, partial(_medians_of, elements, mean, storage))
        if not standardize or data.data.values.dtype == np.bool_:  # booleans are 0 and 1, so they are not scaled
            mean, scale = np.zeros_like(mean), np.ones_like(scale)
        return cls(
            name=name,
            shape=data.shape,
            mean=tuple(mean.tolist()),
            scale=tuple(scale.tolist()),
            fill=tuple(fill.tolist()),
            required=missing == "error",
            indicator=missing == "indicator",
        )

    def apply(self, data: ColumnData) -> Matrix:
        """Encode a column as (rows, elements), with one more column for the indicator of a missing array."""
        if data.shape != self.shape and not data.missing.all():
            own, expected = " x ".join(map(str, data.shape)), " x ".join(map(str, self.shape))
            raise DataError(
                f'column "{self.name}" holds arrays of shape {own}; the model was trained on {expected}',
                hint="Give arrays of that shape, or NULL, or train the model on the arrays as they are now.",
            )
        if data.shape != self.shape:  # every array is NULL, so the column has no shape
            flat = np.full((len(data.missing), int(np.prod(self.shape))), np.nan)
        else:
            flat = _flattened(data)
        absent = ~np.isfinite(flat)
        if self.required:
            require(self.name, absent.any(axis=1))
        scaled = (np.where(absent, np.array(self.fill), flat) - np.array(self.mean)) / np.array(self.scale)
        return np.column_stack([scaled, data.missing]) if self.indicator else scaled

    @property
    def outputs(self) -> tuple[str, ...]:
        """Return the name of each column of the result. Subscripts count from 1 as in SQL."""
        own = tuple(self.name + "".join(f"[{i + 1}]" for i in position) for position in np.ndindex(*self.shape))
        return (*own, f"{self.name} {MISSING_CATEGORY}") if self.indicator else own


# The elements of arrays with at most this many numbers in all are fitted a few elements at a time, all rows at once,
# which gives the bits of release 0.1. Each such block reads all arrays, which larger ones would make slow.
_SEPARATE_NUMBERS = 1 << 26


def _moments_of_elements(name: str, column: ColumnRows) -> tuple[Matrix, Matrix]:
    """Return the mean and the scale of each element of one-dimensional arrays.

    The last block never has a single element, because numpy would add up a single column in another order.
    """
    width, data = column.shape[0], column.data
    missing = data.missing[column.rows]
    edges = [*range(0, max(width - 1, 1), max(2, FIT_BLOCK_NUMBERS // max(len(column), 1))), width]
    parts = []
    for start, end in pairwise(edges):
        block = data.values[column.rows, start:end].astype(np.float64)
        block[missing] = np.nan
        parts.append(moments([finite_or_nan(block)], [name] * (end - start)))
    return np.concatenate([mean for mean, _ in parts]), np.concatenate([scale for _, scale in parts])


def _number_blocks(column: ColumnRows) -> Iterator[Matrix]:
    """Yield the rows of a column as float64, NaN where missing or not finite."""
    return (finite_or_nan(block.numbers()) for block in column.blocks(FIT_BLOCK_NUMBERS))


def _scaled_blocks(scaling: Scaling, blocks: Blocks) -> Iterator[Matrix]:
    return (scaling.apply(block) for block in blocks())


def _column_blocks(blocks: Blocks, column: int) -> Iterator[Matrix]:
    return (block[:, column] for block in blocks())


def _medians_of(columns: Iterable[Blocks], means: Matrix, storage: RowStorage) -> Iterator[float]:
    """Yield the median of each column, or its mean if the column has no value."""
    return (median(blocks, float(mean), storage) for blocks, mean in zip(columns, means, strict=True))


def _flattened(data: ColumnData) -> Matrix:
    return data.numbers().reshape(len(data.values), -1)


def _fill(rule: Missing, mean: Matrix, medians: Callable[[], Iterable[float]]) -> Matrix:
    """Return the replacement of a missing value of each column. `medians` is called for that rule only."""
    if rule == "median":
        return np.fromiter(medians(), np.float64, len(mean))
    if isinstance(rule, str):
        return np.zeros_like(mean) if rule == "zero" else mean
    assert not isinstance(rule, dict)  # the rules of requests refuse a text for an array
    return np.full_like(mean, rule)


def _constant(rule: Missing, blocks: Blocks, storage: RowStorage) -> float | None:
    """Return the replacement of a missing value of one column, or None for the mean."""
    match rule:
        case "median":
            middle = median(blocks, np.nan, storage)
            return None if np.isnan(middle) else middle
        case "most_frequent":
            return most_frequent(blocks, storage)
        case "zero":
            return 0.0
        case float() | int():
            return float(rule)
        case _:
            return None


def require(name: str, absent: Mask, rows: Rows | None = None) -> None:
    """Raise DataError if a value is missing.

    `rows` are the positions in the table, for the message; without `rows` positions count from 0.
    """
    if absent.any():
        first = int(np.argmax(absent))
        raise DataError(
            f'column "{name}", row {(first if rows is None else int(rows[first])) + 1}: the value is missing',
            detail=f"{int(absent.sum())} rows have no finite value there.",
            hint=f'Fill it, or leave "{name}" out of preprocess => \'{{"missing": ...}}\' to use the default.',
        )


def _cycles(seconds: Matrix) -> dict[str, Matrix]:
    """Return sine and cosine of each time's position in the year, in the week and in the day, in UTC."""
    month, weekday = _calendar(seconds)
    positions = {"month": (month, 12), "weekday": (weekday, 7), "hour": (seconds % 86_400 / 3600, 24)}
    cycles: dict[str, Matrix] = {}
    for name, (position, size) in positions.items():
        angle = 2 * np.pi * position / size
        cycles |= {f"{name}_sin": np.sin(angle), f"{name}_cos": np.cos(angle)}
    return cycles


def _calendar(seconds: Matrix) -> tuple[Matrix, Matrix]:
    """Return the month (0: January) and the weekday (0: Monday) of each time, in UTC."""
    days = np.floor(seconds / 86_400).astype(np.int64).astype("datetime64[D]")
    months = days.astype("datetime64[M]").astype(np.int64) % 12
    weekdays = (days.astype(np.int64) + _EPOCH_WEEKDAY) % 7
    return months.astype(np.float64), weekdays.astype(np.float64)


_EPOCH_WEEKDAY = datetime.date(1970, 1, 1).weekday()
