"""Finds columns that a model should not learn from: keys, row counters, and columns that reveal the target.

Every finding is a property that holds for a sample of the rows if it holds for all rows. So a column is checked on
some thousands of rows first, and on more only if the sample does not contradict the finding: on all rows, or on a
million rows of a larger table. A column may order or determine the target by accident, as almost any column of three
rows does. A finding is ignored if such an accident is likely.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from indb_tensile.job import Task
from indb_tensile.learning.storage.columns import ColumnData, ColumnKind, Columns, Rows

Codes = npt.NDArray[np.int64]

KEY = "key"  # a different value in each row
COUNTER = "counter"  # greater in each row than in the row before
EQUAL = "equal"  # the values of the target
ORDERING = "ordering"  # ordered like the target: different target values have disjoint ranges of the column
DETERMINING = "determining"  # each value of the column occurs with a single value of the target
MISSING_WITH = "missing with"  # missing for certain values of the target and for no others

_SAMPLE_ROWS = 10_000  # rows of the sample
_MOST_ROWS = 1 << 20
_RUN_ROWS = 64
_FEWEST_ROWS = 20  # fewer rows may be unique or ordered by accident
_LOG_ACCIDENT = math.log(1e-6)  # findings that are more probable by accident are ignored
_NUMERIC = (ColumnKind.INTEGER, ColumnKind.FLOAT, ColumnKind.DATE, ColumnKind.TIME, ColumnKind.DURATION)
_UNCHECKED = (ColumnKind.ARRAY, ColumnKind.LABELS, ColumnKind.DOCUMENT, ColumnKind.IMAGE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A suspicious property of one column. `kind` is one of the constants above."""

    column: str
    kind: str


def findings(columns: Columns, features: Sequence[str], target: str, task: Task, known: Rows) -> tuple[Finding, ...]:
    """Return the suspicious properties of the features, in the order of the features.

    Only the rows at the positions `known` are checked. Arrays and documents are not checked. Of a target that is an
    array, each of the first elements is a target of its own; sets of labels are not checked.
    """
    results = []
    known = at_most(known)
    sample = _sample(known)
    sampled_targets = _elements(columns[target].take(sample))
    for name in features:
        if columns[name].kind in _UNCHECKED:
            continue
        kinds = _suspicions_of_all(columns[name].take(sample), sampled_targets, task)
        if kinds and len(sample) < len(known):
            kinds = _suspicions_of_all(columns[name].take(known), _elements(columns[target].take(known)), task)
        results += [Finding(column=name, kind=kind) for kind in kinds]
    return tuple(results)


_MOST_ELEMENTS = 8  # most elements of an array target that are compared with the features


def _elements(target: ColumnData) -> list[ColumnData]:
    """Return the targets that features are compared with."""
    if target.kind is ColumnKind.LABELS:
        return []
    if target.kind is not ColumnKind.ARRAY:
        return [target]
    kind = ColumnKind.BOOLEAN if target.values.dtype == np.bool_ else ColumnKind.FLOAT
    flat = target.values.reshape(len(target.missing), -1)
    return [
        ColumnData(kind=kind, values=flat[:, place], missing=target.missing)
        for place in range(min(flat.shape[1], _MOST_ELEMENTS))
    ]


def _suspicions_of_all(data: ColumnData, targets: Sequence[ColumnData], task: Task) -> list[str]:
    """Return the kinds of findings about one column and any of the targets."""
    kinds = [kind for target in targets for kind in _suspicions(data, target, task)]
    return list(dict.fromkeys(kinds))


def _sample(known: Rows) -> Rows:
    """Return evenly spaced rows, or of a large table, whose rows may be on a disk, evenly spaced runs of rows."""
    if len(known) <= _MOST_ROWS:
        return known[:: max(1, len(known) // _SAMPLE_ROWS)]
    starts = np.linspace(0, len(known) - _RUN_ROWS, _SAMPLE_ROWS // _RUN_ROWS).astype(np.int64)
    rows: Rows = known[(starts[:, None] + np.arange(_RUN_ROWS)).flatten()]
    return rows


def at_most(rows: Rows) -> Rows:
    """Return evenly spaced rows, at most `_MOST_ROWS`."""
    return rows[:: -(-len(rows) // _MOST_ROWS) or 1]


def increases(data: ColumnData) -> bool:
    """Return whether a column of numbers or times increases with the rows.

    A few rows may be less than the row before. Equal neighbours are allowed.
    """
    values = data.values[~data.absent()]
    if len(values) < _FEWEST_ROWS or values[0] == values[-1]:
        return False
    steps = np.diff(values)
    return bool((steps >= 0).mean() >= _NEARLY_ALL and (steps > 0).sum() >= _FEWEST_STEPS)


_NEARLY_ALL = 0.95  # share of the steps that must not decrease
_FEWEST_STEPS = 3  # steps that must increase


def _suspicions(data: ColumnData, target: ColumnData, task: Task) -> list[str]:
    """Return the kinds of findings about one column."""
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
        kinds += _key_kinds(data, codes)
    if _equals_target(data, target) and goal.any():
        return [*kinds, EQUAL]
    if data.kind in _NUMERIC and (
        _orders_regression_target(codes, goal) if task is Task.REGRESSION else _separates_classes(codes, goal)
    ):
        return [*kinds, ORDERING]
    if _determines(codes, goal):
        return [*kinds, DETERMINING]
    return kinds


def _key_kinds(data: ColumnData, codes: Codes) -> list[str]:
    """Return [KEY], [COUNTER] or [].

    Only whole numbers and texts can look like keys, because measurements also differ from row to row.
    """
    whole = data.kind in (ColumnKind.INTEGER, ColumnKind.TEXT) or (
        data.kind is ColumnKind.FLOAT and bool((data.values == np.floor(data.values)).all())
    )
    if not whole or int(codes.max()) + 1 < len(codes):
        return []
    return [COUNTER if data.kind is not ColumnKind.TEXT and bool((np.diff(data.values) > 0).all()) else KEY]


def _codes(data: ColumnData) -> Codes:
    """Return a number from 0 for each value, equal for equal values.

    The numbers of numeric and time values are in the order of the values.
    """
    if data.kind is not ColumnKind.TEXT:
        return np.unique(data.values, return_inverse=True)[1].astype(np.int64)
    known: dict[str | None, int] = {}
    return np.fromiter((known.setdefault(text, len(known)) for text in data.values.tolist()), np.int64)


def _equals_target(data: ColumnData, target: ColumnData) -> bool:
    texts = ColumnKind.TEXT in (data.kind, target.kind)
    return (data.kind == target.kind or not texts) and bool((data.values == target.values).all())


def _orders_regression_target(codes: Codes, goal: Codes) -> bool:
    """Return whether the target never falls, or never rises, with growing values of the column."""
    rising = goal[np.lexsort((goal, codes))]
    falling = goal[np.lexsort((-goal, codes))]
    if (np.diff(rising) < 0).any() and (np.diff(falling) > 0).any():
        return False
    _, pairs = np.unique(codes * (int(goal.max()) + 1) + goal, return_counts=True)
    within = _log_factorials(np.bincount(codes)) - _log_factorials(pairs)
    return within + math.log(2) - _log_arrangements(goal) < _LOG_ACCIDENT


def _separates_classes(codes: Codes, goal: Codes) -> bool:
    """Return whether the column has a disjoint range of values for each class."""
    ordered = goal[np.lexsort((goal, codes))]
    classes = int(goal.max()) + 1
    if (np.diff(ordered) != 0).sum() != classes - 1 or not _is_function(codes, goal):
        return False
    return math.lgamma(classes + 1) - _log_arrangements(goal) < _LOG_ACCIDENT


def _determines(codes: Codes, goal: Codes) -> bool:
    """Return whether each value of the column occurs with a single value of the target."""
    classes, values = int(goal.max()) + 1, int(codes.max()) + 1
    return values * math.log(classes) - _log_arrangements(goal) < _LOG_ACCIDENT and _is_function(codes, goal)


def _is_function(codes: Codes, goal: Codes) -> bool:
    last_goal = np.empty(int(codes.max()) + 1, np.int64)
    last_goal[codes] = goal
    return bool((last_goal[codes] == goal).all())


def _log_arrangements(goal: Codes) -> float:
    """Return the logarithm of the number of ways to distribute these values over the rows."""
    return math.lgamma(len(goal) + 1) - _log_factorials(np.bincount(goal))


def _log_factorials(counts: Codes) -> float:
    numbers, repeats = np.unique(counts, return_counts=True)
    pairs = zip(numbers.tolist(), repeats.tolist(), strict=True)
    return math.fsum(times * math.lgamma(number + 1) for number, times in pairs)
