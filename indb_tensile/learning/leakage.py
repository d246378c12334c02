"""Columns that tell what no new row will tell: keys, row counters, and columns that give the target away.

Each finding is a property that every part of the rows shares with the whole: where some thousands of rows contradict
it, the whole need not be looked at. A column that orders or determines the target by accident, as any column of three
rows may, is told apart by how probable that accident is.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from indb_tensile.job import Task
from indb_tensile.learning.columns import ColumnData, Columns, Kind, Rows

Codes = npt.NDArray[np.int64]

KEY = "key"  # another value in each row
COUNTER = "counter"  # greater in each row than in the row before
EQUAL = "equal"  # the target's own values
ORDERING = "ordering"  # in order with the target: no two values of the target overlap in it
DETERMINING = "determining"  # each of its values has one value of the target
MISSING_WITH = "missing with"  # missing with certain values of the target, and only with these

_LOOKED_AT = 10_000  # rows at first
_FEWEST_ROWS = 20  # fewer may be unique or in order for no reason
_LOG_ACCIDENT = math.log(1e-6)  # a finding that is more probable than this by accident is none
_NUMERIC = (Kind.INTEGER, Kind.FLOAT, Kind.DATE, Kind.TIME)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What is suspicious of one column."""

    column: str
    kind: str


def findings(columns: Columns, features: Sequence[str], target: str, task: Task, known: Rows) -> tuple[Finding, ...]:
    """What the features of the rows in `known` give away, in the features' order. Arrays are not looked at."""
    found = []
    for name in features:
        if columns[name].kind is Kind.ARRAY:
            continue
        few = known[:: max(1, len(known) // _LOOKED_AT)]
        kinds = _suspicions(columns[name].take(few), columns[target].take(few), task)
        if kinds and len(few) < len(known):
            kinds = _suspicions(columns[name].take(known), columns[target].take(known), task)
        found += [Finding(column=name, kind=kind) for kind in kinds]
    return tuple(found)


def increases(data: ColumnData) -> bool:
    """Whether a column of moments or numbers is never less than in the row before, apart from a few rows."""
    values = data.values[~data.absent()]
    if len(values) < _FEWEST_ROWS or values[0] == values[-1]:
        return False
    steps = np.diff(values)
    return bool((steps >= 0).mean() >= _NEARLY_ALL and (steps > 0).sum() >= _FEWEST_STEPS)


_NEARLY_ALL = 0.95
_FEWEST_STEPS = 3


def _suspicions(data: ColumnData, target: ColumnData, task: Task) -> list[str]:
    absent = data.absent()
    if len(absent) < _FEWEST_ROWS:
        return []
    goal = _codes(target)
    kinds = [MISSING_WITH] if absent.any() and _determines(absent.astype(np.int64), goal) else []
    present = np.flatnonzero(~absent)
    if len(present) < _FEWEST_ROWS:
        return kinds
    data, target, goal = data.take(present), target.take(present), np.unique(goal[present], return_inverse=True)[1]
    codes = _codes(data)
    if not absent.any():
        kinds += _of_keys(data, codes)
    if _equal(data, target) and goal.any():
        return [*kinds, EQUAL]
    if data.kind in _NUMERIC and (_sorts(codes, goal) if task is Task.REGRESSION else _separates(codes, goal)):
        return [*kinds, ORDERING]
    if _determines(codes, goal):
        return [*kinds, DETERMINING]
    return kinds


def _of_keys(data: ColumnData, codes: Codes) -> list[str]:
    """Measurements differ from row to row too, so only whole numbers and texts can look like keys."""
    whole = data.kind in (Kind.INTEGER, Kind.TEXT) or (
        data.kind is Kind.FLOAT and bool((data.values == np.floor(data.values)).all())
    )
    if not whole or int(codes.max()) + 1 < len(codes):
        return []
    return [COUNTER if data.kind is not Kind.TEXT and bool((np.diff(data.values) > 0).all()) else KEY]


def _codes(data: ColumnData) -> Codes:
    """A number for each value, from 0; those of numbers and moments in their order."""
    if data.kind is not Kind.TEXT:
        return np.unique(data.values, return_inverse=True)[1].astype(np.int64)
    known: dict[str | None, int] = {}
    return np.fromiter((known.setdefault(text, len(known)) for text in data.values.tolist()), np.int64)


def _equal(data: ColumnData, target: ColumnData) -> bool:
    texts = Kind.TEXT in (data.kind, target.kind)
    return (data.kind == target.kind or not texts) and bool((data.values == target.values).all())


def _sorts(codes: Codes, goal: Codes) -> bool:
    """Whether the target never falls, or never rises, from one value of the column to the next."""
    rising = goal[np.lexsort((goal, codes))]
    falling = goal[np.lexsort((-goal, codes))]
    if (np.diff(rising) < 0).any() and (np.diff(falling) > 0).any():
        return False
    _, pairs = np.unique(codes * (int(goal.max()) + 1) + goal, return_counts=True)
    within = _log_factorials(np.bincount(codes)) - _log_factorials(pairs)
    return within + math.log(2) - _log_arrangements(goal) < _LOG_ACCIDENT


def _separates(codes: Codes, goal: Codes) -> bool:
    """Whether each class has a range of the column's values to itself."""
    ordered = goal[np.lexsort((goal, codes))]
    classes = int(goal.max()) + 1
    if (np.diff(ordered) != 0).sum() != classes - 1 or not _is_function(codes, goal):
        return False
    return math.lgamma(classes + 1) - _log_arrangements(goal) < _LOG_ACCIDENT


def _determines(codes: Codes, goal: Codes) -> bool:
    """Whether each value of the column goes with one value of the target."""
    classes, values = int(goal.max()) + 1, int(codes.max()) + 1
    return values * math.log(classes) - _log_arrangements(goal) < _LOG_ACCIDENT and _is_function(codes, goal)


def _is_function(codes: Codes, goal: Codes) -> bool:
    one = np.empty(int(codes.max()) + 1, np.int64)
    one[codes] = goal
    return bool((one[codes] == goal).all())


def _log_arrangements(goal: Codes) -> float:
    """The logarithm of the number of ways in which these values could be dealt to the rows."""
    return math.lgamma(len(goal) + 1) - _log_factorials(np.bincount(goal))


def _log_factorials(counts: Codes) -> float:
    numbers, repeats = np.unique(counts, return_counts=True)
    pairs = zip(numbers.tolist(), repeats.tolist(), strict=True)
    return math.fsum(times * math.lgamma(number + 1) for number, times in pairs)
