"""Check that the bridge's suspicions about a table's first rows equal the findings of the job's report."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.job import Task
from indb_tensile.learning.decoding.jsonrows import column_of
from indb_tensile.learning.reports import leakage
from indb_tensile.learning.storage.columns import ColumnKind
from indb_tensile.sql_api import data_warnings
from indb_tensile.sql_api.training_table import TableColumn

_ROWS = st.integers(1, 60)
_VALUES: dict[ColumnKind, Callable[[int, int], Any]] = {
    ColumnKind.INTEGER: lambda row, seed: (row * 7 + seed) % 61,
    ColumnKind.FLOAT: lambda row, seed: (row * seed % 17) / 2,
    ColumnKind.TEXT: lambda row, seed: f"t{row * seed % 5}",
    ColumnKind.BOOLEAN: lambda row, seed: row % (seed + 2) == 0,
}
_SEEDS = st.integers(0, 6)


@given(
    _ROWS,
    st.sampled_from(list(_VALUES)),
    _SEEDS,
    st.sampled_from([ColumnKind.FLOAT, ColumnKind.TEXT]),
    _SEEDS,
    st.booleans(),
)
def test_suspicions_equal_the_findings_of_the_report(
    rows: int, kind: ColumnKind, seed: int, target_kind: ColumnKind, target_seed: int, ordered: bool
) -> None:
    target_values: list[Any] = [_VALUES[target_kind](row, target_seed) for row in range(rows)]
    values: list[Any] = [_VALUES[kind](row, seed) for row in range(rows)]
    if ordered:
        target_values.sort()
        values.sort()
    if seed == 5:
        values[::3] = [None] * len(values[::3])
    task = Task.REGRESSION if target_kind is ColumnKind.FLOAT else Task.CLASSIFICATION
    columns = {"x": column_of("x", kind, values), "y": column_of("y", target_kind, target_values)}

    findings = leakage.findings(columns, ["x"], "y", task, np.arange(rows))

    feature = TableColumn(name="x", type="", kind=kind.value, key=False)
    target = TableColumn(name="y", type="", kind=target_kind.value, key=False)
    suspicions = data_warnings.suspicions(feature, values, target, target_values, task.value)
    assert suspicions == [finding.kind for finding in findings]


@pytest.mark.parametrize(
    ("kind", "values", "expected"),
    [
        ("float", [float(row) for row in range(200)], False),
        ("float", [math.exp(row / 10) for row in range(200)], True),
        ("float", [None, math.inf, math.nan, *(math.exp(row / 10) for row in range(200))], True),
        ("integer", [*range(199), 1_000_000], True),
        ("integer", [0] * 180 + [1] * 20, False),  # rare, but two values only
        ("integer", [*range(98), 1_000_000], False),  # too few rows to tell
        ("text", ["a"] * 200, False),
        ("float", [1e308, -1e308] * 100, False),
    ],
)
def test_far_values_are_those_beside_which_the_middle_half_hardly_differs(
    kind: str, values: list[Any], expected: bool
) -> None:
    column = TableColumn(name="x", type="", kind=kind, key=False)
    assert data_warnings.has_far_values(column, values) is expected
