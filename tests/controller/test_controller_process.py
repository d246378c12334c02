"""The controller's own process against the real catalog; trainers are fakes, the ledger is the native one."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any

import psycopg
import pytest
from psycopg import sql

from indb_tensile.cluster import Cluster
from indb_tensile.config import Settings
from indb_tensile.device.hardware import emulated_kind
from tests.conftest import Database
from tests.controller.fakes import FAKE_TRAINER, alive
from tests.remains import processes_with

pytestmark = pytest.mark.postgres

ROOT = Path(__file__).parents[2]
# The real process with other trainers: everything else is what a user starts.
PROGRAM = (
    "import os, sys\n"
    "os.environ.pop('LD_PRELOAD', None)\n"  # what a test preloads is for the controller alone
    "from indb_tensile.worker import controller\n"
    f"controller.TRAINER = {FAKE_TRAINER!r}\n"
    "sys.exit(controller.main())\n"
)
DEADLINE_S = 120.0


@pytest.fixture
def restartable(cluster: Cluster, template: str) -> Iterator[Database]:
    """A fresh database, made and dropped on connections that a restart in between does not break."""
    made = Database(name="test_controller_restart", cluster=cluster)
    name = sql.Identifier(made.name)
    with psycopg.connect(cluster.dsn(database="postgres"), autocommit=True) as connection:
        connection.execute(
            sql.SQL("create database {} template {} strategy file_copy").format(name, sql.Identifier(template))
        )
    yield made
    with psycopg.connect(cluster.dsn(database="postgres"), autocommit=True) as connection:
        connection.execute(sql.SQL("drop database {} with (force)").format(name))


@contextmanager
def controller(
    database: Database, *, output: IO[str] | None = None, **settings: Any
) -> Iterator[subprocess.Popen[bytes]]:
    """What it logs goes to `output`, or to where the test's own output goes."""
    values: dict[str, Any] = {
        "dsn": database.dsn("tensile_worker"),
        "device": "emulated",
        "capacity_bytes": 64 << 20,
        "budget_bytes": 64 << 20,
        "link_out_bytes_per_s": 400_000_000,
        "link_in_bytes_per_s": 400_000_000,
        "beat_s": 0.1,
        "poll_s": 0.2,
        "lease_s": 1.5,
        "spare_trainers": 1,
        "stop_grace_s": 1.0,
        "survey_s": 0.0,
    }
    values |= settings
    environment = os.environ | Settings(**values).environment()
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    process = subprocess.Popen([sys.executable, "-c", PROGRAM], env=environment, cwd=ROOT, stderr=output)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        until(lambda: not [pid for pid in processes_with(f"TENSILE_DSN={values['dsn']}\0") if alive(pid)])


def enqueue(connection: psycopg.Connection, behaviour: str, size_bytes: int = 1 << 20) -> int:
    """A job as tensile_train() would leave it, of a table that the fake trainer never reads."""
    row = connection.execute(
        """
        with r as (select 'tensile.settings'::regclass::oid as oid)
        insert into tensile.jobs (model_name, relation_oid, relation_schema, relation_name, spec)
        select %(model)s, r.oid, 'tensile', 'settings', jsonb_build_object(
                 'model', %(model)s::text, 'target', 'y', 'task', 'regression',
                 'architecture', '{"type": "mlp"}'::jsonb,
                 'hyperparams', jsonb_build_object('size_bytes', %(size)s::bigint),
                 'relation', jsonb_build_object('oid', r.oid::bigint, 'schema', 'tensile', 'name', 'settings'))
          from r returning job_id
        """,
        {"model": behaviour, "size": size_bytes},
    ).fetchone()
    assert row is not None
    return int(row[0])


def until(met: Callable[[], Any]) -> Any:
    end = time.monotonic() + DEADLINE_S
    while not (found := met()):
        assert time.monotonic() < end, f"not within {DEADLINE_S} s"
        time.sleep(0.02)  # the deadline is what counts: this only spares the database
    return found


def scalar(connection: psycopg.Connection, query: Any, *values: Any) -> Any:
    row = connection.execute(query, values).fetchone()
    return None if row is None else row[0]


def adopted(connection: psycopg.Connection, job: int, attempt: int = 1) -> Any:
    query = "select count(*) from tensile.plans where job_id = %s and attempt = %s and adopted_at is not null"
    return scalar(connection, query, job, attempt)


def trainers_of(process: subprocess.Popen[bytes]) -> list[int]:
    text = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    return [int(pid) for pid in text.split()]


def test_a_job_is_claimed_planned_measured_and_cancelled(database: Database) -> None:
    with database.connect() as connection, controller(database):
        job = enqueue(connection, "train", 5 << 20)
        until(lambda: adopted(connection, job))
        until(
            lambda: (
                scalar(connection, "select measured_peak_bytes from tensile.plans where job_id = %s", job) == 5 << 20
            )
        )
        until(
            lambda: (
                scalar(connection, "select granted_bytes from tensile.device_jobs where job_id = %s", job) == 5 << 20
            )
        )
        connection.execute("update tensile.jobs set cancel_requested = true where job_id = %s", (job,))
        state = "select state::text from tensile.jobs where job_id = %s"
        until(lambda: scalar(connection, state, job) == "cancelled")
        until(lambda: scalar(connection, "select granted_bytes from tensile.devices order by worker_id desc") == 0)


def test_what_a_user_locks_delays_neither_anothers_start_nor_anothers_cancel(database: Database) -> None:
    state = "select state::text from tensile.jobs where job_id = %s"
    with database.connect("alice") as alice, database.connect("bob") as bob, controller(database, lease_s=30.0):
        mine = enqueue(alice, "train")
        blocked = [enqueue(alice, "read") for _ in range(3)]
        until(lambda: adopted(alice, mine))
        other = enqueue(bob, "report")
        until(lambda: adopted(bob, other))
        with database.connect("alice") as locker, locker.transaction():
            alice.execute("select tensile_cancel(%s)", (mine,))
            locker.execute("select from tensile.jobs for update")
            locker.execute("select pg_notify('tensile', 'cancel ' || repeat('9', 5000))")
            begun_s = time.monotonic()
            late = enqueue(bob, "report")
            until(lambda: adopted(bob, late))
            bob.execute("select tensile_cancel(job_id) from tensile.jobs")
            until(lambda: {scalar(bob, state, job) for job in (other, late)} == {"cancelled"})
            assert time.monotonic() - begun_s < DEADLINE_S / 4
            assert scalar(alice, state, mine) != "cancelled"
        until(lambda: scalar(alice, state, mine) == "cancelled")
        assert scalar(alice, state, blocked[-1]) == "queued"


def test_a_device_that_is_met_for_the_first_time_is_measured_before_jobs_start(database: Database) -> None:
    with database.connect() as connection:
        with controller(database, emulate="h200", link_out_bytes_per_s=0, link_in_bytes_per_s=0):
            job = enqueue(connection, "train")
            until(lambda: adopted(connection, job))
        slower = "select here_ns > there_ns from tensile.device_paces where machine = 'h200' and device_kind = %s"
        assert scalar(connection, slower, emulated_kind())
        measured = "select bool_and(mb_per_s <= emulated_mb_per_s) from tensile.stat_link where device = %s"
        assert scalar(connection, measured, emulated_kind())


def test_a_controller_that_shall_emulate_what_nobody_knows_ends_with_2(database: Database) -> None:
    with controller(database, emulate="abacus") as process:
        assert process.wait(timeout=DEADLINE_S) == 2


def test_a_killed_controller_leaves_nothing_and_the_next_one_goes_on(database: Database) -> None:
    with database.connect() as connection:
        with controller(database) as first:
            job = enqueue(connection, "train")
            until(lambda: adopted(connection, job))
            trainers = trainers_of(first)
            assert trainers
            first.kill()
            first.wait()
            until(lambda: not any(map(alive, trainers)))
        with controller(database):
            until(lambda: adopted(connection, job, attempt=2))


def test_a_job_whose_device_is_gone_waits_for_it_at_no_cost_and_goes_on_when_it_is_back(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.touch()
    monkeypatch.setenv("FAKE_DEVICE_GONE", str(gone))
    with database.connect() as connection, controller(database) as process:
        enqueue(connection, "lose")
        waits = "select waits_for from tensile.stat_queue where waits_for like 'a device that works%%'"
        assert until(lambda: scalar(connection, waits)).startswith(
            "a device that works: the device is gone; not before "
        )
        interrupted = "select count(*) from tensile.job_events where kind = 'interrupted'"
        until(lambda: scalar(connection, interrupted) == 2)
        told = "select error_sqlstate, error_message, error_hint, version_id from tensile.jobs"
        assert connection.execute(told).fetchone() == ("58000", "the device is gone", "Wait.", None)
        gone.unlink()
        until(lambda: scalar(connection, "select count(*) from tensile.plans where adopted_at is not null"))
        assert scalar(connection, "select faults from tensile.jobs") == 0
        assert process.poll() is None


def test_sigterm_hands_the_job_back_at_no_cost_and_leaves_nothing(database: Database) -> None:
    with database.connect() as connection, controller(database) as process:
        job = enqueue(connection, "train")
        until(lambda: adopted(connection, job))
        trainers = trainers_of(process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=DEADLINE_S) == 0
        row = connection.execute("select state::text, faults, interruptions from tensile.jobs").fetchone()
        assert row == ("queued", 0, 0)
        assert not any(map(alive, trainers))
        assert scalar(connection, "select count(*) from tensile.workers where stopped_at is null") == 0


def test_a_restarted_database_interrupts_nothing_that_it_need_not(restartable: Database) -> None:
    with controller(restartable, lease_s=30.0) as process:
        with restartable.connect() as connection:
            job = enqueue(connection, "train")
            until(lambda: adopted(connection, job))
        restartable.cluster.restart(mode="immediate")
        with restartable.connect() as connection:
            second = enqueue(connection, "train")
            until(lambda: adopted(connection, second))
            row = connection.execute("select attempt from tensile.jobs where job_id = %s", (job,)).fetchone()
            assert row == (1,)
            assert process.poll() is None


def test_a_recovery_that_takes_longer_than_the_lease_costs_the_job_nothing(restartable: Database) -> None:
    with controller(restartable, lease_s=1.5) as process:
        with restartable.connect() as connection:
            job = enqueue(connection, "train")
            until(lambda: adopted(connection, job))
            trainers = trainers_of(process)
        restartable.cluster.stop(mode="immediate")
        try:
            until(lambda: sum(map(alive, trainers)) == 1)  # the process that they are forked from
        finally:
            restartable.cluster.start()
        with restartable.connect() as connection:
            until(lambda: adopted(connection, job, attempt=2))
            row = connection.execute("select faults, interruptions, last_death_phase from tensile.jobs").fetchone()
            assert row == (0, 1, None)
            assert process.poll() is None


def test_a_catalog_that_is_upgraded_beneath_it_ends_the_controller_with_a_sentence(
    database: Database, capfd: pytest.CaptureFixture[str]
) -> None:
    with database.connect() as connection, controller(database) as process:
        job = enqueue(connection, "train")
        until(lambda: adopted(connection, job))
        trainers = trainers_of(process)
        connection.execute(
            "create or replace function tensile.catalog_version() returns text language sql immutable"
            " set search_path = pg_catalog return '9.9.9'"
        )
        assert process.wait(timeout=DEADLINE_S) == 4
        assert not any(map(alive, trainers))
        row = connection.execute("select state::text, faults, interruptions from tensile.jobs").fetchone()
        assert row == ("queued", 0, 0)
    told = capfd.readouterr().err
    assert "has version 9.9.9, this program has" in told
    assert "tensile init" in told


def test_a_catalog_that_is_dropped_beneath_it_ends_the_controller_with_a_sentence(
    database: Database, capfd: pytest.CaptureFixture[str]
) -> None:
    with database.connect() as connection, controller(database) as process:
        until(lambda: scalar(connection, "select beats from tensile.workers"))
        connection.execute("drop schema tensile cascade")
        assert process.wait(timeout=DEADLINE_S) == 4
    assert "the catalog is not installed in database" in capfd.readouterr().err


def test_a_job_that_kills_its_controllers_fails(database: Database) -> None:
    with database.connect() as connection:
        enqueue(connection, "train")
        connection.execute("update tensile.jobs set max_attempts = 1")
        for adoptions in (1, 2):
            with controller(database) as process:
                query = "select count(*) = %s from tensile.plans where adopted_at is not null"
                until(partial(scalar, connection, query, adoptions))
                process.kill()
                process.wait()
        with controller(database):
            until(lambda: scalar(connection, "select state = 'failed' from tensile.jobs"))
        row = connection.execute("select faults, interruptions, attempt from tensile.jobs").fetchone()
        assert row == (1, 1, 2)


def test_a_controller_waits_for_a_database_that_is_not_there_yet(restartable: Database, tmp_path: Path) -> None:
    log = tmp_path / "log"
    restartable.cluster.stop()
    try:
        with log.open("w") as output, controller(restartable, output=output) as process:
            until(lambda: "Trying again until the database answers" in log.read_text())
            assert process.poll() is None
            restartable.cluster.start()
            with restartable.connect() as connection:
                job = enqueue(connection, "train")
                until(lambda: adopted(connection, job))
    finally:
        restartable.cluster.start()


@pytest.mark.parametrize("dsn", ["host=/nonexistent dbname=x", None])
def test_a_controller_whose_database_never_answers_or_refuses_it_ends_with_4(
    database: Database, dsn: str | None
) -> None:
    refused = database.cluster.dsn(database="absent", user="tensile_worker")
    with controller(database, dsn=dsn or refused, start_patience_s=1.0) as process:
        assert process.wait(timeout=DEADLINE_S) == 4


def test_it_tidies_up_its_logs_and_the_catalog_from_the_start(database: Database, tmp_path: Path) -> None:
    (tmp_path / "controller.log").write_bytes(b"x" * 5000)
    with database.connect() as postgres:
        postgres.execute(
            "insert into tensile.workers (host, pid, device, version, lease_s, stopped_at)"
            " values ('gone', 1, 'd', 'v', 1, now() - interval '8 days')"
        )
        with controller(database, state_dir=str(tmp_path), log_bytes=4096):
            until(lambda: scalar(postgres, "select count(*) from tensile.workers where host = 'gone'") == 0)
            until((tmp_path / "controller.log.1").exists)
    assert (tmp_path / "controller.log.1").read_bytes() == b"x" * 5000
