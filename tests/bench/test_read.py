"""The benchmark of reading measures jobs and a script on one table."""

import pytest

from indb_tensile.bench.commands.read import measure, ratios
from tests.conftest import Database

MIB = 1 << 20


@pytest.mark.nightly
@pytest.mark.postgres
def test_jobs_and_a_script_train_on_the_same_table(database: Database) -> None:
    rows = measure(database.dsn(), rows=2000, features=3, epochs=1, rounds=1)
    assert [(row["side"], row["rows"], row["features"], row["rounds"]) for row in rows] == [
        ("job", 2000, 3, 1),
        ("script", 2000, 3, 1),
        ("limited", 2000, 3, 1),
    ]
    assert all(row["first_step_s"] > 0 and row["epoch_s"] > 0 and row["peak_bytes"] > 50 * MIB for row in rows)
    assert [line.partition(":")[0] for line in ratios(rows)][:2] == ["first step", "epoch"]
