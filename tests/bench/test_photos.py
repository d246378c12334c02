"""The benchmark of photographs runs all methods, and each takes its first step before its last."""

import pytest

from indb_tensile.bench.commands.photos import METHODS, measure
from indb_tensile.bench.harness.tables.photo_table import photo_table


@pytest.mark.nightly
def test_every_method_trains_on_the_photographs() -> None:
    lines = measure(photo_table(300, 48), epochs=2, rounds=1, methods=list(METHODS))
    assert [(line.method, line.rows, line.epochs) for line in lines] == [
        ("meanwhile", 300, 2),
        ("before", 300, 2),
        ("loader", 300, 2),
    ]
    assert all(0 < line.first_step_s < line.total_s for line in lines)
    assert (lines[0].first_step_ratio, lines[0].total_ratio) == (1, 1)
