"""The benchmark of reading measures a job and a script on one table."""

import pytest

from indb_tensile.bench.commands.reading import measure, ratio
from tests.conftest import Database

MIB = 1 << 20


@pytest.mark.nightly
@pytest.mark.postgres
def test_a_job_and_a_script_take_their_first_step_on_the_same_table(database: Database) -> None:
    rows = measure(database.dsn(), rows=2000, features=3, rounds=1)
    assert [(row["side"], row["rows"], row["features"], row["rounds"]) for row in rows] == [
        ("job", 2000, 3, 1),
        ("script", 2000, 3, 1),
    ]
    assert all(row["seconds"] > 0 and row["peak_bytes"] > 50 * MIB for row in rows)
    assert ratio(rows) == rows[0]["seconds"] / rows[1]["seconds"] < ratio(rows, imported=True)
