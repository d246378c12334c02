"""Notifications: one per statement and kind, and none that nobody needs."""

import time

import pytest

from indb_tensile.catalog import jobs
from indb_tensile.catalog.notify import Listener, Notification
from indb_tensile.job import JobId, Phase
from tests.catalog.enqueue import claim, enqueue, register
from tests.conftest import Database

pytestmark = pytest.mark.postgres
DEADLINE_S = 60.0


def test_a_commit_wakes_the_listener_with_the_job(database: Database) -> None:
    with Listener(database.dsn("tensile_worker")) as listener, database.connect("alice") as alice:
        job = enqueue(alice)
        assert listener.wait(DEADLINE_S) == (Notification(kind="queued", job=job),)


def test_a_rollback_wakes_nobody(database: Database) -> None:
    with Listener(database.dsn("tensile_worker")) as listener, database.connect("alice") as alice:
        with alice.transaction(force_rollback=True):
            enqueue(alice)
        assert listener.wait(0.1) == ()


def test_a_statement_about_many_jobs_notifies_once(database: Database) -> None:
    with Listener(database.dsn("tensile_worker")) as listener, database.connect("alice") as alice:
        with alice.transaction():
            enqueue(alice)
            enqueue(alice)
        assert _gather(listener, 2) == [
            Notification(kind="queued", job=JobId(1)),
            Notification(kind="queued", job=JobId(2)),
        ]
        alice.execute("update tensile.jobs set cancel_requested = true")
        assert _gather(listener, 1) == [Notification(kind="changed")]
        assert listener.wait(0.1) == ()


def test_a_change_of_state_and_a_cancellation_are_told_and_a_change_of_phase_is_not(database: Database) -> None:
    with (
        database.connect("alice") as alice,
        database.connect("tensile_worker") as connection,
        Listener(database.dsn("tensile_worker")) as listener,
    ):
        job = enqueue(alice)
        claimed = claim(connection, register(connection))
        assert _gather(listener, 2) == [Notification(kind="queued", job=job), Notification(kind="changed", job=job)]
        jobs.set_phase(connection, job, claimed.claim, Phase.CAPTURING)
        assert listener.wait(0.1) == ()
        alice.execute("update tensile.jobs set cancel_requested = true")
        assert listener.wait(DEADLINE_S) == (Notification(kind="cancel", job=job),)
        jobs.requeue(connection, job, claimed.claim, "the controller stops")
        assert listener.wait(DEADLINE_S) == (Notification(kind="changed", job=job),)


def test_a_listener_whose_connection_was_cut_listens_again(database: Database) -> None:
    with Listener(database.dsn("tensile_worker")) as listener, database.connect() as postgres:
        postgres.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'tensile listener'"
        )
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            listener.wait(0.1)
            if listener.fileno() is not None and _listens(database):
                job = enqueue(postgres)
                assert listener.wait(DEADLINE_S) == (Notification(kind="queued", job=job),)
                return
        pytest.fail("the listener did not come back")


def _gather(listener: Listener, count: int) -> list[Notification]:
    """The next wake-ups, which may come together or one by one."""
    deadline = time.monotonic() + DEADLINE_S
    heard: list[Notification] = []
    while len(heard) < count and time.monotonic() < deadline:
        heard.extend(listener.wait(0.1))
    return heard


def _listens(database: Database) -> bool:
    """Whether a living backend of the listener is there: the one that was cut has gone."""
    with database.connect() as connection:
        row = connection.execute(
            "select from pg_stat_activity where application_name = 'tensile listener' and state = 'idle'"
            " and query = 'listen tensile' and datname = current_database()"
        ).fetchone()
    return row is not None
