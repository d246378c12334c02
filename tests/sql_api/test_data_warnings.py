"""Check that the bridge's suspicions about a table's first rows equal the findings of the job's report."""

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.job import Task
from indb_tensile.learning import leakage
from indb_tensile.learning.columns import ColumnKind
from indb_tensile.learning.jsonrows import column_of
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
