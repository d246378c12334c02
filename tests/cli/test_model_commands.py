"""Check the commands that list models, predict, and show plans of jobs."""

import json

import pytest
from psycopg.types.json import Jsonb

from indb_tensile.catalog import models
from tests.catalog.enqueue import claim, enqueue, publication, register
from tests.cli.conftest import Tensile
from tests.conftest import Database
from tests.sql.fakes import FakeService

pytestmark = [pytest.mark.postgres, pytest.mark.clears_database]


def publish(database: Database) -> int:
    """Publish a version of demo's model `m` by a new job; return the job's id."""
    with database.connect("demo") as demo, database.connect("tensile_worker") as worker:
        job = enqueue(demo, "m")
        claimed = claim(worker, register(worker))
        incumbent = models.deployed_version(worker, "m")
        models.publish_version(worker, claimed, publication(incumbent=incumbent, incumbent_metric=0.5))
    return job


def test_models_are_listed_with_their_deployed_version(demo: Tensile, database: Database) -> None:
    publish(database)
    publish(database)
    (row,) = [json.loads(line) for line in demo("models", "--json").out.splitlines()]
    assert (row["model"], row["owner"], row["versions"], row["metric_name"], row["metric"]) == (
        "m",
        "demo",
        2,
        "r2",
        0.5,
    )
    heading, row_line = demo("models").out.splitlines()
    assert heading.split()[:3] == ["model", "owner", "versions"]
    assert row_line.split()[:3] == ["m", "demo", "2"]


def test_version_is_deployed_by_number_and_by_word(demo: Tensile, database: Database) -> None:
    publish(database)
    publish(database)
    done = demo("deploy", "m", "2", "--reason", "a trial", "--json")
    assert (done.code, json.loads(done.out)) == (0, {"model": "m", "version": 2})
    assert json.loads(demo("deploy", "m", "previous", "--json").out) == {"model": "m", "version": 1}
    again = demo("deploy", "m", "1")
    assert (again.code, again.err) == (0, 'notice: version 1 of model "m" is deployed already\n')
    assert demo("deploy", "m", "9").code == 2
    assert demo("retrain", "m").err.startswith(
        'tensile: table "public.t", the table of the last training of model "m"'
    )


def test_prediction_is_the_services_answer(demo: Tensile, database: Database) -> None:
    publish(database)
    requests: list[object] = []

    def answer(request: dict[str, object]) -> dict[str, object]:
        requests.append(request)
        return {"ok": True, "result": {"values": [{"value": 4.5, "values": [4.5, 1.0]}[str(request["kind"])]]}}

    with database.connect() as admin:
        (installation,) = admin.execute("select tensile.installation()::text").fetchone() or ("",)
    service = FakeService(answer, installation=installation)
    try:
        with database.connect() as admin:
            admin.execute(
                "insert into tensile.settings (name, value) values ('socket_directory', %s)",
                (Jsonb(str(service.directory)),),
            )
            admin.execute(
                """insert into tensile.workers (host, pid, device, version, service_name, lease_s)
                   values ('here', 1, 'none', '0', %s, 3600)""",
                (service.name,),
            )
        done, several = (demo("predict", "m", '{"a": 1}', "--json", *form) for form in ((), ("--values",)))
    finally:
        service.close()
    assert (done.code, done.err) == (0, "")
    assert json.loads(done.out) == {"prediction": 4.5}
    assert json.loads(several.out) == {"prediction": [4.5, 1.0]}
    assert '"a": 1' in json.dumps(requests)


def test_missing_service_ends_with_code_6_and_a_hint(demo: Tensile, database: Database) -> None:
    publish(database)
    done = demo("predict", "m", '{"a": 1}')
    assert (done.code, done.out) == (6, "")
    assert "hint: " in done.err


def test_invalid_prediction_ends_with_code_2(demo: Tensile) -> None:
    done = demo("predict", "m", "[1")
    assert (done.code, done.err.splitlines()[0]) == (
        2, "tensile: the row is not JSON: Expecting ',' delimiter at character 3: [1")  # fmt: skip
    done = demo("predict", "nosuch", "{}")
    assert done.code == 2
    assert 'there is no model "nosuch"' in done.err


def test_plan_shows_its_peaks_and_swaps(demo: Tensile, database: Database) -> None:
    job = publish(database)
    assert demo("plan", str(job)).code == 2
    with database.connect("tensile_worker") as worker:
        worker.execute(
            """insert into tensile.plans (job_id, attempt, generation, reason, policy, vanilla_peak_bytes,
                   liveness_peak_bytes, floor_bytes, predicted_peak_bytes, swaps, swapped_bytes,
                   predicted_iteration_ns)
               values (%s, 1, 1, 'start', 'tensile', 4194304, 3145728, 1048576, 2097152, 3, 1048576, 1500000)""",
            (job,),
        )
    row = json.loads(demo("plan", str(job), "--json").out)
    assert (row["vanilla_peak_bytes"], row["predicted_peak_bytes"], row["swaps"]) == (4194304, 2097152, 3)
    assert (row["predicted_ms"], row["measured_ms"]) == (1.5, None)
    heading, row_line = demo("plan", str(job)).out.splitlines()
    assert "vanilla peak" in heading
    assert "4.0 MB" in row_line
