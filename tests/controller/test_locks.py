"""Check with real sessions that a user's locks on the user's own rows delay no other user's job."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from indb_tensile.catalog.plans import DeviceUse, JobUse
from indb_tensile.controller.device_records import DeviceRecords
from indb_tensile.controller.records import CatalogRecords, LockedError
from indb_tensile.controller.worker_registration import WorkerRegistration
from indb_tensile.errors import RequestError
from indb_tensile.job import ClaimedJob, JobId
from indb_tensile.scheduler.admission.admission_orders import CancelJob, SetWaitsFor
from tests.catalog.enqueue import enqueue, specification, state
from tests.conftest import Database
from tests.controller.waiting import until

pytestmark = pytest.mark.postgres


PROMPT_S = 60.0  # enough on a busy machine; a wait for another user's lock would last until the test ends


@contextmanager
def records_of(database: Database, lease_s: float = 30.0) -> Iterator[CatalogRecords]:
    records = CatalogRecords(
        database.dsn("tensile_worker"),
        application_name="test",
        host="host",
        pid=1,
        device_kind="emulated:test",
        policy="tensile+",
        lease_s=lease_s,
        slots=8,
    )
    try:
        yield records
    finally:
        records.close()


@contextmanager
def locking(database: Database, user: str, statement: str, *values: Any) -> Iterator[psycopg.Connection]:
    """Hold the statement's locks in a transaction of this user."""
    with database.connect(user) as connection, connection.transaction(force_rollback=True):
        connection.execute(statement, values)
        yield connection


def join_worker(records: CatalogRecords) -> WorkerRegistration:
    membership = WorkerRegistration(records)
    membership.join()
    return membership


def claim_job(membership: WorkerRegistration) -> ClaimedJob:
    job = membership.claim()
    assert job is not None
    return job


def call_promptly(action: Callable[[], Any]) -> Any:
    begun_s = time.monotonic()
    result = action()
    assert time.monotonic() - begun_s < PROMPT_S
    return result


def flush(membership: WorkerRegistration) -> bool:
    """Make all pending writes that are possible, and return whether none is left."""
    membership.flush()
    return membership.written


def cancel(job: ClaimedJob) -> CancelJob:
    return CancelJob(job=job.job, claim=job.claim)


def test_lock_on_a_cancelled_job_delays_no_cancel_and_no_claim_of_another_users_job(database: Database) -> None:
    with records_of(database) as records, database.connect("alice") as alice, database.connect("bob") as bob:
        enqueue(alice, "a")
        enqueue(bob, "b")
        membership = join_worker(records)
        locked_job, other_job = claim_job(membership), claim_job(membership)
        alice.execute("select tensile_cancel(%s)", (locked_job.job,))
        bob.execute("select tensile_cancel(%s)", (other_job.job,))
        with locking(database, "alice", "select from tensile.jobs where job_id = %s for update", locked_job.job):
            call_promptly(lambda: membership.write(cancel(locked_job)))
            call_promptly(lambda: membership.write(cancel(other_job)))
            assert (state(alice, locked_job.job), state(bob, other_job.job)) == ("starting", "cancelled")
            enqueue(bob, "c")
            assert call_promptly(membership.claim) is not None
        until(lambda: flush(membership) and state(alice, locked_job.job) == "cancelled")


def test_many_locked_jobs_of_one_user_delay_no_turn_of_the_loop(database: Database) -> None:
    with records_of(database) as records, database.connect("alice") as alice, database.connect("bob") as bob:
        for number in range(6):
            enqueue(alice, f"a{number}")
        enqueue(bob, "b")
        membership = join_worker(records)
        jobs = [claim_job(membership) for _ in range(7)]
        with locking(database, "alice", "select from tensile.jobs for update"):
            for job in jobs:
                membership.write(SetWaitsFor(job=job.job, claim=job.claim, text="memory"))
            until(lambda: call_promptly(lambda: flush(membership) or True) and _waits_for(bob) == "memory")


def test_heartbeat_and_device_use_wait_for_no_row_of_jobs(database: Database) -> None:
    with records_of(database) as records, database.connect("alice") as alice, database.connect("bob") as bob:
        locked_job, other_job = enqueue(alice, "a"), enqueue(bob, "b")
        membership = join_worker(records)
        claims = {job.job: job.claim for job in (claim_job(membership), claim_job(membership))}
        worker = membership.worker
        assert worker is not None
        device = DeviceRecords(records)
        with locking(database, "alice", "select from tensile.jobs for update"):
            beat = call_promptly(lambda: records.beat(worker, claims))
            assert (beat.alive, beat.lost) == (True, ())
            call_promptly(lambda: device.record_use(worker, _USE, (_share(locked_job), _share(other_job))))
            shares = bob.execute("select job_id, granted_bytes from tensile.device_jobs").fetchall()
            assert shares == [(other_job, 5)]
        device.record_use(worker, _USE, (_share(locked_job), _share(other_job)))
        with database.connect() as postgres:
            assert _count(postgres, "select count(*) from tensile.device_jobs") == 2


def test_locked_jobs_table_ends_no_lease(database: Database) -> None:
    with records_of(database) as records, database.connect("alice") as alice:
        job = enqueue(alice, "a")
        membership = join_worker(records)
        claims = {job: claim_job(membership).claim}
        worker = membership.worker
        assert worker is not None
        before = _beat_at(database)
        with locking(database, "postgres", "lock table tensile.jobs in access exclusive mode"):
            assert call_promptly(lambda: records.beat(worker, claims)).alive
            with pytest.raises(LockedError):
                call_promptly(lambda: records.rescue(()))
            assert call_promptly(membership.claim) is None
            call_promptly(membership.rescue)
        assert _beat_at(database) > before


def test_lock_on_models_stops_no_start_claim_or_cancel_of_a_controller(database: Database) -> None:
    with database.connect("alice") as alice, records_of(database) as records:
        with locking(database, "postgres", "lock table tensile.models in access exclusive mode"):
            membership = call_promptly(lambda: join_worker(records))
            with database.connect() as postgres, postgres.transaction():
                # Skips the triggers, because one of them reads models.
                postgres.execute("set local session_replication_role = replica")
                job = enqueue(postgres, "a")
            claimed_job = call_promptly(lambda: claim_job(membership))
            assert claimed_job.job == job
            call_promptly(lambda: membership.write(cancel(claimed_job)))
            with database.connect() as postgres:
                assert state(postgres, job) == "cancelled"
        del alice


def test_locked_job_of_a_dead_worker_does_not_stop_the_rescue_of_other_jobs(database: Database) -> None:
    with (
        records_of(database) as records,
        records_of(database) as successors,
        database.connect("alice") as alice,
        database.connect("bob") as bob,
    ):
        locked_job, other_job = enqueue(alice, "a"), enqueue(bob, "b")
        membership = join_worker(records)
        claim_job(membership)
        claim_job(membership)
        membership.leave()
        successor = join_worker(successors)
        with locking(database, "alice", "select from tensile.jobs for update"):
            call_promptly(successor.rescue)
            assert (state(alice, locked_job), state(bob, other_job)) == ("starting", "queued")
        successor.rescue()
        assert state(alice, locked_job) == "queued"


def test_write_that_another_session_cancels_is_repeated_later(database: Database) -> None:
    with records_of(database) as records, database.connect("alice") as alice, database.connect() as postgres:
        enqueue(alice, "a")
        membership = join_worker(records)
        job = claim_job(membership)
        postgres.execute("create function pg_temp.cancel() returns trigger language plpgsql as"
                         " $$ begin raise query_canceled; end $$")  # fmt: skip
        postgres.execute("create trigger cancel before update on tensile.jobs execute function pg_temp.cancel()")
        membership.write(cancel(job))
        assert not membership.written
        postgres.execute("drop trigger cancel on tensile.jobs")
        until(lambda: flush(membership))
        assert state(alice, job.job) == "cancelled"


def test_unreadable_specification_costs_one_claim_and_one_write(database: Database) -> None:
    unreadable_jobs = 50
    with database.connect() as postgres:  # the trigger refuses an unreadable request
        postgres.execute("alter table tensile.jobs disable trigger jobs_are_requests")
    with records_of(database) as records, database.connect("alice") as alice, database.connect("bob") as bob:
        alice.execute(
            "insert into tensile.jobs (model_name, relation_oid, relation_schema, relation_name, spec, priority)"
            " select 'a', 1, 'public', 't', %s, 1000 from generate_series(1, %s)",
            (Jsonb(specification("a") | {"task": "poetry"}), unreadable_jobs),
        )
        readable_job = enqueue(bob, "b")
        membership = join_worker(records)
        assert membership.claim() is None
        assert _count(alice, "select count(*) from tensile.jobs where state = 'failed'") == 1
        assert claim_job(membership).job == readable_job, "the next claim takes another owner's job"
        turns = 2
        membership.claim()
        while membership.take_more_to_claim():
            turns += 1
            membership.claim()
        assert _count(alice, "select count(*) from tensile.jobs where state = 'failed'") == unreadable_jobs
        assert turns <= 2 * unreadable_jobs + 2
        error = alice.execute("select distinct error_sqlstate, error_hint from tensile.jobs").fetchall()
        assert error == [
            (RequestError.sqlstate, "Enqueue jobs with tensile_train, and give numbers of an ordinary size.")
        ]


_USE = DeviceUse(
    kind="emulated:test",
    capacity_bytes=10,
    budget_bytes=10,
    granted_bytes=10,
    used_bytes=10,
    high_water_bytes=10,
    host_bytes=0,
    busy_percent=None,
    memory_busy_percent=None,
    outside_bytes=None,
)


def _share(job: JobId) -> JobUse:
    return JobUse(job=job, granted_bytes=5, used_bytes=5, high_water_bytes=5)


def _waits_for(connection: psycopg.Connection) -> Any:
    row = connection.execute("select waits_for from tensile.jobs").fetchone()
    assert row is not None
    return row[0]


def _count(connection: psycopg.Connection, query: Any) -> int:
    row = connection.execute(query).fetchone()
    assert row is not None
    return int(row[0])


def _beat_at(database: Database) -> Any:
    with database.connect() as connection:
        row = connection.execute("select heartbeat_at from tensile.workers").fetchone()
    assert row is not None
    return row[0]
