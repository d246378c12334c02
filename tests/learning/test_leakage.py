"""Columns that look like keys or determine the target are reported, and harmless columns are not."""

from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.job import Task
from indb_tensile.learning.decoding.jsonrows import column_of
from indb_tensile.learning.reports import leakage
from indb_tensile.learning.storage.columns import ColumnKind

ROWS = 200
CLASSES = [["a", "b", "c"][row % 3] for row in range(ROWS)]
VALUES = [float((row * 37) % ROWS) for row in range(ROWS)]
NOISE = [Random(4).random() for _ in range(ROWS)]
SHUFFLED = Random(3).sample(range(10**6), ROWS)


def kinds_of_leakage(kind: ColumnKind, values: Sequence[Any], target: Sequence[Any] = CLASSES) -> list[str]:
    task = Task.REGRESSION if isinstance(target[0], float) else Task.CLASSIFICATION
    goal = column_of("y", ColumnKind.FLOAT if task is Task.REGRESSION else ColumnKind.TEXT, list(target))
    columns = {"x": column_of("x", kind, list(values)), "y": goal}
    rows = np.arange(len(values))
    return [finding.kind for finding in leakage.findings(columns, ["x"], "y", task, rows)]


@pytest.mark.parametrize(
    ("kind", "values", "kinds"),
    [
        (ColumnKind.INTEGER, range(5, 5 + ROWS), [leakage.COUNTER]),
        (ColumnKind.INTEGER, SHUFFLED, [leakage.KEY]),
        (ColumnKind.TEXT, [f"row {row}" for row in range(ROWS)], [leakage.KEY]),
        (ColumnKind.FLOAT, [float(number) for number in SHUFFLED], [leakage.KEY]),
        (ColumnKind.FLOAT, [number + 0.5 for number in SHUFFLED], []),  # a measurement
        (ColumnKind.INTEGER, [row % 7 for row in range(ROWS)], []),
        (ColumnKind.TEXT, CLASSES, [leakage.EQUAL]),
        (ColumnKind.TEXT, [name.upper() for name in CLASSES], [leakage.DETERMINING]),
        (ColumnKind.BOOLEAN, [name == "a" for name in CLASSES], []),
        (ColumnKind.INTEGER, [row % 6 for row in range(ROWS)], [leakage.DETERMINING]),
        (
            ColumnKind.FLOAT,
            [ord(name) + noise for name, noise in zip(CLASSES, NOISE, strict=True)],
            [leakage.ORDERING],
        ),
        (ColumnKind.FLOAT, [None if name == "a" else noise for name, noise in zip(CLASSES, NOISE, strict=True)], []),
    ],
)
def test_leakage_into_a_classification_is_reported_by_kind(
    kind: ColumnKind, values: Sequence[Any], kinds: list[str]
) -> None:
    assert kinds_of_leakage(kind, values) == kinds


@pytest.mark.parametrize(
    ("kind", "values", "kinds"),
    [
        (ColumnKind.FLOAT, VALUES, [leakage.KEY, leakage.EQUAL]),
        (ColumnKind.FLOAT, [1.5 - 3 * value for value in VALUES], [leakage.ORDERING]),
        (ColumnKind.INTEGER, [int(value) // 40 for value in VALUES], [leakage.ORDERING]),  # a band of the target
        (ColumnKind.BOOLEAN, [value > 100 for value in VALUES], []),
        (ColumnKind.FLOAT, NOISE, []),
        (ColumnKind.INTEGER, [1] * ROWS, []),
    ],
)
def test_leakage_into_a_regression_is_reported_by_kind(
    kind: ColumnKind, values: Sequence[Any], kinds: list[str]
) -> None:
    assert kinds_of_leakage(kind, values, VALUES) == kinds


def test_the_counter_of_a_table_sorted_by_its_classes_is_reported_as_ordering() -> None:
    assert kinds_of_leakage(ColumnKind.INTEGER, range(ROWS), sorted(CLASSES)) == [leakage.COUNTER, leakage.ORDERING]


def test_a_column_that_is_null_only_for_one_class_is_reported() -> None:
    labels = ["late" if row % 5 == 0 else "on time" for row in range(ROWS)]
    delay = [None if label == "late" else noise for label, noise in zip(labels, NOISE, strict=True)]
    assert kinds_of_leakage(ColumnKind.FLOAT, delay, labels) == [leakage.MISSING_WITH]


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from("ab")), min_size=2, max_size=30))
def test_a_chance_order_of_few_rows_is_not_reported(rows: list[tuple[int, str]]) -> None:
    assert kinds_of_leakage(ColumnKind.INTEGER, [row[0] for row in rows], [row[1] for row in rows][:]) in (
        [],
        [leakage.DETERMINING],
        [leakage.ORDERING],
    )
    assert kinds_of_leakage(ColumnKind.INTEGER, [row[0] for row in rows[:12]], [row[1] for row in rows[:12]]) == []


def test_a_finding_in_the_first_rows_is_verified_in_all_rows() -> None:
    count = 30_000
    values = list(range(count))
    labels = ["a" if row < count // 2 else "b" for row in values]
    assert kinds_of_leakage(ColumnKind.INTEGER, values, labels) == [leakage.COUNTER, leakage.ORDERING]
    values[1] = values[2]  # neither row is among the rows that are checked first
    labels[2] = "b"
    assert kinds_of_leakage(ColumnKind.INTEGER, values, labels) == []


def test_timestamps_that_increase_with_the_rows_are_recognised() -> None:
    days = [f"2024-{1 + row // 28:02d}-{1 + row % 28:02d}" for row in range(ROWS)]
    assert leakage.increases(column_of("at", ColumnKind.TIME, days))
    assert leakage.increases(column_of("at", ColumnKind.TIME, [*days[1:], days[0]])) is True
    assert not leakage.increases(column_of("at", ColumnKind.TIME, Random(1).sample(days, ROWS)))
    assert not leakage.increases(column_of("at", ColumnKind.TIME, [days[0]] * ROWS))
