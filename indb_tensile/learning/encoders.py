"""Columns to numbers: one encoder per kind, each fitted once and then plain data.

Whatever is missing (NULL or not finite) becomes the mean of the training rows, which is zero after
standardising, unless the `missing` option says otherwise. Texts and times never need an option.
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
from indb_tensile.learning.columns import ColumnData, Kind, Mask, Rows

Matrix = npt.NDArray[np.float64]
Missing = str | float  # "mean", "median", "zero", "indicator", "error" or the number to put there

FIT_BLOCK_NUMBERS = 1 << 21  # of vectors that are looked at together, in float64
LARGEST = 1e150  # beyond, squares overflow a double
_CALENDAR = ("epoch", "month_sin", "month_cos", "weekday_sin", "weekday_cos")
TIME_PARTS = {Kind.DATE: _CALENDAR, Kind.TIME: (*_CALENDAR, "hour_sin", "hour_cos")}
MISSING_CATEGORY, OTHER_CATEGORY = "(missing)", "(other)"
_NEARLY_UNIQUE = 0.95  # distinct values over rows; names of persons stay below, identifiers with duplicates do not
_FEWEST_UNIQUE = 20  # in fewer rows all values of a useful column may differ


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """All scalar columns side by side, then one 0/1 column for each of `indicators` (positions in `names`)."""

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
        """From the training rows of each column, one at a time, NaN where missing.

        Raises DataError for values too large. A column's mean and scale have the bits that they have in a matrix of
        all columns: numpy adds up each by itself.
        """
        moments: list[tuple[float, float]] = []
        fill: list[float] = []
        for name, column, rule in zip(names, columns, missing, strict=True):
            known = _known(column)[:, None]
            own_mean, own_scale = _moments(known, [name])
            moments.append((float(own_mean[0]), float(own_scale[0])))
            fill.append(float(_fill(rule, own_mean, known)[0]))
        mean, scale = (np.array([pair[at] for pair in moments]) for at in (0, 1))
        keep = ~np.array(standardize, np.bool_)
        return cls(
            names=tuple(names),
            mean=tuple(np.where(keep, 0.0, mean).tolist()),
            scale=tuple(np.where(keep, 1.0, scale).tolist()),
            fill=tuple(fill),
            required=tuple(i for i, rule in enumerate(missing) if rule == "error"),
            indicators=tuple(i for i, rule in enumerate(missing) if rule == "indicator"),
        )

    def apply(self, raw: Matrix) -> Matrix:
        """(rows, columns) with NaN where missing, to (rows, columns + indicators)."""
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
        """The name of each column of the result."""
        return (*self.names, *(f"{self.names[i]} {MISSING_CATEGORY}" for i in self.indicators))

    @cached_property
    def _arrays(self) -> tuple[Matrix, Matrix, Matrix]:
        return np.array(self.mean), np.array(self.scale), np.array(self.fill)


@dataclass(frozen=True, kw_only=True)
class Texts:
    """One column per frequent category, one for every other text, one for missing ones."""

    name: str
    categories: tuple[str, ...]
    required: bool = False

    @classmethod
    def fit(cls, name: str, data: ColumnData, most: int, missing: Missing) -> tuple["Texts", "TextFacts"]:
        """The `most` most frequent categories of the training rows; of equals, the first in text order."""
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
        """(rows, categories + 2), one 1 per row."""
        if self.required:
            require(self.name, data.missing)
        absent = len(self.categories) + 1
        at = [absent if gone else self._place(text) for text, gone in zip(data.values, data.missing, strict=True)]
        hot = np.zeros((len(at), absent + 1))
        hot[np.arange(len(at)), at] = 1.0
        return hot

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """The name of each column of the result."""
        return tuple(f"{self.name} = {c}" for c in (*self.categories, OTHER_CATEGORY, MISSING_CATEGORY))

    def _place(self, text: str) -> int:
        # A char(n) arrives padded in JSON and bare in COPY, where it is cast.
        places, other = self._places, len(self.categories)
        return places.get(text, places.get(text.rstrip(" "), other))

    @cached_property
    def _places(self) -> dict[str, int]:
        return {category: position for position, category in enumerate(self.categories)}


@dataclass(frozen=True, slots=True, kw_only=True)
class TextFacts:
    """How a text column's training rows fit its categories.

    `known_rows` are not NULL, `distinct` is how many values these have, `other_rows` how many of them have none of
    the `categories` that were kept.
    """

    name: str
    rows: int
    known_rows: int
    distinct: int
    categories: int
    other_rows: int

    @property
    def other_share(self) -> float:
        """The share of the known rows that the network cannot tell apart."""
        return self.other_rows / self.known_rows if self.known_rows else 0.0

    @property
    def nearly_unique(self) -> bool:
        """Whether (nearly) each row has a value of its own: nothing can be learned from such a column."""
        return self.known_rows >= _FEWEST_UNIQUE and self.distinct >= _NEARLY_UNIQUE * self.known_rows


@dataclass(frozen=True, kw_only=True)
class Times:
    """A day or a moment: its standardised epoch, and its place in the year, in the week and, of a moment, in the day.

    All of it in UTC, where a timestamp without time zone is taken as it is written; infinity is missing. The hour
    has its minutes and seconds as a fraction. `parts` are the columns of the result; stored models of release 0.1
    do not name them, and know no hour.
    """

    name: str
    mean: float
    scale: float
    required: bool = False
    indicator: bool = False
    parts: tuple[str, ...] = _CALENDAR

    @classmethod
    def fit(cls, name: str, data: ColumnData, missing: Missing) -> "Times":
        """From the training rows."""
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
        """(rows, parts), or one column more with the indicator; a missing moment is all zeros."""
        seconds = data.numbers()
        absent = ~np.isfinite(seconds)
        if self.required:
            require(self.name, absent)
        known = np.where(absent, 0.0, seconds)
        made = {"epoch": (known - self.mean) / self.scale} | _cycles(known)
        matrix = np.where(absent[:, None], 0.0, np.column_stack([made[part] for part in self.parts]))
        return np.column_stack([matrix, absent]) if self.indicator else matrix

    @property
    def outputs(self) -> tuple[str, ...]:
        """The name of each column of the result."""
        own = tuple(f"{self.name} {part}" for part in self.parts)
        return (*own, f"{self.name} {MISSING_CATEGORY}") if self.indicator else own


@dataclass(frozen=True, kw_only=True)
class Arrays:
    """Arrays of one shape, flattened. A vector is standardised by element, an array of more dimensions as a whole.

    `mean` and `scale` hold one number per element or one for all. In an image a pixel that is always dark should
    stay as comparable as its neighbours, hence the common scale.
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
        """From the training rows. Raises DataError for values too large."""
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
        """(rows, elements), or one column more with the indicator of a missing array."""
        if data.shape != self.shape and not data.missing.all():
            own, wanted = " x ".join(map(str, data.shape)), " x ".join(map(str, self.shape))
            raise DataError(f'column "{self.name}" holds arrays of shape {own}; the model was trained on {wanted}')
        if data.shape != self.shape:  # nothing but NULL: no array told its shape
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
        """The name of each column of the result, subscripts from 1 as in SQL."""
        own = tuple(self.name + "".join(f"[{i + 1}]" for i in position) for position in np.ndindex(*self.shape))
        return (*own, f"{self.name} {MISSING_CATEGORY}") if self.indicator else own


def _known(values: Matrix) -> Matrix:
    """NaN for what is not finite."""
    finite = np.isfinite(values)
    return values if finite.all() else np.where(finite, values, np.nan)


def _flattened(data: ColumnData) -> Matrix:
    return data.numbers().reshape(len(data.values), -1)


def _moments_of_all(name: str, data: ColumnData) -> tuple[Matrix, Matrix]:
    """One mean and one scale for all elements of all arrays."""
    return _moments(_known(_flattened(data)).reshape(-1, 1), [name])


def _moments_of_elements(name: str, data: ColumnData) -> tuple[Matrix, Matrix]:
    """Mean and scale of each element of vectors, some elements at a time: a whole copy takes as much memory again.

    The last block is never a single element, whose values numpy would add up in another order.
    """
    rows, width = data.values.shape
    edges = [*range(0, max(width - 1, 1), max(2, FIT_BLOCK_NUMBERS // max(rows, 1))), width]
    parts = []
    for start, end in pairwise(edges):
        block = data.values[:, start:end].astype(np.float64)
        block[data.missing] = np.nan
        parts.append(_moments(_known(block), [name] * (end - start)))
    return np.concatenate([mean for mean, _ in parts]), np.concatenate([scale for _, scale in parts])


def _moments(known: Matrix, names: Sequence[str]) -> tuple[Matrix, Matrix]:
    """Mean and scale by column, NaN ignored: 0 and 1 for a column without a value, scale 1 for a constant one."""
    seen: Mask = np.asarray(np.isfinite(known).any(axis=0))
    largest = np.maximum(np.fmax.reduce(known, axis=0, initial=0.0), -np.fmin.reduce(known, axis=0, initial=0.0))
    if (largest > LARGEST).any():
        at = int(np.argmax(largest))
        hint = "Scale the column in SQL, or leave it out with exclude."
        raise DataError(f'column "{names[at]}" holds {largest[at]:g}, too large to standardise', hint=hint)
    mean, scale = np.zeros(known.shape[1]), np.ones(known.shape[1])
    if seen.any():
        # numpy adds up each of several columns by itself, since what is chosen of them lies column by column.
        scaler = StandardScaler().fit(known if known.shape[1] == 1 else known[:, seen])
        mean[seen], scale[seen] = scaler.mean_, scaler.scale_
    return mean, scale


def _fill(rule: Missing, mean: Matrix | float, raw: Matrix) -> Matrix:
    """What stands for a missing value of each column of `raw`, which is read for the median alone."""
    means = np.atleast_1d(np.asarray(mean, np.float64))
    if rule == "median":
        return np.array([_median(raw[:, column], own) for column, own in enumerate(means)])
    if isinstance(rule, str):
        return np.zeros_like(means) if rule == "zero" else means
    return np.full_like(means, rule)


def _median(values: Matrix, otherwise: float) -> float:
    """The middle of the values that are known; the mean of the middle two where their count is even."""
    known = values[np.isfinite(values)]
    return float(np.median(known)) if len(known) else float(otherwise)


def require(name: str, absent: Mask, rows: Rows | None = None) -> None:
    """Raise DataError where a value is missing; `rows` are the positions in the table, else they count from 0."""
    if absent.any():
        first = int(np.argmax(absent))
        raise DataError(
            f'column "{name}", row {(first if rows is None else int(rows[first])) + 1}: the value is missing',
            detail=f"{int(absent.sum())} rows have no finite value there.",
            hint=f'Fill it, or leave "{name}" out of preprocess => \'{{"missing": ...}}\' to use the default.',
        )


def _cycles(seconds: Matrix) -> dict[str, Matrix]:
    """Sine and cosine of each moment's place in the year, in the week and in the day, in UTC."""
    month, weekday = _calendar(seconds)
    places = {"month": (month, 12), "weekday": (weekday, 7), "hour": (seconds % 86_400 / 3600, 24)}
    made: dict[str, Matrix] = {}
    for name, (place, size) in places.items():
        angle = 2 * np.pi * place / size
        made |= {f"{name}_sin": np.sin(angle), f"{name}_cos": np.cos(angle)}
    return made


def _calendar(seconds: Matrix) -> tuple[Matrix, Matrix]:
    """Month (0: January) and weekday (0: Monday) of each moment, in UTC."""
    days = np.floor(seconds / 86_400).astype(np.int64).astype("datetime64[D]")
    months = days.astype("datetime64[M]").astype(np.int64) % 12
    weekdays = (days.astype(np.int64) + _EPOCH_WEEKDAY) % 7
    return months.astype(np.float64), weekdays.astype(np.float64)


_EPOCH_WEEKDAY = datetime.date(1970, 1, 1).weekday()
