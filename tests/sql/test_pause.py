"""Check tensile_pause and tensile_resume: who may call them, what they change, and what a controller sees."""

from typing import Any

import psycopg
import pytest

from indb_tensile.catalog import jobs
from indb_tensile.catalog.notify import Listener, Notification
from indb_tensile.errors import DeviceError
from indb_tensile.job import Blame, JobId, Phase
from tests.catalog.enqueue import claim, enqueue, register, state
from tests.conftest import Database

pytestmark = [pytest.mark.postgres, pytest.mark.clears_database]

DEADLINE_S = 60.0
_QUEUE = "select job_id, position, phase::text, paused, waits_for from tensile.stat_queue"


def _pause(connection: psycopg.Connection[Any], job: int) -> None:
    connection.execute("select tensile_pause(%s)", (job,))


def _resume(connection: psycopg.Connection[Any], job: int) -> None:
    connection.execute("select tensile_resume(%s)", (job,))


def test_paused_job_is_not_claimed_until_it_is_resumed(database: Database) -> None:
    with database.connect("alice") as alice, database.connect("tensile_worker") as connection:
        worker = register(connection)
        first, second = enqueue(alice, "a"), enqueue(alice, "b")
        _pause(alice, first)
        assert alice.execute(_QUEUE).fetchall() == [
            (second, 1, None, False, "a controller to look at the queue: each does so at least every poll_s seconds"),
            (first, None, None, True, f"its resumption: select tensile_resume({first});"),
        ]
        assert claim(connection, worker).job == second
        assert jobs.claim_job(connection, worker) is None
        _resume(alice, first)
        assert claim(connection, worker).job == first


@pytest.mark.parametrize("passed_over", [False, True])
def test_paused_jobs_hide_no_later_job_of_their_owner(database: Database, passed_over: bool) -> None:
    with (
        database.connect("alice") as alice,
        database.connect("bob") as bob,
        database.connect("tensile_worker") as connection,
    ):
        enqueue(bob, "b", priority=1000)
        paused = [enqueue(alice, f"a{number}", priority=10) for number in range(3)]
        later = enqueue(alice, "later")
        for job in paused:
            _pause(alice, job)
        bobs_oid = [bob.execute("select current_user::regrole::oid").fetchone()[0]] if passed_over else []  # type: ignore[index]
        worker = register(connection)
        if not passed_over:
            claim(connection, worker)
        claimed = jobs.claim_job(connection, worker, bobs_oid)
        assert claimed is not None
        assert claimed.job == later


@pytest.mark.parametrize("ending", ["interrupt", "requeue", "rescue"])
def test_active_job_stays_paused_when_it_returns_to_the_queue(database: Database, ending: str) -> None:
    with database.connect("alice") as alice, database.connect("tensile_worker") as connection:
        job = enqueue(alice)
        worker = register(connection)
        claimed = claim(connection, worker)
        jobs.start_running(connection, job, claimed.claim)
        _pause(alice, job)
        jobs.set_phase(connection, job, claimed.claim, Phase.PAUSED)
        assert alice.execute(_QUEUE).fetchall() == [
            (job, None, "paused", True, f"its resumption: select tensile_resume({job});")
        ]
        progress = alice.execute(
            "select state::text, phase::text, paused from tensile.stat_progress_train"
        ).fetchall()
        assert progress == [("running", "paused", True)]
        if ending == "interrupt":
            jobs.interrupt(connection, job, claimed.claim, DeviceError("gone"), Blame.OTHERS)
        elif ending == "requeue":
            jobs.requeue(connection, job, claimed.claim, "the controller stops")
        else:
            jobs.leave(connection, worker)
            worker = register(connection)
            jobs.rescue(connection)
        connection.execute("update tensile.jobs set not_before = null")
        assert state(alice, job) == "queued"
        assert jobs.claim_job(connection, worker) is None
        _resume(alice, job)
        assert claim(connection, worker).job == job


def test_heartbeat_reports_the_jobs_that_are_paused(database: Database) -> None:
    with database.connect("alice") as alice, database.connect("tensile_worker") as connection:
        worker = register(connection)
        first, second = enqueue(alice, "a"), enqueue(alice, "b")
        claims = {claimed.job: claimed.claim for claimed in (claim(connection, worker), claim(connection, worker))}
        assert jobs.beat(connection, worker, claims).paused == ()
        _pause(alice, second)
        assert jobs.beat(connection, worker, claims).paused == (second,)
        _pause(alice, first)
        _resume(alice, second)
        assert jobs.beat(connection, worker, claims).paused == (first,)


def test_pausing_and_resuming_notifies_the_controllers_and_is_part_of_the_history(database: Database) -> None:
    with (
        database.connect("alice") as alice,
        database.connect("tensile_worker") as connection,
        Listener(database.dsn("tensile_worker")) as listener,
    ):
        job = enqueue(alice)
        _expect(listener, "queued", job)
        _pause(alice, job)
        _expect(listener, "changed", job)
        _resume(alice, job)
        _expect(listener, "queued", job)
        claim(connection, register(connection))
        _expect(listener, "changed", job)
        _pause(alice, job)
        _expect(listener, "pause", job)
        _resume(alice, job)
        _expect(listener, "pause", job)
        kinds = alice.execute(
            "select kind from tensile.job_events where kind ~ 'requested' order by event_id"
        ).fetchall()
        assert kinds == [("pause_requested",), ("resume_requested",)] * 2


def _expect(listener: Listener, kind: str, job: JobId) -> None:
    assert listener.wait(DEADLINE_S) == (Notification(kind=kind, job=job),)


def test_only_the_owner_or_an_administrator_pauses_and_resumes(database: Database) -> None:
    with (
        database.connect("alice") as alice,
        database.connect("bob") as bob,
        database.connect("admin") as admin,
    ):
        job = enqueue(alice)
        assert _refused(bob, "pause", job) == ("42704", f"there is no job {job}")
        _pause(admin, job)
        assert _refused(bob, "resume", job) == ("42704", f"there is no job {job}")
        _resume(alice, job)


@pytest.mark.parametrize("verb", ["pause", "resume"])
def test_user_who_only_sees_the_job_may_not_change_it(database: Database, verb: str) -> None:
    with database.connect("alice") as alice, database.connect("postgres") as postgres:
        job = enqueue(alice)
        if verb == "resume":
            _pause(alice, job)
        with postgres.transaction(force_rollback=True):
            postgres.execute("grant tensile_user to monitor")
            postgres.execute("set local session authorization monitor")
            assert _refused(postgres, verb, job) == ("42501", f"job {job} belongs to another role")


def test_requests_that_change_nothing_are_refused_with_the_reason(database: Database) -> None:
    with database.connect("alice") as alice, database.connect("tensile_worker") as connection:
        job = enqueue(alice)
        assert _refused(alice, "pause", 99) == ("42704", "there is no job 99")
        assert _refused(alice, "resume", job) == ("55000", f"job {job} is not paused")
        _pause(alice, job)
        assert _refused(alice, "pause", job) == ("55000", f"job {job} is paused already")
        alice.execute("select tensile_cancel(%s)", (job,))
        for verb in ("pause", "resume"):
            assert _refused(alice, verb, job) == ("55000", f"job {job} has ended: cancelled")
        active = enqueue(alice, "b")
        claim(connection, register(connection))
        alice.execute("select tensile_cancel(%s)", (active,))
        assert _refused(alice, "pause", active) == ("55000", f"job {active} is being cancelled")


def _refused(connection: psycopg.Connection[Any], verb: str, job: int) -> tuple[str | None, str | None]:
    """Return SQLSTATE and message of the refusal, which must have a hint and, except for unknown jobs, a detail."""
    with pytest.raises(psycopg.Error) as caught:
        connection.execute(f"select tensile_{verb}(%s)", (job,))
    diagnosis = caught.value.diag
    assert diagnosis.message_hint
    assert diagnosis.message_detail or diagnosis.sqlstate == "42704"
    return diagnosis.sqlstate, diagnosis.message_primary


def test_cancelled_paused_job_ends_at_once(database: Database) -> None:
    with database.connect("alice") as alice:
        job = enqueue(alice)
        _pause(alice, job)
        alice.execute("select tensile_cancel(%s)", (job,))
        assert state(alice, job) == "cancelled"
