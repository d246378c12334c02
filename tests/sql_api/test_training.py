"""What is enqueued, and which table is refused."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from indb_tensile import sql_api
from indb_tensile.job import JobSpec, Relation, Task
from indb_tensile.sql_api import training
from tests.sql_api.fakes import LOOK, Row, plpy_with


def test_an_enqueued_specification_is_a_job_spec() -> None:
    plpy = plpy_with()

    answer = sql_api.handle(plpy, "train", {"model": "m", "relation": 5, "hyperparams": {"epochs": 2, "eps": None}})

    assert answer == {"ok": True, "result": {"job": 7}}
    statement, (model, oid, schema, name, spec, priority, not_before, key) = plpy.executed[-1]
    assert statement == training.ENQUEUE
    assert (model, oid, schema, name, priority, not_before, key) == ("m", 5, "public", "iris", 0, None, None)
    assert msgspec.json.decode(str(spec), type=JobSpec) == JobSpec(
        model="m",
        relation=Relation(oid=5, schema="public", name="iris"),
        target="label",
        task=Task.CLASSIFICATION,
        architecture={"type": "auto"},
        hyperparams={"epochs": 2},
        exclude=("id",),
    )


def test_a_key_that_another_session_took_meanwhile_gives_its_job() -> None:
    plpy = plpy_with(enqueue=[])
    taken: Iterator[list[Row]] = iter([[], [{"job_id": 9}]])
    found = plpy.execute

    def execute(plan: Any, arguments: Sequence[object] = ()) -> Iterable[Row]:
        return next(taken) if plan == training.JOB_OF_KEY else found(plan, arguments)

    plpy.execute = execute  # type: ignore[method-assign]

    answer = sql_api.handle(plpy, "train", {"model": "m", "relation": 5, "idempotency_key": "k"})

    assert answer["result"] == {"job": 9}


def test_a_long_table_is_not_judged_by_its_first_rows() -> None:
    sorted_by_class = LOOK | {"rows": 10_000, "last_value": LOOK["value"], "known": 0}

    assert sql_api.handle(plpy_with(look=[sorted_by_class]), "train", {"model": "m", "relation": 5})["ok"]
