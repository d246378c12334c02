"""Locks that users hold on what is theirs delay only their own jobs: real sessions, real records."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from indb_tensile.catalog.plans import DeviceUse, JobUse
from indb_tensile.controller.records import CatalogRecords, LockedError
from indb_tensile.controller.worker_registration import WorkerRegistration
from indb_tensile.errors import RequestError
from indb_tensile.job import ClaimedJob, JobId
from indb_tensile.scheduler.admission.admission_orders import CancelJob, SetWaitsFor
from tests.catalog.enqueue import enqueue, specification, state
from tests.conftest import Database

pytestmark = pytest.mark.postgres

DEADLINE_S = 60.0
PROMPT_S = 2.0  # what no ordinary user's statement may delay another user by


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
    """A session of this user in a transaction that holds what the statement locks."""
    with database.connect(user) as connection, connection.transaction(force_rollback=True):
        connection.execute(statement, values)
        yield connection


def member(records: CatalogRecords) -> WorkerRegistration:
    membership = WorkerRegistration(records)
    membership.join()
    return membership


def claimed(membership: WorkerRegistration) -> ClaimedJob:
    job = membership.claim()
    assert job is not None
    return job


def until(met: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not met():
        assert time.monotonic() < deadline, f"not within {DEADLINE_S} s"
        time.sleep(0.01)  # the deadline is what counts


def promptly(action: Callable[[], Any]) -> Any:
    begun_s = time.monotonic()
    result = action()
    assert time.monotonic() - begun_s < PROMPT_S
    return result


def flushed(membership: WorkerRegistration) -> bool:
    """Write what can be written; whether that is everything."""
    membership.flush()
    return membership.written


def cancel(job: ClaimedJob) -> CancelJob:
    return CancelJob(job=job.job, claim=job.claim)


def test_a_user_who_locks_an_own_cancelled_job_delays_neither_anothers_cancel_nor_a_claim(database: Database) -> None:
    with records_of(database) as records, database.connect("alice") as alice, database.connect("bob") as bob:
        enqueue(alice, "a")
        enqueue(bob, "b")
        membership = member(records)
        mine, other = claimed(membership), claimed(membership)
        alice.execute("select tensile_cancel(%s)", (mine.job,))
        bob.execute("select tensile_cancel(%s)", (other.job,))
        with locking(database, "alice", "select from tensile.jobs where job_id = %s for update", mine.job):
            promptly(lambda: membership.write(cancel(mine)))
            promptly(lambda: membership.write(cancel(other)))
            assert (state(alice, mine.job), state(bob, other.job)) == ("starting", "cancelled")
            enqueue(bob, "c")
            assert promptly(membership.claim) is not None
        until(lambda: flushed(membership) and state(alice, mine.job) == "cancelled")


def test_many_locked_jobs_of_one_user_take_little_of_each_turn_of_the_loop(database: Database) -> None:
    with records_of(database) as records, database.connect("alice") as alice, database.connect("bob") as bob:
        for number in range(6):
            enqueue(alice, f"a{number}")
        enqueue(bob, "b")
        membership = member(records)
        jobs = [claimed(membership) for _ in range(7)]
        with locking(database, "alice", "select from tensile.jobs for update"):
            for job in jobs:
                membership.write(SetWaitsFor(job=job.job, claim=job.claim, text="memory"))
            until(lambda: promptly(lambda: flushed(membership) or True) and _waits_for(bob) == "memory")


def test_a_beat_and_the_devices_use_wait_for_no_jobs_row(database: Database) -> None:
    with records_of(database) as records, database.connect("alice") as alice, database.connect("bob") as bob:
        mine, other = enqueue(alice, "a"), enqueue(bob, "b")
        membership = member(records)
        held = {job.job: job.claim for job in (claimed(membership), claimed(membership))}
        worker = membership.worker
        assert worker is not None
        with locking(database, "alice", "select from tensile.jobs for update"):
            beat = promptly(lambda: records.beat(worker, held))
            assert (beat.alive, beat.lost) == (True, ())
            promptly(lambda: membership.record_device(_USE, (_share(mine), _share(other))))
            told = bob.execute("select job_id, granted_bytes from tensile.device_jobs").fetchall()
            assert told == [(other, 5)]
        membership.record_device(_USE, (_share(mine), _share(other)))
        with database.connect() as postgres:
            assert _count(postgres, "select count(*) from tensile.device_jobs") == 2


def test_a_locked_table_of_jobs_costs_no_lease(database: Database) -> None:
    with records_of(database) as records, database.connect("alice") as alice:
        job = enqueue(alice, "a")
        membership = member(records)
        held = {job: claimed(membership).claim}
        worker = membership.worker
        assert worker is not None
        before = _beat_at(database)
        with locking(database, "postgres", "lock table tensile.jobs in access exclusive mode"):
            assert promptly(lambda: records.beat(worker, held)).alive
            with pytest.raises(LockedError):
                promptly(lambda: records.rescue(()))
            assert promptly(membership.claim) is None
            promptly(membership.rescue)
        assert _beat_at(database) > before


def test_a_lock_on_the_models_keeps_no_controller_from_starting_claiming_and_cancelling(database: Database) -> None:
    with database.connect("alice") as alice, records_of(database) as records:
        with locking(database, "postgres", "lock table tensile.models in access exclusive mode"):
            membership = promptly(lambda: member(records))
            with database.connect() as postgres, postgres.transaction():
                postgres.execute(
                    "set local session_replication_role = replica"
                )  # the enqueue's own check reads models
                job = enqueue(postgres, "a")
            taken = promptly(lambda: claimed(membership))
            assert taken.job == job
            promptly(lambda: membership.write(cancel(taken)))
            with database.connect() as postgres:
                assert state(postgres, job) == "cancelled"
        del alice


def test_a_locked_job_of_a_dead_worker_does_not_keep_others_from_being_rescued(database: Database) -> None:
    with (
        records_of(database) as records,
        records_of(database) as successors,
        database.connect("alice") as alice,
        database.connect("bob") as bob,
    ):
        mine, other = enqueue(alice, "a"), enqueue(bob, "b")
        membership = member(records)
        claimed(membership)
        claimed(membership)
        membership.leave()
        successor = member(successors)
        with locking(database, "alice", "select from tensile.jobs for update"):
            promptly(successor.rescue)
            assert (state(alice, mine), state(bob, other)) == ("starting", "queued")
        successor.rescue()
        assert state(alice, mine) == "queued"


def test_a_statement_that_somebody_cancels_is_written_later_and_not_dropped(database: Database) -> None:
    with records_of(database) as records, database.connect("alice") as alice, database.connect() as postgres:
        enqueue(alice, "a")
        membership = member(records)
        job = claimed(membership)
        postgres.execute("create function pg_temp.cancel() returns trigger language plpgsql as"
                         " $$ begin raise query_canceled; end $$")  # fmt: skip
        postgres.execute("create trigger cancel before update on tensile.jobs execute function pg_temp.cancel()")
        membership.write(cancel(job))
        assert not membership.written
        postgres.execute("drop trigger cancel on tensile.jobs")
        until(lambda: flushed(membership))
        assert state(alice, job.job) == "cancelled"


def test_an_unreadable_specification_costs_one_claim_and_one_write_each(database: Database) -> None:
    unreadable = 50
    with database.connect() as postgres:  # SQL refuses such a request at enqueue
        postgres.execute("alter table tensile.jobs disable trigger jobs_are_requests")
    with records_of(database) as records, database.connect("alice") as alice, database.connect("bob") as bob:
        alice.execute(
            "insert into tensile.jobs (model_name, relation_oid, relation_schema, relation_name, spec, priority)"
            " select 'a', 1, 'public', 't', %s, 1000 from generate_series(1, %s)",
            (Jsonb(specification("a") | {"task": "poetry"}), unreadable),
        )
        good = enqueue(bob, "b")
        membership = member(records)
        assert membership.claim() is None
        assert _count(alice, "select count(*) from tensile.jobs where state = 'failed'") == 1
        assert claimed(membership).job == good, "the next claim is another owner's"
        turns = 2
        membership.claim()
        while membership.take_more_to_claim():
            turns += 1
            membership.claim()
        assert _count(alice, "select count(*) from tensile.jobs where state = 'failed'") == unreadable
        assert turns <= 2 * unreadable + 2
        told = alice.execute("select distinct error_sqlstate, error_hint from tensile.jobs").fetchall()
        assert told == [
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
