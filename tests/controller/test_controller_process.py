"""Check the controller's process against a real catalog and the native device ledger, with fake trainers."""

import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from indb_tensile.cluster import Cluster
from indb_tensile.device.hardware import emulated_kind
from tests.conftest import Database
from tests.controller.fakes import alive
from tests.controller.real_controller import children_of, controller, count_adoptions, enqueue, scalar
from tests.controller.waiting import until

pytestmark = pytest.mark.postgres

DEADLINE_S = 120.0


@pytest.fixture
def restartable(cluster: Cluster, template: str) -> Iterator[Database]:
    """A fresh database. It is created and dropped over connections that a restart of the server does not break."""
    database = Database(name="test_controller_restart", cluster=cluster)
    name = sql.Identifier(database.name)
    with psycopg.connect(cluster.dsn(database="postgres"), autocommit=True) as connection:
        connection.execute(
            sql.SQL("create database {} template {} strategy file_copy").format(name, sql.Identifier(template))
        )
    yield database
    with psycopg.connect(cluster.dsn(database="postgres"), autocommit=True) as connection:
        connection.execute(sql.SQL("drop database {} with (force)").format(name))


def test_controller_claims_plans_measures_and_cancels_a_job(database: Database) -> None:
    with database.connect() as connection, controller(database):
        job = enqueue(connection, "train", 5 << 20)
        until(lambda: count_adoptions(connection, job))
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


@pytest.mark.nightly
def test_locks_of_one_user_delay_no_start_and_no_cancel_of_another_users_job(database: Database) -> None:
    state = "select state::text from tensile.jobs where job_id = %s"
    with database.connect("alice") as alice, database.connect("bob") as bob, controller(database, lease_s=30.0):
        alices_job = enqueue(alice, "train")
        blocked_jobs = [enqueue(alice, "read") for _ in range(3)]
        until(lambda: count_adoptions(alice, alices_job))
        bobs_job = enqueue(bob, "report")
        until(lambda: count_adoptions(bob, bobs_job))
        with database.connect("alice") as locking_session, locking_session.transaction():
            alice.execute("select tensile_cancel(%s)", (alices_job,))
            locking_session.execute("select from tensile.jobs for update")
            locking_session.execute("select pg_notify('tensile', 'cancel ' || repeat('9', 5000))")
            begun_s = time.monotonic()
            late_job = enqueue(bob, "report")
            until(lambda: count_adoptions(bob, late_job))
            bob.execute("select tensile_cancel(job_id) from tensile.jobs")
            until(lambda: {scalar(bob, state, job) for job in (bobs_job, late_job)} == {"cancelled"})
            assert time.monotonic() - begun_s < DEADLINE_S / 4
            assert scalar(alice, state, alices_job) != "cancelled"
        until(lambda: scalar(alice, state, alices_job) == "cancelled")
        assert scalar(alice, state, blocked_jobs[-1]) == "queued"


@pytest.mark.nightly
def test_new_device_is_measured_before_jobs_start(database: Database) -> None:
    with database.connect() as connection:
        with controller(database, emulate="h200", link_out_bytes_per_s=0, link_in_bytes_per_s=0):
            job = enqueue(connection, "train")
            until(lambda: count_adoptions(connection, job))
        slower_query = (
            "select here_ns > there_ns from tensile.device_paces where machine = 'h200' and device_kind = %s"
        )
        assert scalar(connection, slower_query, emulated_kind(1))
        rates_query = "select bool_and(mb_per_s <= emulated_mb_per_s) from tensile.stat_link where device = %s"
        assert scalar(connection, rates_query, emulated_kind(1))


@pytest.mark.nightly
def test_controller_that_emulates_an_unknown_gpu_ends_with_code_2(database: Database) -> None:
    with controller(database, emulate="abacus") as process:
        assert process.wait(timeout=DEADLINE_S) == 2


def test_killed_controller_leaves_no_trainer_and_the_next_controller_runs_its_job(database: Database) -> None:
    with database.connect() as connection:
        with controller(database) as first:
            job = enqueue(connection, "train")
            until(lambda: count_adoptions(connection, job))
            trainers = children_of(first)
            assert trainers
            first.kill()
            first.wait()
            until(lambda: not any(map(alive, trainers)))
        with controller(database):
            until(lambda: count_adoptions(connection, job, attempt=2))


@pytest.mark.nightly
def test_restarted_controller_foretells_with_the_overheads_that_an_earlier_one_measured(database: Database) -> None:
    with database.connect() as connection:
        with controller(database):
            enqueue(connection, "close")
            until(lambda: scalar(connection, "select max(closing_ns) = 7e9 from tensile.device_overheads"))
        connection.execute("delete from tensile.jobs")  # its trainer would measure again
        connection.execute("delete from tensile.device_outlooks")
        with controller(database):
            enqueue(connection, "train")
            query = "select max((outlook->'running'->0->>'closing_ns')::float8) from tensile.device_outlooks"
            assert until(lambda: scalar(connection, query)) == 7e9


@pytest.mark.nightly
def test_job_whose_device_is_lost_waits_without_a_fault_until_the_device_works_again(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone_file = tmp_path / "gone"
    gone_file.touch()
    monkeypatch.setenv("FAKE_DEVICE_GONE", str(gone_file))
    with database.connect() as connection, controller(database) as process:
        enqueue(connection, "lose")
        waits_query = "select waits_for from tensile.stat_queue where waits_for like 'a device that works%%'"
        assert until(lambda: scalar(connection, waits_query)).startswith(
            "a device that works: the device is gone; not before "
        )
        # The controller goes on trying while the test looks, so one statement reads the count and the error.
        error_query = """select error_sqlstate, error_message, error_hint, version_id from tensile.jobs
                          where state = 'queued'
                            and (select count(*) from tensile.job_events where kind = 'interrupted') >= 2"""
        error = until(lambda: connection.execute(error_query).fetchone())
        assert error == ("58000", "the device is gone", "Wait.", None)
        gone_file.unlink()
        until(lambda: scalar(connection, "select count(*) from tensile.plans where adopted_at is not null"))
        assert scalar(connection, "select faults from tensile.jobs") == 0
        assert process.poll() is None


def test_sigterm_requeues_the_job_without_a_fault_and_leaves_no_process(database: Database) -> None:
    with database.connect() as connection, controller(database) as process:
        job = enqueue(connection, "train")
        until(lambda: count_adoptions(connection, job))
        trainers = children_of(process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=DEADLINE_S) == 0
        row = connection.execute("select state::text, faults, interruptions from tensile.jobs").fetchone()
        assert row == ("queued", 0, 0)
        assert not any(map(alive, trainers))
        assert scalar(connection, "select count(*) from tensile.workers where stopped_at is null") == 0


@pytest.mark.nightly
def test_database_restart_does_not_interrupt_a_running_job(restartable: Database) -> None:
    with controller(restartable, lease_s=30.0) as process:
        with restartable.connect() as connection:
            job = enqueue(connection, "train")
            until(lambda: count_adoptions(connection, job))
        restartable.cluster.restart(mode="immediate")
        with restartable.connect() as connection:
            second = enqueue(connection, "train")
            until(lambda: count_adoptions(connection, second))
            row = connection.execute("select attempt from tensile.jobs where job_id = %s", (job,)).fetchone()
            assert row == (1,)
            assert process.poll() is None


@pytest.mark.nightly
def test_recovery_longer_than_the_lease_counts_as_no_fault_of_the_job(restartable: Database) -> None:
    with controller(restartable, lease_s=1.5) as process:
        with restartable.connect() as connection:
            job = enqueue(connection, "train")
            until(lambda: count_adoptions(connection, job))
            trainers = children_of(process)
        restartable.cluster.stop(mode="immediate")
        try:
            until(lambda: sum(map(alive, trainers)) == 1)  # the fork server remains
        finally:
            restartable.cluster.start()
        with restartable.connect() as connection:
            until(lambda: count_adoptions(connection, job, attempt=2))
            row = connection.execute("select faults, interruptions, last_death_phase from tensile.jobs").fetchone()
            assert row == (0, 1, None)
            assert process.poll() is None


@pytest.mark.nightly
def test_catalog_upgrade_ends_the_controller_with_a_message(
    database: Database, capfd: pytest.CaptureFixture[str]
) -> None:
    with database.connect() as connection, controller(database) as process:
        job = enqueue(connection, "train")
        until(lambda: count_adoptions(connection, job))
        trainers = children_of(process)
        connection.execute(
            "create or replace function tensile.catalog_version() returns text language sql immutable"
            " set search_path = pg_catalog return '9.9.9'"
        )
        assert process.wait(timeout=DEADLINE_S) == 4
        assert not any(map(alive, trainers))
        row = connection.execute("select state::text, faults, interruptions from tensile.jobs").fetchone()
        assert row == ("queued", 0, 0)
    log = capfd.readouterr().err
    assert "has version 9.9.9, this program has" in log
    assert "tensile init" in log


@pytest.mark.nightly
def test_dropped_catalog_ends_the_controller_with_a_message(
    database: Database, capfd: pytest.CaptureFixture[str]
) -> None:
    with database.connect() as connection, controller(database) as process:
        until(lambda: scalar(connection, "select beats from tensile.workers"))
        connection.execute("drop schema tensile cascade")
        assert process.wait(timeout=DEADLINE_S) == 4
    assert "the catalog is not installed in database" in capfd.readouterr().err


@pytest.mark.nightly
def test_job_fails_after_its_controllers_were_killed(database: Database) -> None:
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


@pytest.mark.nightly
def test_controller_waits_for_a_database_that_is_not_started_yet(restartable: Database, tmp_path: Path) -> None:
    log = tmp_path / "log"
    restartable.cluster.stop()
    try:
        with log.open("w") as output, controller(restartable, output=output) as process:
            until(lambda: log.read_text().count("Trying again until the database answers") > 1)
            assert process.poll() is None
            restartable.cluster.start()
            with restartable.connect() as connection:
                job = enqueue(connection, "train")
                until(lambda: count_adoptions(connection, job))
            links = [str(entry.readlink()) for entry in Path(f"/proc/{process.pid}/fd").iterdir()]
            assert links.count("anon_inode:[eventfd]") == 1, "failed starts leave nothing open"
    finally:
        restartable.cluster.start()


@pytest.mark.by_day("host")
@pytest.mark.parametrize("dsn", ["host=/nonexistent dbname=x", None])
def test_controller_without_a_reachable_database_ends_with_code_4(database: Database, dsn: str | None) -> None:
    refused = database.cluster.dsn(database="absent", user="tensile_worker")
    with controller(database, dsn=dsn or refused, start_patience_s=1.0) as process:
        assert process.wait(timeout=DEADLINE_S) == 4


@pytest.mark.nightly
def test_controller_rotates_logs_and_deletes_old_workers_from_the_start(database: Database, tmp_path: Path) -> None:
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
