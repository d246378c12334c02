"""What the bridge says of a table's first rows is what the job's report says of all."""

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.job import Task
from indb_tensile.learning import leakage
from indb_tensile.learning.columns import ColumnKind
from indb_tensile.learning.jsonrows import column_of
from indb_tensile.sql_api import doubts
from indb_tensile.sql_api.relation import Column

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
def test_its_findings_are_those_of_the_report(
    rows: int, kind: ColumnKind, seed: int, goal_kind: ColumnKind, goal_seed: int, ordered: bool
) -> None:
    goal: list[Any] = [_VALUES[goal_kind](row, goal_seed) for row in range(rows)]
    values: list[Any] = [_VALUES[kind](row, seed) for row in range(rows)]
    if ordered:
        goal.sort()
        values.sort()
    if seed == 5:
        values[::3] = [None] * len(values[::3])
    task = Task.REGRESSION if goal_kind is ColumnKind.FLOAT else Task.CLASSIFICATION
    columns = {"x": column_of("x", kind, values), "y": column_of("y", goal_kind, goal)}

    found = leakage.findings(columns, ["x"], "y", task, np.arange(rows))

    feature = Column(name="x", type="", kind=kind.value, key=False)
    target = Column(name="y", type="", kind=goal_kind.value, key=False)
    told = doubts.suspicions(feature, values, target, goal, task.value)
    assert told == [finding.kind for finding in found]
