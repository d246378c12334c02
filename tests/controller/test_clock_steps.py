"""Check that a step of the real-time clock, the database's or a controller's, neither ends a lease nor extends one.

libfaketime gives a process a real-time clock that the test sets while the process runs. Its monotonic clock is real.
"""

import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from indb_tensile.catalog import install
from indb_tensile.cluster import temporary_cluster
from tests.conftest import ROLES, Database
from tests.controller.real_controller import controller, count_adoptions, enqueue, scalar
from tests.controller.waiting import until
from tests.open_directory import open_directory

pytestmark = [pytest.mark.postgres, pytest.mark.nightly]

LIBRARY = "libfaketimeMT.so.1"
LEASE_S = 8.0
BEATS = 30  # heartbeats of 0.1 s: several times as many as any comparison of clocks needs to show a step


class FakeRealTimeClock:
    """The real-time clock of processes that are started with these environment variables."""

    def __init__(self, directory: Path) -> None:
        self._offset = directory / "offset"
        self.set("+0")
        library = next(Path("/usr/lib").glob(f"*/faketime/{LIBRARY}"), None)
        assert library is not None, "install Debian's package libfaketime"
        self.variables = {
            "LD_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": str(self._offset),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",  # the variable's name in releases before 0.9.9
        }

    def set(self, offset: str) -> None:
        """Set the clock's offset from the true time in seconds, such as +3600."""
        new = self._offset.with_name("new")
        new.write_text(offset)
        new.chmod(0o644)
        new.rename(self._offset)  # atomic, so that no process reads half a file


@pytest.fixture
def clock() -> Iterator[FakeRealTimeClock]:
    with tempfile.TemporaryDirectory(prefix="tensile-clock-") as directory:
        Path(directory).chmod(0o755)  # the database's system user reads it
        yield FakeRealTimeClock(Path(directory))


def own_dsn(database: Database, number: int) -> str:
    """Return a connection string that differs between controllers, to tell their processes apart."""
    return f"{database.dsn('tensile_worker')} connect_timeout={10 + number}"


@contextmanager
def variables(values: dict[str, str]) -> Iterator[None]:
    """Give these environment variables to the processes that are started in this context."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def assert_workers_beat(connection: psycopg.Connection[Any], workers: int) -> None:
    """Wait until every worker has sent more heartbeats, and check that none was declared dead."""
    before = dict(connection.execute("select worker_id, beats from tensile.workers").fetchall())
    assert len(before) == workers
    query = "select bool_and(beats >= (%s::jsonb ->> worker_id::text)::bigint + %s) from tensile.workers"
    former_beats = psycopg.types.json.Jsonb({str(worker): beats for worker, beats in before.items()})
    until(lambda: scalar(connection, query, former_beats, BEATS))
    rows = connection.execute("select worker_id from tensile.workers where stopped_at is null").fetchall()
    assert {worker for (worker,) in rows} == set(before)


def test_step_of_a_controllers_clock_ends_no_lease(database: Database, clock: FakeRealTimeClock) -> None:
    with database.connect() as connection, ExitStack() as stack:
        with variables(clock.variables):
            stack.enter_context(controller(database, lease_s=LEASE_S, dsn=own_dsn(database, 1)))
        until(lambda: scalar(connection, "select beats from tensile.workers"))
        job = enqueue(connection, "train")
        until(lambda: count_adoptions(connection, job))
        stack.enter_context(controller(database, lease_s=LEASE_S, dsn=own_dsn(database, 2)))
        until(lambda: scalar(connection, "select count(*) from tensile.workers where beats > 0") == 2)
        for offset in ("+3600", "-3600", "+0"):
            clock.set(offset)
            assert_workers_beat(connection, workers=2)
        assert scalar(connection, "select attempt from tensile.jobs") == 1


def test_step_of_the_databases_clock_ends_no_lease_and_hides_no_death(clock: FakeRealTimeClock) -> None:
    with open_directory("suite-steps-") as directory, temporary_cluster(ROLES, within=directory) as cluster:
        cluster.stop()
        with variables(clock.variables):
            cluster.start()
        database = Database(name="tensile_steps", cluster=cluster)
        with psycopg.connect(cluster.dsn(database="postgres"), autocommit=True) as postgres:
            postgres.execute("create database tensile_steps")
        with database.connect() as connection, ExitStack() as stack:
            install.install(connection)
            connection.execute("alter role tensile_worker login")
            for number in (1, 2):
                stack.enter_context(controller(database, lease_s=LEASE_S, dsn=own_dsn(database, number)))
            until(lambda: scalar(connection, "select count(*) from tensile.workers where beats > 0") == 2)
            job = enqueue(connection, "train")
            until(lambda: count_adoptions(connection, job))
            true_now = scalar(connection, "select clock_timestamp()")
            for offset in ("+3600", "-3600"):
                clock.set(offset)
                query = "select abs(extract(epoch from clock_timestamp() - %s)) > 3000"
                until(partial(scalar, connection, query, true_now))
                assert_workers_beat(connection, workers=2)
            assert scalar(connection, "select attempt from tensile.jobs") == 1
            pid = scalar(connection, "select pid from tensile.workers join tensile.jobs using (worker_id)")
            os.kill(pid, signal.SIGKILL)
            until(lambda: count_adoptions(connection, job, attempt=2))
            assert scalar(connection, "select faults from tensile.jobs") == 0
