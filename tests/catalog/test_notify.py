"""Check the notifications about jobs: one per statement and kind, and none for changes of phase."""

import time

import pytest

from indb_tensile.catalog import jobs
from indb_tensile.catalog.notify import Listener, Notification
from indb_tensile.job import JobId, Phase
from tests.catalog.enqueue import claim, enqueue, register
from tests.conftest import Database

pytestmark = pytest.mark.postgres
DEADLINE_S = 60.0


def test_commit_notifies_the_listener_of_the_job(database: Database) -> None:
    with Listener(database.dsn("tensile_worker")) as listener, database.connect("alice") as alice:
        job = enqueue(alice)
        assert listener.wait(DEADLINE_S) == (Notification(kind="queued", job=job),)


def test_rollback_sends_no_notification(database: Database) -> None:
    with Listener(database.dsn("tensile_worker")) as listener, database.connect("alice") as alice:
        with alice.transaction(force_rollback=True):
            enqueue(alice)
        assert listener.wait(0.1) == ()


def test_statement_about_many_jobs_sends_one_notification(database: Database) -> None:
    with Listener(database.dsn("tensile_worker")) as listener, database.connect("alice") as alice:
        with alice.transaction():
            enqueue(alice)
            enqueue(alice)
        assert _receive(listener, 2) == [
            Notification(kind="queued", job=JobId(1)),
            Notification(kind="queued", job=JobId(2)),
        ]
        alice.execute("update tensile.jobs set cancel_requested = true")
        assert _receive(listener, 1) == [Notification(kind="changed")]
        assert listener.wait(0.1) == ()


def test_changes_of_state_and_cancellations_are_notified_and_changes_of_phase_are_not(database: Database) -> None:
    with (
        database.connect("alice") as alice,
        database.connect("tensile_worker") as connection,
        Listener(database.dsn("tensile_worker")) as listener,
    ):
        job = enqueue(alice)
        claimed = claim(connection, register(connection))
        assert _receive(listener, 2) == [Notification(kind="queued", job=job), Notification(kind="changed", job=job)]
        jobs.set_phase(connection, job, claimed.claim, Phase.CAPTURING)
        assert listener.wait(0.1) == ()
        alice.execute("update tensile.jobs set cancel_requested = true")
        assert listener.wait(DEADLINE_S) == (Notification(kind="cancel", job=job),)
        jobs.requeue(connection, job, claimed.claim, "the controller stops")
        assert listener.wait(DEADLINE_S) == (Notification(kind="changed", job=job),)


def test_listener_reconnects_after_its_connection_was_cut(database: Database) -> None:
    with Listener(database.dsn("tensile_worker")) as listener, database.connect() as postgres:
        postgres.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'tensile listener'"
        )
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            listener.wait(0.1)
            if listener.fileno() is not None and _is_listening(database):
                job = enqueue(postgres)
                assert listener.wait(DEADLINE_S) == (Notification(kind="queued", job=job),)
                return
        pytest.fail("the listener did not reconnect")


def _receive(listener: Listener, count: int) -> list[Notification]:
    """Return the next notifications, which may arrive together or one by one."""
    deadline = time.monotonic() + DEADLINE_S
    notifications: list[Notification] = []
    while len(notifications) < count and time.monotonic() < deadline:
        notifications.extend(listener.wait(0.1))
    return notifications


def _is_listening(database: Database) -> bool:
    """Return whether the listener has a backend that listens. Its terminated backend does not count."""
    with database.connect() as connection:
        row = connection.execute(
            "select from pg_stat_activity where application_name = 'tensile listener' and state = 'idle'"
            " and query = 'listen tensile' and datname = current_database()"
        ).fetchone()
    return row is not None
