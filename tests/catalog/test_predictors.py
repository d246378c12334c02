"""Check that the catalog stores one predictor for each kind of device, and the operators that it learns from."""

import pytest
from psycopg.errors import InsufficientPrivilege

from indb_tensile.catalog import plans, predictors
from indb_tensile.catalog.plans import OpMeasurement
from indb_tensile.catalog.predictors import StoredPredictor
from tests.conftest import Database

pytestmark = pytest.mark.postgres


def _measurement(signature: str, latency_ns: int) -> OpMeasurement:
    return OpMeasurement(signature=signature, name="op", latency_ns=latency_ns, workspace_bytes=0)


def test_history_contains_operators_described_and_measured_on_the_kind_of_device(database: Database) -> None:
    with database.connect("tensile_worker") as connection:
        predictors.describe(connection, {"a": "A", "b": "B", "never run": "C"})
        predictors.describe(connection, {"a": "another"})
        predictors.describe(connection, {})
        plans.record_latencies(connection, "cpu", [_measurement("a", 10)])
        plans.record_latencies(connection, "cpu", [_measurement("b", 20), _measurement("not described", 30)])
        plans.record_latencies(connection, "gpu", [_measurement("a", 1)])
        assert sorted(predictors.history(connection, "cpu")) == [("A", 10), ("B", 20)]
        assert predictors.history(connection, "cpu", most=1) == [("B", 20)]
        assert predictors.history(connection, "gpu") == [("A", 1)]
        assert [predictors.count_history(connection, kind) for kind in ("cpu", "gpu", "tpu")] == [2, 1, 0]


def test_new_predictor_replaces_the_old_predictor(database: Database) -> None:
    first = StoredPredictor(model=b"\0first", survey=b"s", samples=100, history=0)
    second = StoredPredictor(model=b"second", survey=b"", samples=200, history=90)
    with database.connect("tensile_worker") as connection:
        assert predictors.load_predictor(connection, "cpu") is None
        predictors.save_predictor(connection, "cpu", first)
        assert predictors.load_predictor(connection, "cpu") == first
        predictors.save_predictor(connection, "cpu", second)
        assert predictors.load_predictor(connection, "cpu") == second
        assert predictors.load_predictor(connection, "gpu") is None


@pytest.mark.parametrize("table", ["op_descriptions", "predictors"])
def test_users_do_not_see_the_shapes_of_operators(database: Database, table: str) -> None:
    with database.connect("alice") as alice, pytest.raises(InsufficientPrivilege):
        alice.execute(f"select * from tensile.{table}")
