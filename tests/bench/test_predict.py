"""The benchmark of predictions stores the same answers from both sides."""

import pytest

from indb_tensile.bench.commands.predict import measure
from tests.conftest import Database


@pytest.mark.nightly
@pytest.mark.postgres
def test_a_client_and_predictions_of_a_table_store_the_same_answers(database: Database) -> None:
    rows = measure(database.dsn(), rows=20_000, rounds=1)
    assert [(row["model"], row["rows"], row["rounds"]) for row in rows] == [
        ("bench_mlp", 20_000, 1),
        ("bench_cnn", 2000, 1),
    ]
    for row in rows:
        assert row["largest_difference"] < 1e-5
        assert row["ratio"] > 0
        assert row["over_single_calls"] > 1
    watched = {"session", "service", "trainer", "backend reading", "backend writing"}
    assert set(rows[0]["growth_bytes"]) == watched
