"""Check how interrupted jobs are retried or failed, and how jobs of dead workers are rescued."""

from typing import Any

import psycopg
import pytest

from indb_tensile.catalog import jobs, stored_checkpoints
from indb_tensile.catalog.jobs import HeartbeatReply, ObservedWorker
from indb_tensile.errors import (
    ComputationError,
    DatabaseError,
    DataError,
    DeviceError,
    DeviceMemoryError,
)
from indb_tensile.job import Blame, JobState, Phase
from tests.catalog.enqueue import (
    LEASE_S,
    claim,
    enqueue,
    register,
    state,
)
from tests.conftest import Database

pytestmark = pytest.mark.postgres


def test_job_waits_longer_after_each_own_fault_and_fails_after_the_last(database: Database) -> None:
    with database.connect("alice") as alice, database.connect("tensile_worker") as connection:
        job = enqueue(alice)
        pauses_s = []
        for _ in range(3):
            claimed = claim(connection, register(connection))
            outcome = jobs.interrupt(connection, job, claimed.claim, ComputationError("no kernel"), Blame.JOB)
            pauses_s.append(_pause_s(alice))
            _make_due(database)
        assert outcome is JobState.FAILED
        first, second, last = pauses_s
        assert first is not None
        assert second is not None
        assert 1 < first < 2 < second < 4
        assert last is None
        row = alice.execute("select error_sqlstate, error_message, attempt, faults from tensile.jobs").fetchone()
        assert row == ("58000", "no kernel", 3, 3)


def test_interruptions_by_others_never_fail_a_job_and_are_retried_after_growing_pauses(database: Database) -> None:
    with database.connect("alice") as alice, database.connect("tensile_worker") as connection:
        job = enqueue(alice)
        pauses_s = []
        for _ in range(7):
            claimed = claim(connection, register(connection))
            error = DatabaseError("the disk is full")
            assert jobs.interrupt(connection, job, claimed.claim, error, Blame.OTHERS) is JobState.QUEUED
            pauses_s.append(_pause_s(alice))
            _make_due(database)
        assert pauses_s == sorted(pauses_s, key=lambda wait: wait or 0)
        row = alice.execute(
            "select attempt, faults, interruptions, waits_for, error_message from tensile.jobs"
        ).fetchone()
        assert row == (7, 0, 7, "its next attempt, since the disk is full", "the disk is full")
        detail = {"reason": "the disk is full", "counts": False, "faults": 0, "interruptions": 7}
        query = "select detail from tensile.job_events where kind = 'interrupted' order by event_id desc"
        assert alice.execute(query).fetchone() == (detail,)


def test_hanging_trainer_counts_as_a_fault_from_the_second_time_in_one_phase(database: Database) -> None:
    with database.connect("alice") as alice, database.connect("tensile_worker") as connection:
        job = enqueue(alice)
        faults = []
        for phase in (Phase.READING, Phase.TRAINING, Phase.TRAINING, Phase.READING):
            claimed = claim(connection, register(connection))
            jobs.set_phase(connection, job, claimed.claim, phase)
            jobs.interrupt(connection, job, claimed.claim, DeviceError("its trainer hangs"), Blame.UNCLEAR)
            row = alice.execute("select faults from tensile.jobs").fetchone()
            assert row is not None
            faults.append(row[0])
            _make_due(database)
        assert faults == [0, 0, 1, 1]


def test_second_kill_for_lack_of_memory_fails_the_job_with_a_hint(
    database: Database,
) -> None:
    with database.connect("alice") as alice, database.connect("tensile_worker") as connection:
        job = enqueue(alice)
        out_of_memory = DeviceMemoryError("the kernel ended its trainer for memory", hint="Train on a sample.")
        states = []
        for error, blame in (
            (out_of_memory, Blame.MEMORY),
            (DeviceError("x"), Blame.OTHERS),
            (out_of_memory, Blame.MEMORY),
        ):
            claimed = claim(connection, register(connection))
            states.append(jobs.interrupt(connection, job, claimed.claim, error, blame))
            _make_due(database)
        assert states == ["queued", "queued", "failed"]
        error_query = "select error_sqlstate, error_message, error_hint, faults from tensile.jobs"
        assert alice.execute(error_query).fetchone() == ("53200", out_of_memory.message, out_of_memory.hint, 2)


def test_checkpoint_allows_another_kill_for_lack_of_memory(database: Database) -> None:
    with database.connect("alice") as alice, database.connect("tensile_worker") as connection:
        job = enqueue(alice)
        out_of_memory = DeviceMemoryError("the kernel ended its trainer for memory")
        claimed = claim(connection, register(connection))
        jobs.interrupt(connection, job, claimed.claim, out_of_memory, Blame.MEMORY)
        _make_due(database)
        claimed = claim(connection, register(connection))
        stored_checkpoints.save_checkpoint(connection, job, claimed.claim, [b"state"], {"epoch": 1})
        assert jobs.interrupt(connection, job, claimed.claim, out_of_memory, Blame.MEMORY) == "queued"


def test_checkpoint_resets_faults_and_interruptions(database: Database) -> None:
    with database.connect("alice") as alice, database.connect("tensile_worker") as connection:
        job = enqueue(alice)
        for blame in (Blame.JOB, Blame.OTHERS, Blame.UNCLEAR):
            claimed = claim(connection, register(connection))
            jobs.interrupt(connection, job, claimed.claim, DeviceError("x"), blame)
            _make_due(database)
        query = "select faults, interruptions, interrupted > '0', last_death_phase from tensile.jobs"
        assert alice.execute(query).fetchone() == (1, 2, True, "starting")
        claimed = claim(connection, register(connection))
        stored_checkpoints.save_checkpoint(connection, job, claimed.claim, [b"state"], {"epoch": 1})
        assert alice.execute(query).fetchone() == (0, 0, False, None)


def test_job_interrupted_for_longer_than_the_setting_fails_with_the_reason(database: Database) -> None:
    with database.connect("alice") as alice, database.connect("tensile_worker") as connection:
        job = enqueue(alice)
        states = []
        for _ in range(3):
            claimed = claim(connection, register(connection))
            with database.connect() as postgres:
                postgres.execute("update tensile.jobs set progress_at = now() - interval '40 minutes'")
            error = DatabaseError("the disk is full", hint="Free space.")
            states.append(jobs.interrupt(connection, job, claimed.claim, error, Blame.OTHERS, limit_s=7200.0))
            _make_due(database)
        assert states == ["queued", "queued", "failed"]
        row = alice.execute(
            "select error_sqlstate, error_message, error_hint, not_before from tensile.jobs"
        ).fetchone()
        assert row is not None
        assert (row[0], row[3]) == ("58000", None)
        assert row[1] == (
            f"job {job} was interrupted 3 times without a checkpoint in between, which cost it 02:00:14; "
            "the last time: the disk is full"
        )
        assert "interrupted_s" in row[2]


def test_fault_of_the_request_is_not_retried(database: Database) -> None:
    with database.connect("alice") as alice, database.connect("tensile_worker") as connection:
        job = enqueue(alice)
        claimed = claim(connection, register(connection))
        error = DataError("column y is all NULL", detail="of 10 rows", hint="Choose another target.")
        assert jobs.fail(connection, job, claimed.claim, error) is JobState.FAILED
        row = alice.execute(
            "select error_sqlstate, error_message, error_detail, error_hint, worker_id, phase from tensile.jobs"
        ).fetchone()
        assert row == ("22000", "column y is all NULL", "of 10 rows", "Choose another target.", None, None)


def test_requeued_job_starts_again_at_once_without_a_fault(database: Database) -> None:
    with database.connect("alice") as alice, database.connect("tensile_worker") as connection:
        enqueue(alice)
        worker = register(connection)
        claimed = claim(connection, worker)
        jobs.requeue(connection, claimed.job, claimed.claim, "the controller stops")
        second_claim = claim(connection, worker)
        assert (second_claim.attempt, second_claim.claim > claimed.claim) == (2, True)
        row = alice.execute("select detail from tensile.job_events where kind = 'requeued'").fetchone()
        assert row == ({"reason": "the controller stops"},)
        assert alice.execute("select faults, interruptions from tensile.jobs").fetchone() == (0, 0)


def test_jobs_of_a_worker_that_is_declared_dead_are_rescued(database: Database) -> None:
    with database.connect("alice") as alice, database.connect("tensile_worker") as connection:
        job = enqueue(alice)
        dead, living = register(connection), register(connection)
        claimed = claim(connection, dead)
        jobs.beat(connection, dead)
        assert jobs.rescue(connection) == ()
        assert jobs.other_workers(connection, living) == (ObservedWorker(worker=dead, beats=1, lease_s=LEASE_S),)
        observed_workers = jobs.other_workers(connection, living)
        assert jobs.rescue(connection, observed_workers) == (job,)
        assert jobs.rescue(connection, observed_workers) == ()
        assert jobs.other_workers(connection, living) == ()
        assert jobs.beat(connection, dead) == HeartbeatReply(cancelled=(), lost=(), alive=False)
        assert jobs.beat(connection, dead, {job: claimed.claim}).lost == (job,)
        assert jobs.beat(connection, living).alive
        row = alice.execute("select state::text, error_message, not_before > now() from tensile.jobs").fetchone()
        assert row == ("queued", f"attempt 1 was interrupted: worker {dead} on host host is gone", True)


def test_worker_with_a_later_heartbeat_is_not_declared_dead(database: Database) -> None:
    with database.connect("alice") as alice, database.connect("tensile_worker") as connection:
        job = enqueue(alice)
        worker = register(connection)
        claim(connection, worker)
        observed_workers = jobs.other_workers(connection, None)
        jobs.beat(connection, worker)
        assert jobs.rescue(connection, observed_workers) == ()
        assert jobs.beat(connection, worker).alive
        assert state(alice, job) == "starting"


def test_step_of_the_servers_clock_declares_no_worker_dead(database: Database) -> None:
    """A clock that is set forward or back by an hour changes the age of the last heartbeat."""
    with database.connect("alice") as alice, database.connect("tensile_worker") as connection:
        job = enqueue(alice)
        worker = register(connection)
        claim(connection, worker)
        for step in ("-1 hour", "1 hour"):
            with database.connect() as postgres:
                postgres.execute("update tensile.workers set heartbeat_at = now() + %s::interval", (step,))
            assert jobs.rescue(connection) == ()
            assert jobs.beat(connection, worker).alive
            assert state(alice, job) == "starting"


def test_second_death_of_a_controller_in_one_phase_of_a_job_is_the_jobs_fault(database: Database) -> None:
    with database.connect("alice") as alice, database.connect("tensile_worker") as connection:
        job = enqueue(alice)
        faults = []
        for _ in range(4):
            claimed = claim(connection, register(connection))
            jobs.set_phase(connection, job, claimed.claim, Phase.TRAINING)
            assert jobs.rescue(connection, jobs.other_workers(connection, None)) == (job,)
            row = alice.execute("select faults, state::text from tensile.jobs").fetchone()
            faults.append(row)
            _make_due(database)
        assert faults == [(0, "queued"), (1, "queued"), (2, "queued"), (3, "failed")]


def test_controller_that_ends_with_a_fault_counts_as_dead(database: Database) -> None:
    with database.connect("alice") as alice, database.connect("tensile_worker") as connection:
        enqueue(alice)
        for in_order in (True, True, False, False):
            worker = register(connection)
            claim(connection, worker)
            jobs.leave(connection, worker, in_order=in_order)
            jobs.rescue(connection)
            _make_due(database)
        assert alice.execute("select faults, interruptions from tensile.jobs").fetchone() == (1, 3)


def test_old_running_job_of_a_living_worker_is_not_rescued(database: Database) -> None:
    with database.connect("alice") as alice, database.connect("tensile_worker") as connection:
        job = enqueue(alice)
        claim(connection, register(connection))
        with database.connect() as postgres:
            postgres.execute("update tensile.jobs set started_at = now() - interval '1 year'")
        assert jobs.rescue(connection) == ()
        assert state(alice, job) == "starting"


def test_jobs_of_a_worker_that_left_are_rescued_at_once(database: Database) -> None:
    with database.connect("alice") as alice, database.connect("tensile_worker") as connection:
        job = enqueue(alice)
        worker = register(connection)
        claim(connection, worker)
        jobs.leave(connection, worker)
        assert jobs.rescue(connection) == (job,)
        assert state(alice, job) == "queued"


def test_rescue_fails_a_job_with_too_many_faults_and_drops_its_checkpoint(database: Database) -> None:
    with database.connect("alice") as alice, database.connect("tensile_worker") as connection:
        job = enqueue(alice)
        worker = register(connection)
        claimed = claim(connection, worker)
        stored_checkpoints.save_checkpoint(connection, job, claimed.claim, [b"state"], {"epoch": 1})
        with database.connect() as postgres:
            postgres.execute("update tensile.jobs set max_attempts = 1, last_death_phase = 'starting'")
        assert jobs.rescue(connection, jobs.other_workers(connection, None)) == (job,)
        assert state(alice, job) == "failed"
        assert stored_checkpoints.checkpoints(connection, job) == ()


def test_rescue_cancels_a_job_with_a_requested_cancel(database: Database) -> None:
    with database.connect("alice") as alice, database.connect("tensile_worker") as connection:
        job = enqueue(alice)
        worker = register(connection)
        claim(connection, worker)
        alice.execute("update tensile.jobs set cancel_requested = true")
        jobs.leave(connection, worker)
        assert jobs.rescue(connection) == (job,)
        assert state(alice, job) == "cancelled"


def _pause_s(connection: psycopg.Connection[Any]) -> float | None:
    """Return how long the only job still waits before its next attempt."""
    row = connection.execute("select extract(epoch from not_before - now())::float8 from tensile.jobs").fetchone()
    assert row is not None
    pause_s: float | None = row[0]
    return pause_s


def _make_due(database: Database) -> None:
    with database.connect() as postgres:
        postgres.execute("update tensile.jobs set not_before = null where state = 'queued'")
