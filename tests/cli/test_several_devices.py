"""Check `tensile up --devices`: a controller for each device, jobs on both, and the death of one of them."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from indb_tensile.state_directory import StateDirectory
from tests.cli.conftest import Tensile, ended, until
from tests.open_directory import open_directory

pytestmark = [pytest.mark.postgres, pytest.mark.nightly]

LINKS = ("--link-out", "400MB", "--link-in", "400MB")  # with both rates, the link is not measured
OPTIONS = ("--device", "emulated", "--capacity", "64MB", "--spare-trainers", "1", *LINKS)
HYPERPARAMS = json.dumps({"epochs": 200, "batch_size": 64, "seed": 1})


@pytest.fixture(scope="module")
def service() -> Iterator[Tensile]:
    """The command with a state directory of this module."""
    with open_directory("suite-devices-") as directory:
        command = Tensile({"TENSILE_STATE_DIR": str(directory / "state"), "TENSILE_CHECKPOINT_S": "0"})
        yield command
        done = command("down", "--purge")
        assert done.code == 0, done.err
        assert list(directory.iterdir()) == []


@pytest.fixture
def started(service: Tensile) -> dict[str, Any]:
    """What `tensile up --devices 2` prints; both controllers run."""
    done = service("up", *OPTIONS, "--devices", "2", "--json")
    assert done.code == 0, done.err
    printed: dict[str, Any] = json.loads(done.out)
    return printed


@pytest.fixture
def superuser(service: Tensile, started: dict[str, Any]) -> Iterator[psycopg.Connection[Any]]:
    """A superuser's connection to the embedded database."""
    place = StateDirectory(directory=Path(started["state"]))
    with psycopg.connect(place.cluster().dsn(), autocommit=True) as connection:
        yield connection


def train(connection: psycopg.Connection[Any], model: str) -> int:
    row = connection.execute(
        "select tensile_train(%s, 'demo.t', target => 'y', task => 'classification', hyperparams => %s)",
        (model, HYPERPARAMS),
    ).fetchone()
    assert row is not None
    return int(row[0])


def devices_of(connection: psycopg.Connection[Any], *jobs: int) -> dict[int, str | None]:
    rows = connection.execute(
        "select job_id, device_name from tensile.stat_jobs where job_id = any (%s) and phase = 'training'",
        (list(jobs),),
    )
    return dict(rows.fetchall())


def test_second_up_keeps_both_controllers(service: Tensile, started: dict[str, Any]) -> None:
    assert [each["device_name"] for each in started["controllers"]] == ["emulated:0", "emulated:1"]
    assert [Path(each["log"]).name for each in started["controllers"]] == ["controller.log", "controller-1.log"]
    done = service("up", "--json")
    assert json.loads(done.out) == started


def test_jobs_of_a_killed_controller_end_on_the_other_device_with_equal_bits(
    service: Tensile, started: dict[str, Any], superuser: psycopg.Connection[Any]
) -> None:
    superuser.execute("drop table if exists demo.t")
    superuser.execute(
        "create table demo.t as select i % 7 as a, i % 11 as b, (i % 77 < 30)::int as y"
        " from generate_series(1, 20000) as i"
    )
    jobs = [train(superuser, model) for model in ("first", "other")]
    placed: dict[int, str | None] = {}

    def both_train() -> bool:
        placed.update(devices_of(superuser, *jobs))
        return len(set(placed.values())) == 2

    until(both_train, "the jobs to train on two devices")
    victim = started["controllers"][0]
    saved = "select from tensile.checkpoints where job_id = %s"
    (job,) = (job for job, device in placed.items() if device == victim["device_name"])
    until(lambda: superuser.execute(saved, (job,)).fetchone() is not None, "a checkpoint")
    os.kill(victim["controller"], signal.SIGKILL)
    until(lambda: ended(victim["controller"]), "the controller to be gone")

    states = "select array_agg(distinct state::text) from tensile.jobs where job_id = any (%s)"
    until(lambda: superuser.execute(states, (jobs,)).fetchone() == (["succeeded"],), "both jobs to end")

    rows = superuser.execute(
        "select j.job_id, j.attempt, j.faults, v.weights_digest from tensile.jobs as j"
        " join tensile.model_versions as v using (version_id) where j.job_id = any (%s) order by 1",
        (jobs,),
    ).fetchall()
    assert {job: attempt for job, attempt, *_ in rows} == {
        job: 2 if placed[job] == victim["device_name"] else 1 for job in jobs
    }
    assert len({digest for *_, digest in rows}) == 1
    assert {faults for *_, faults, _ in rows} == {0}
    checks = [json.loads(line) for line in service("doctor", "--json").out.splitlines()]
    by_name = {row["check"]: row["found"] for row in checks}
    assert by_name["its controller"] == "does not run"
    assert by_name["its controller 1"] == f"process {started['controllers'][1]['controller']}"


def test_missing_controller_is_started_again_and_the_other_kept(service: Tensile, started: dict[str, Any]) -> None:
    first, other = (each["controller"] for each in started["controllers"])
    os.kill(first, signal.SIGKILL)
    until(lambda: ended(first), "the controller to be gone")
    again = json.loads(service("up", "--json").out)["controllers"]
    assert again[0]["controller"] != first
    assert again[1]["controller"] == other


def test_fewer_devices_stop_the_controllers_that_are_too_many(
    service: Tensile, started: dict[str, Any], superuser: psycopg.Connection[Any]
) -> None:
    done = service("up", "--devices", "1", "--json")
    assert done.code == 0, done.err
    only = json.loads(done.out)["controller"]
    assert all(ended(each["controller"]) for each in started["controllers"])
    assert superuser.execute("select pid from tensile.stat_workers where alive").fetchall() == [(only,)]
    refused = service("up", "--device", "cpu", "--devices", "2")
    assert refused.code == 2
    assert "--devices 2: the device is cpu, and the processor" in refused.err
