"""Check what a training enqueues, how its snapshot is made, and which requests are refused."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from indb_tensile import sql_api
from indb_tensile.job import JobSpec, Relation, Task
from indb_tensile.sql_api import snapshot_copy, spi, training_request
from tests.sql_api.fakes import TABLE_STATISTICS, Row, plpy_with


def test_enqueued_specification_is_a_job_spec() -> None:
    plpy = plpy_with()

    answer = sql_api.handle(plpy, "train", {"model": "m", "relation": 5, "hyperparams": {"epochs": 2, "eps": None}})

    assert answer == {"ok": True, "result": {"job": 7}}
    statement, (model, oid, schema, name, spec, priority, not_before, key, *_) = plpy.executed[-1]
    assert statement == training_request.ENQUEUE
    assert (model, oid, schema, name, priority, not_before, key) == ("m", 5, "public", "iris", 0, None, None)
    assert msgspec.json.decode(str(spec), type=JobSpec) == JobSpec(
        model="m",
        relation=Relation(oid=5, schema="public", name="iris"),
        target="label",
        task=Task.CLASSIFICATION,
        architecture={"type": "auto"},
        hyperparams={"epochs": 2},
        exclude=("id",),
        column_numbers={"petal": 2, "label": 3},
    )


def test_key_that_another_session_used_meanwhile_returns_its_job() -> None:
    plpy = plpy_with(enqueue=[])
    job_rows: Iterator[list[Row]] = iter([[], [{"job_id": 9}]])
    default_execute = plpy.execute

    def execute(plan: Any, arguments: Sequence[object] = ()) -> Iterable[Row]:
        return next(job_rows) if plan == training_request.JOB_OF_KEY else default_execute(plan, arguments)

    plpy.execute = execute  # type: ignore[method-assign]

    answer = sql_api.handle(plpy, "train", {"model": "m", "relation": 5, "idempotency_key": "k"})

    assert answer["result"] == {"job": 9}


def test_long_table_is_not_refused_because_of_its_first_rows() -> None:
    sorted_by_class = TABLE_STATISTICS | {"rows": 10_000, "last_value": TABLE_STATISTICS["value"], "known": 0}

    assert sql_api.handle(plpy_with(look=[sorted_by_class]), "train", {"model": "m", "relation": 5})["ok"]


SNAPSHOT: dict[str, list[Row]] = {
    "made": [
        {"relation": "tensile_data.job_7", "name": "id", "converted": True},
        {"relation": "tensile_data.job_7", "name": "petal", "converted": False},
    ],
    "plan": [{"QUERY PLAN": '[{"Plan": {"Plan Rows": 60, "Plan Width": 8}}]'}],
    "limit": [{"bytes": 10_000}],
    "named": [{"oid": 5}],
    "sealed": [{"rows": 60, "bytes": 8192}],
}
REQUEST = {"model": "m", "relation": 5, "snapshot": True, "search_path": "own, public"}


def test_only_the_insert_of_a_snapshot_runs_under_the_callers_path() -> None:
    plpy = plpy_with(**SNAPSHOT)

    assert sql_api.handle(plpy, "train", REQUEST)["ok"]

    start = [statement for statement, _ in plpy.executed].index(snapshot_copy.MAKE)
    paths = [arguments for statement, arguments in plpy.executed[start:] if statement == spi.SET_PATH]
    statements = [statement for statement, _ in plpy.executed[start:] if statement != spi.CURRENT_PATH]
    rows = 'select tensile.key_text("id"), "petal" from "public"."iris"'
    assert statements == [
        snapshot_copy.MAKE,
        spi.SET_PATH,
        f"explain (format json) {rows}",
        snapshot_copy.LIMIT,
        f'insert into tensile_data.job_7 ("id", "petal") {rows}',
        spi.SET_PATH,
        snapshot_copy.NAMED_NOW,
        snapshot_copy.SEAL,
    ]
    assert paths == [("own, public",), ("pg_catalog, pg_temp",)]


def test_relation_replaced_during_its_copy_is_refused() -> None:
    answer = sql_api.handle(plpy_with(**(SNAPSHOT | {"named": [{"oid": 6}]})), "train", REQUEST)

    assert answer["error"] == {
        "sqlstate": "42P01",
        "message": 'table "public.iris" was dropped and created again while it was copied',
        "detail": "",
        "hint": "Call tensile_train again.",
    }


def test_hint_of_a_standby_names_the_primary_server() -> None:
    standby = plpy_with(transaction=[{"read_only": True, "standby": True}])

    assert sql_api.handle(standby, "train", {"model": "m", "relation": 5})["error"] == {
        "sqlstate": "25006",
        "message": "a job cannot be enqueued in a read-only transaction",
        "detail": "",
        "hint": "This server is a standby: connect to the primary server.",
    }
