"""Check the queue: which jobs are claimed, what stale claims may write, and how states and progress are recorded."""

import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from indb_tensile.catalog import jobs, models, stored_checkpoints
from indb_tensile.catalog.jobs import HeartbeatReply, Progress
from indb_tensile.errors import (
    DataError,
    DeviceError,
    LostClaimError,
)
from indb_tensile.job import Blame, ClaimedJob, JobId, JobState, Phase
from tests.catalog.enqueue import (
    LEASE_S,
    claim,
    claim_or_fail,
    enqueue,
    publication,
    register,
    rows_read,
    specification,
    state,
)
from tests.conftest import Database
from tests.nightly import nightly_unless

pytestmark = [pytest.mark.postgres, pytest.mark.clears_database]


@pytest.mark.nightly
@pytest.mark.parametrize("count", nightly_unless(lambda count: count == 200, [200, 1000]))
def test_concurrent_workers_claim_each_job_once(database: Database, count: int) -> None:
    with database.connect() as connection:
        connection.execute("select tensile_set_quota('postgres', jobs_running => 1000)")
        connection.execute(
            "insert into tensile.jobs (model_name, relation_oid, relation_schema, relation_name, spec)"
            " select 'm', 1, 'public', 't', %s from generate_series(1, %s)",
            (Jsonb(specification("m")), count),
        )
    claimed: list[list[JobId]] = [[] for _ in range(8)]
    barrier = threading.Barrier(8)

    def claim_all(claimed_jobs: list[JobId]) -> None:
        with database.connect("tensile_worker") as connection:
            worker = register(connection)
            barrier.wait()
            while isinstance(job := jobs.claim_job(connection, worker), ClaimedJob):
                claimed_jobs.append(job.job)

    threads = [threading.Thread(target=claim_all, args=(claimed_jobs,)) for claimed_jobs in claimed]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(job for claimed_jobs in claimed for job in claimed_jobs) == list(range(1, count + 1))
    assert sum(bool(claimed_jobs) for claimed_jobs in claimed) > 1, (
        "one worker claimed all jobs, so nothing was concurrent"
    )


def test_long_queue_slows_neither_an_enqueue_nor_a_claim_without_statistics(database: Database) -> None:
    with database.connect() as connection:
        connection.execute(
            "insert into tensile.jobs (model_name, relation_oid, relation_schema, relation_name, spec)"
            " select 'm', 1, 'public', 't', %s from generate_series(1, 2000)",
            (Jsonb(specification("m")),),
        )
    with database.connect() as connection, connection.transaction():
        worker = register(connection)
        before = rows_read(connection)
        enqueue(connection)
        enqueued = rows_read(connection)
        claim(connection, worker)
        assert enqueued - before < 5
        assert rows_read(connection) - enqueued < 10


def test_job_keeps_the_number_of_threads_of_its_first_worker(database: Database) -> None:
    with database.connect("tensile_worker") as worker, database.connect() as owner:
        first, second = (
            jobs.register_worker(worker, host="host", pid=1, device_kind="cpu:test", lease_s=LEASE_S, threads=threads)
            for threads in (3, 5)
        )
        enqueue(owner)
        claimed = claim(worker, first)
        assert claimed.threads == 3
        jobs.requeue(worker, claimed.job, claimed.claim, "its controller stops")
        owner.execute("update tensile.jobs set not_before = null")
        assert claim(worker, second).threads == 3
        enqueue(owner)
        assert claim(worker, second).threads == 5
        assert owner.execute("select threads from tensile.stat_jobs order by job_id").fetchall() == [(3,), (5,)]


def test_job_of_higher_priority_is_claimed_first_and_then_the_older_job(database: Database) -> None:
    with database.connect("alice") as alice, database.connect("tensile_worker") as connection:
        order = [enqueue(alice, priority=priority) for priority in (0, 5, 0, 5)]
        worker = register(connection)
        assert [claim(connection, worker).job for _ in order] == [order[1], order[3], order[0], order[2]]
        assert jobs.claim_job(connection, worker) is None


def test_claimed_job_contains_the_whole_request(database: Database) -> None:
    with database.connect("alice") as alice, database.connect("tensile_worker") as connection:
        job = enqueue(alice, spec={"features": ["a", "b"], "hyperparams": {"epochs": 3}})
        claimed = claim(connection, register(connection))
        assert (claimed.job, claimed.attempt, claimed.spec.features) == (job, 1, ("a", "b"))
        assert claimed.spec.hyperparams == {"epochs": 3}
        row = alice.execute("select current_user::regrole::oid").fetchone()
        assert row == (claimed.owner_oid,)


def test_job_is_not_claimed_before_its_not_before_time(database: Database) -> None:
    with database.connect("alice") as alice, database.connect("tensile_worker") as connection:
        enqueue(alice, not_before=datetime.now(UTC) + timedelta(hours=1))
        due = enqueue(alice, not_before=datetime.now(UTC) - timedelta(hours=1))
        worker = register(connection)
        assert claim(connection, worker).job == due
        assert jobs.claim_job(connection, worker) is None


def test_job_of_another_installation_is_never_claimed(database: Database) -> None:
    with database.connect() as connection:
        enqueue(connection, installation="00000000-0000-0000-0000-000000000000")
        assert jobs.claim_job(connection, register(connection)) is None
        assert jobs.foreign_jobs(connection) == 1


def test_worker_that_left_claims_nothing(database: Database) -> None:
    with database.connect("alice") as alice, database.connect("tensile_worker") as connection:
        enqueue(alice)
        worker = register(connection)
        jobs.leave(connection, worker)
        assert jobs.claim_job(connection, worker) is None


def test_job_with_an_unreadable_specification_fails_and_the_next_job_is_claimed(database: Database) -> None:
    with database.connect("alice") as alice, database.connect("tensile_worker") as connection:
        _admit_any_request(database)
        broken = enqueue(alice, spec={"task": "poetry"})
        next_job = enqueue(alice)
        worker = register(connection)
        assert claim_or_fail(connection, worker) is None
        assert claim(connection, worker).job == next_job
        assert state(alice, broken) == "failed"
        row = alice.execute("select error_message from tensile.jobs where job_id = %s", (broken,)).fetchone()
        assert row is not None
        assert "the specification of job" in row[0]
        assert "poetry" in row[0]


@pytest.mark.parametrize(
    "value",
    ["1e300", f"[{10**30}]", "[" * 3000 + "]" * 3000],
    ids=["huge number", "huge number in a list", "deep nesting"],
)
def test_specification_that_cannot_be_sent_to_a_trainer_fails_its_job(database: Database, value: str) -> None:
    _admit_any_request(database)
    with database.connect() as connection:
        connection.execute(
            "insert into tensile.jobs (model_name, relation_oid, relation_schema, relation_name, spec)"
            " values ('m', 1, 'public', 't',"
            " jsonb_set(%s, '{hyperparams}', jsonb_build_object('epochs', %s::jsonb)))",
            (Jsonb(specification("m")), value),
        )
        assert claim_or_fail(connection, register(connection)) is None
        row = connection.execute("select state, error_sqlstate, error_message from tensile.jobs").fetchone()
        assert row is not None
        assert row[:2] == ("failed", "22023")
        assert "the specification of job" in row[2]


def test_changes_of_state_are_recorded_as_events(database: Database) -> None:
    with database.connect("alice") as alice, database.connect("tensile_worker") as connection:
        enqueue(alice)
        claimed = claim(connection, register(connection))
        jobs.set_phase(connection, claimed.job, claimed.claim, Phase.WAITING)
        jobs.set_waits_for(connection, claimed.job, claimed.claim, "40 MB more memory")
        row = alice.execute("select state::text, phase::text, waits_for from tensile.jobs").fetchone()
        assert row == ("starting", "waiting for memory", "40 MB more memory")
        jobs.start_running(connection, claimed.job, claimed.claim)
        row = alice.execute("select state::text, phase::text, waits_for from tensile.jobs").fetchone()
        assert row == ("running", "training", None)
        jobs.cancelled(connection, claimed.job, claimed.claim)
        kinds = alice.execute("select kind from tensile.job_events order by event_id").fetchall()
        assert kinds == [("starting",), ("running",), ("cancelled",)]


def test_second_write_of_a_start_changes_nothing(database: Database) -> None:
    with database.connect("alice") as alice, database.connect("tensile_worker") as connection:
        enqueue(alice)
        claimed = claim(connection, register(connection))
        jobs.start_running(connection, claimed.job, claimed.claim)
        jobs.set_phase(connection, claimed.job, claimed.claim, Phase.VALIDATING)
        before = _read_all_tables(database)
        jobs.start_running(connection, claimed.job, claimed.claim)
        assert _read_all_tables(database) == before
        assert alice.execute("select state::text, phase::text from tensile.jobs").fetchone() == (
            "running",
            "validating",
        )


def test_progress_keeps_values_that_a_report_omits(database: Database) -> None:
    with database.connect("alice") as alice, database.connect("tensile_worker") as connection:
        enqueue(alice)
        claimed = claim(connection, register(connection))
        first = Progress(
            epoch=1, epochs=2, step=5, steps=5, loss=0.5, valid_loss=0.6, metric_name="r2", metric=0.1, eta_s=9.0,
            eta_earliest_s=4.0, figures={"loss": 0.5, "valid_loss": None},
        )  # fmt: skip
        jobs.report_progress(connection, claimed.job, claimed.claim, first)
        ends = "select eta - updated_at, eta_earliest - updated_at from tensile.stat_progress_train"
        assert alice.execute(ends).fetchone() == (timedelta(seconds=9), timedelta(seconds=4))
        second = Progress(epoch=2, epochs=2, step=1, steps=5, loss=0.4, samples_per_s=100.0)
        jobs.report_progress(connection, claimed.job, claimed.claim, second)
        row = alice.execute(
            "select epoch, epochs, step, steps, loss, valid_loss, metric_name, metric, samples_per_s, eta,"
            " eta_earliest from tensile.job_progress"
        ).fetchone()
        assert row == (2, 2, 1, 5, 0.4, 0.6, "r2", 0.1, 100.0, None, None)
        rows = alice.execute("select epoch, name, value from tensile.metrics order by name").fetchall()
        assert rows == [(1, "loss", 0.5), (1, "valid_loss", None)]


def test_stale_claim_changes_nothing(database: Database) -> None:
    with database.connect("alice") as alice, database.connect("tensile_worker") as connection:
        job = enqueue(alice)
        worker = register(connection)
        stale_claim = claim(connection, worker)
        jobs.requeue(connection, stale_claim.job, stale_claim.claim, "the controller stops")
        fresh_claim = claim(connection, worker)
        before = _read_all_tables(database)
        for write in _all_writes(connection, stale_claim):
            with pytest.raises(LostClaimError, match=f"job {job} no longer belongs to claim {stale_claim.claim}"):
                write()
        assert _read_all_tables(database) == before
        jobs.start_running(connection, fresh_claim.job, fresh_claim.claim)


def test_queued_job_is_cancelled_at_once_without_a_worker(database: Database) -> None:
    with database.connect("alice") as alice:
        job = enqueue(alice)
        alice.execute("update tensile.jobs set cancel_requested = true where job_id = %s", (job,))
        row = alice.execute("select state::text, finished_at is not null from tensile.jobs").fetchone()
        assert row == ("cancelled", True)


def test_cancelling_all_jobs_of_a_model_frees_its_name(database: Database) -> None:
    with database.connect("alice") as alice:
        for _ in range(50):
            enqueue(alice, "reserved")
        alice.execute("update tensile.jobs set cancel_requested = true")
        assert alice.execute("select distinct state::text from tensile.jobs").fetchall() == [("cancelled",)]
        assert alice.execute("select name from tensile.models").fetchall() == []


def test_running_job_is_cancelled_by_its_worker_after_the_next_heartbeat(database: Database) -> None:
    with database.connect("alice") as alice, database.connect("tensile_worker") as connection:
        job = enqueue(alice)
        worker = register(connection)
        claimed = claim(connection, worker)
        alice.execute("update tensile.jobs set cancel_requested = true")
        assert state(alice, job) == "starting"
        claims = {job: claimed.claim}
        assert jobs.beat(connection, worker, claims) == HeartbeatReply(
            cancelled=(job,), lost=(), alive=True, priorities={job: 0}
        )
        jobs.cancelled(connection, job, claimed.claim)
        assert jobs.beat(connection, worker, claims) == HeartbeatReply(cancelled=(), lost=(), alive=True)
        assert state(alice, job) == "cancelled"


@pytest.mark.parametrize("ending", ["fail", "interrupt", "requeue"])
def test_cancelled_job_is_not_queued_again(database: Database, ending: str) -> None:
    with database.connect("alice") as alice, database.connect("tensile_worker") as connection:
        job = enqueue(alice)
        claimed = claim(connection, register(connection))
        alice.execute("update tensile.jobs set cancel_requested = true")
        if ending == "fail":
            assert jobs.fail(connection, job, claimed.claim, DeviceError("gone")) is JobState.CANCELLED
        elif ending == "interrupt":
            outcome = jobs.interrupt(connection, job, claimed.claim, DeviceError("gone"), Blame.OTHERS)
            assert outcome is JobState.CANCELLED
        else:
            jobs.requeue(connection, job, claimed.claim, "the controller stops")
        assert state(alice, job) == "cancelled"


def test_heartbeat_reply_contains_claims_that_the_worker_does_not_know(database: Database) -> None:
    with database.connect("alice") as alice, database.connect("tensile_worker") as connection:
        job = enqueue(alice)
        worker = register(connection)
        claimed = claim(connection, worker)
        assert jobs.beat(connection, worker, {}).strays == ((job, claimed.claim),)
        assert jobs.beat(connection, worker, {job: claimed.claim}).strays == ()
        assert jobs.beat(connection, worker).strays == ()


@pytest.mark.own_database
def test_heartbeat_is_a_heap_only_update(database: Database) -> None:
    with database.connect("tensile_worker") as connection, database.connect() as postgres:
        worker = register(connection)
        for _ in range(5):
            jobs.beat(connection, worker)
        connection.execute("select pg_stat_force_next_flush()")
        connection.execute("select 1")
        row = postgres.execute(
            "select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables where relid = 'tensile.workers'::regclass"
        ).fetchone()
        assert row == (5, 5)


def test_place_of_a_service_is_removed_when_its_worker_leaves(database: Database) -> None:
    with database.connect("tensile_worker") as connection:
        worker = register(connection)
        places = "select service_name, service_address, service_host_name from tensile.workers"
        place = jobs.ServicePlace(name="s-1.sock", address="[fd00::7]:7443", host_name="gpu1.example.org")
        jobs.announce_service(connection, worker, place)
        assert connection.execute(places).fetchone() == ("s-1.sock", "[fd00::7]:7443", "gpu1.example.org")
        jobs.leave(connection, worker)
        assert connection.execute(places).fetchone() == (None, None, None)


def test_idempotency_key_is_unique_for_each_owner(database: Database) -> None:
    with database.connect("alice") as alice, database.connect("bob") as bob:
        enqueue(alice, "a", idempotency_key="k")
        enqueue(bob, "b", idempotency_key="k")
        with pytest.raises(psycopg.errors.UniqueViolation):
            enqueue(alice, "a", idempotency_key="k")


def _all_writes(connection: psycopg.Connection, claimed: ClaimedJob) -> list[Any]:
    job, token = claimed.job, claimed.claim
    progress = Progress(epoch=9, epochs=9, step=9, steps=9, figures={"loss": 9.0})
    return [
        lambda: jobs.start_running(connection, job, token),
        lambda: jobs.set_phase(connection, job, token, Phase.TRAINING),
        lambda: jobs.set_waits_for(connection, job, token, "x"),
        lambda: jobs.report_progress(connection, job, token, progress),
        lambda: jobs.fail(connection, job, token, DataError("x")),
        lambda: jobs.interrupt(connection, job, token, DataError("x"), Blame.OTHERS),
        lambda: jobs.cancelled(connection, job, token),
        lambda: jobs.requeue(connection, job, token, "x"),
        lambda: jobs.record_event(connection, job, token, "x", {}),
        lambda: stored_checkpoints.save_checkpoint(connection, job, token, [b"x"], {}),
        lambda: models.publish_version(connection, claimed, publication()),
    ]


def _read_all_tables(database: Database) -> list[Any]:
    tables = ["jobs", "job_progress", "metrics", "job_events", "checkpoints", "checkpoint_chunks"]
    tables += ["artifacts", "models", "model_versions"]
    with database.connect() as connection:
        return [connection.execute(f"select t::text from tensile.{table} as t").fetchall() for table in tables]


def _admit_any_request(database: Database) -> None:
    """Disable the trigger that refuses invalid requests. Workers check requests, too."""
    with database.connect() as connection:
        connection.execute("alter table tensile.jobs disable trigger jobs_are_requests")
