"""Encoders that convert columns to numbers, one encoder class per kind of column.

An encoder is fitted once on the training rows; afterwards it is plain data. A missing value (NULL or not finite)
becomes the mean of the training rows, which is zero after standardising, unless the `missing` option says otherwise.
Texts and times have an encoding for missing values without any option.
"""

import datetime
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from sklearn.preprocessing import StandardScaler

from indb_tensile.errors import DataError
from indb_tensile.learning.columns import ColumnData, ColumnKind, Mask, Rows

Matrix = npt.NDArray[np.float64]
Missing = str | float  # "mean", "median", "zero", "indicator", "error", or the replacement itself

FIT_BLOCK_NUMBERS = 1 << 21  # numbers of a block of vectors that is copied to float64 at a time
LARGEST = 1e150  # squares of larger values overflow a double
_CALENDAR = ("epoch", "month_sin", "month_cos", "weekday_sin", "weekday_cos")
TIME_PARTS = {ColumnKind.DATE: _CALENDAR, ColumnKind.TIME: (*_CALENDAR, "hour_sin", "hour_cos")}
MISSING_CATEGORY, OTHER_CATEGORY = "(missing)", "(other)"
# Distinct values per row. Names of persons stay below this bound, identifiers with a few duplicates do not.
_NEARLY_UNIQUE = 0.95
_FEWEST_UNIQUE = 20  # with fewer rows, the values of a useful column may all differ


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """The encoder of all scalar columns together.

    The result has one column per scalar column, then one 0/1 column for each of `indicators` (positions in `names`).
    """

    names: tuple[str, ...]
    mean: tuple[float, ...]
    scale: tuple[float, ...]
    fill: tuple[float, ...]
    required: tuple[int, ...] = ()
    indicators: tuple[int, ...] = ()

    @classmethod
    def fit(
        cls, names: Sequence[str], columns: Iterable[Matrix], standardize: Sequence[bool], missing: Sequence[Missing]
    ) -> "Numbers":
        """Fit the encoder to the training rows of each column, one column at a time, NaN where missing.

        A column's mean and scale are bit for bit those that a matrix of all columns would give, because numpy adds up
        each column separately. Raises DataError for values that are too large.
        """
        moments: list[tuple[float, float]] = []
        fill: list[float] = []
        for name, column, rule in zip(names, columns, missing, strict=True):
            finite = _finite_or_nan(column)[:, None]
            own_mean, own_scale = _moments(finite, [name])
            moments.append((float(own_mean[0]), float(own_scale[0])))
            fill.append(float(_fill(rule, own_mean, finite)[0]))
        mean, scale = (np.array([pair[at] for pair in moments]) for at in (0, 1))
        unscaled = ~np.array(standardize, np.bool_)
        return cls(
            names=tuple(names),
            mean=tuple(np.where(unscaled, 0.0, mean).tolist()),
            scale=tuple(np.where(unscaled, 1.0, scale).tolist()),
            fill=tuple(fill),
            required=tuple(i for i, rule in enumerate(missing) if rule == "error"),
            indicators=tuple(i for i, rule in enumerate(missing) if rule == "indicator"),
        )

    def apply(self, raw: Matrix) -> Matrix:
        """Encode (rows, columns), NaN where missing, as (rows, columns + indicators)."""
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
    def _arrays(self) -> tuple[Matrix, Matrix, Matrix]:
        return np.array(self.mean), np.array(self.scale), np.array(self.fill)


@dataclass(frozen=True, kw_only=True)
class Texts:
    """The one-hot encoder of a text column.

    The result has one column per frequent category, one for all other texts and one for missing texts.
    """

    name: str
    categories: tuple[str, ...]
    required: bool = False

    @classmethod
    def fit(cls, name: str, data: ColumnData, most: int, missing: Missing) -> tuple["Texts", "TextFacts"]:
        """Fit the encoder to the `most` most frequent texts of the training rows.

        Among equally frequent texts the first in text order is kept.
        """
        counts = Counter(data.values[~data.missing].tolist())
        frequent = sorted(counts, key=lambda text: (-counts[text], text))[:most]
        facts = TextFacts(
            name=name,
            rows=len(data.missing),
            known_rows=counts.total(),
            distinct=len(counts),
            categories=len(frequent),
            other_rows=counts.total() - sum(counts[text] for text in frequent),
        )
        return cls(name=name, categories=tuple(sorted(frequent)), required=missing == "error"), facts

    def apply(self, data: ColumnData) -> Matrix:
        """Encode a column as (rows, categories + 2), with a single 1 per row."""
        if self.required:
            require(self.name, data.missing)
        absent = len(self.categories) + 1
        positions = [
            absent if is_missing else self._position(text)
            for text, is_missing in zip(data.values, data.missing, strict=True)
        ]
        hot = np.zeros((len(positions), absent + 1))
        hot[np.arange(len(positions)), positions] = 1.0
        return hot

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """Return the name of each column of the result."""
        return tuple(f"{self.name} = {c}" for c in (*self.categories, OTHER_CATEGORY, MISSING_CATEGORY))

    def _position(self, text: str) -> int:
        # JSON pads a char(n) with blanks. COPY's decoder (binaryvalues.py) strips the blanks.
        positions, other = self._positions, len(self.categories)
        return positions.get(text, positions.get(text.rstrip(" "), other))

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {category: position for position, category in enumerate(self.categories)}


@dataclass(frozen=True, slots=True, kw_only=True)
class TextFacts:
    """How many texts of a column's training rows its categories cover.

    `known_rows` are the rows that are not NULL, `distinct` is the number of different texts in them, and `other_rows`
    is the number of rows whose text is none of the kept `categories`.
    """

    name: str
    rows: int
    known_rows: int
    distinct: int
    categories: int
    other_rows: int

    @property
    def other_share(self) -> float:
        """Return the share of the known rows whose texts the network cannot tell apart."""
        return self.other_rows / self.known_rows if self.known_rows else 0.0

    @property
    def nearly_unique(self) -> bool:
        """Return whether (nearly) every row has a different text.

        Nothing can be learned from such a column.
        """
        return self.known_rows >= _FEWEST_UNIQUE and self.distinct >= _NEARLY_UNIQUE * self.known_rows


@dataclass(frozen=True, kw_only=True)
class Times:
    """The encoder of a date or timestamp column.

    The result has the standardised epoch, the position in the year and in the week, and for a timestamp the position
    in the day. All of these are in UTC; a timestamp without time zone is taken as UTC. Infinity is missing. The hour
    includes minutes and seconds as a fraction. `parts` names the columns of the result; models stored by release 0.1
    have no `parts` and no hour.
    """

    name: str
    mean: float
    scale: float
    required: bool = False
    indicator: bool = False
    parts: tuple[str, ...] = _CALENDAR

    @classmethod
    def fit(cls, name: str, data: ColumnData, missing: Missing) -> "Times":
        """Fit the encoder to the training rows."""
        seconds = data.numbers()
        mean, scale = _moments(np.where(np.isfinite(seconds), seconds, np.nan)[:, None], [name])
        return cls(
            name=name,
            mean=float(mean[0]),
            scale=float(scale[0]),
            required=missing == "error",
            indicator=missing == "indicator",
            parts=TIME_PARTS[data.kind],
        )

    def apply(self, data: ColumnData) -> Matrix:
        """Encode a column as (rows, parts), with one more column for the indicator.

        A missing value is encoded as zeros.
        """
        seconds = data.numbers()
        absent = ~np.isfinite(seconds)
        if self.required:
            require(self.name, absent)
        known = np.where(absent, 0.0, seconds)
        encoded = {"epoch": (known - self.mean) / self.scale} | _cycles(known)
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
    def fit(cls, name: str, data: ColumnData, *, standardize: bool, missing: Missing) -> "Arrays":
        """Fit the encoder to the training rows. Raises DataError for values that are too large."""
        mean, scale = _moments_of_elements(name, data) if len(data.shape) == 1 else _moments_of_all(name, data)
        flat = _flattened(data) if missing == "median" else np.empty((0, 0))
        fill = _fill(missing, mean, flat if len(data.shape) == 1 else flat.reshape(-1, 1))
        if not standardize:
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
            raise DataError(f'column "{self.name}" holds arrays of shape {own}; the model was trained on {expected}')
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


def _finite_or_nan(values: Matrix) -> Matrix:
    """Replace every value that is not finite by NaN."""
    finite = np.isfinite(values)
    return values if finite.all() else np.where(finite, values, np.nan)


def _flattened(data: ColumnData) -> Matrix:
    return data.numbers().reshape(len(data.values), -1)


def _moments_of_all(name: str, data: ColumnData) -> tuple[Matrix, Matrix]:
    """Return one mean and one scale for all elements of all arrays."""
    return _moments(_finite_or_nan(_flattened(data)).reshape(-1, 1), [name])


def _moments_of_elements(name: str, data: ColumnData) -> tuple[Matrix, Matrix]:
    """Return the mean and the scale of each element of one-dimensional arrays.

    Elements are copied in blocks, because a copy of all arrays would double the memory. The last block never has a
    single element, because numpy would add up a single column in another order.
    """
    rows, width = data.values.shape
    edges = [*range(0, max(width - 1, 1), max(2, FIT_BLOCK_NUMBERS // max(rows, 1))), width]
    parts = []
    for start, end in pairwise(edges):
        block = data.values[:, start:end].astype(np.float64)
        block[data.missing] = np.nan
        parts.append(_moments(_finite_or_nan(block), [name] * (end - start)))
    return np.concatenate([mean for mean, _ in parts]), np.concatenate([scale for _, scale in parts])


def _moments(values: Matrix, names: Sequence[str]) -> tuple[Matrix, Matrix]:
    """Return the mean and the scale of each column; NaN is ignored.

    A column without values gets mean 0 and scale 1, a constant column gets scale 1.
    """
    has_value: Mask = np.asarray(np.isfinite(values).any(axis=0))
    largest = np.maximum(np.fmax.reduce(values, axis=0, initial=0.0), -np.fmin.reduce(values, axis=0, initial=0.0))
    if (largest > LARGEST).any():
        column = int(np.argmax(largest))
        hint = "Scale the column in SQL, or leave it out with exclude."
        raise DataError(f'column "{names[column]}" holds {largest[column]:g}, too large to standardise', hint=hint)
    mean, scale = np.zeros(values.shape[1]), np.ones(values.shape[1])
    if has_value.any():
        # numpy adds up each column separately, since the selected columns are stored column by column.
        scaler = StandardScaler().fit(values if values.shape[1] == 1 else values[:, has_value])
        mean[has_value], scale[has_value] = scaler.mean_, scaler.scale_
    return mean, scale


def _fill(rule: Missing, mean: Matrix | float, raw: Matrix) -> Matrix:
    """Return the replacement of a missing value of each column of `raw`.

    `raw` is used for the median only.
    """
    means = np.atleast_1d(np.asarray(mean, np.float64))
    if rule == "median":
        return np.array([_median(raw[:, column], own) for column, own in enumerate(means)])
    if isinstance(rule, str):
        return np.zeros_like(means) if rule == "zero" else means
    return np.full_like(means, rule)


def _median(values: Matrix, otherwise: float) -> float:
    """Return the median of the finite values, or `otherwise` if there are none.

    For an even number of values the median is the mean of the middle two.
    """
    finite = values[np.isfinite(values)]
    return float(np.median(finite)) if len(finite) else float(otherwise)


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
