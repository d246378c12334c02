"""The queue: claims, stale claims, rescue, cancellation."""

import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from indb_tensile.catalog import jobs, models, stored_checkpoints
from indb_tensile.catalog.jobs import HeartbeatReply, ObservedWorker, Progress
from indb_tensile.errors import (
    ComputationError,
    DatabaseError,
    DataError,
    DeviceError,
    DeviceMemoryError,
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

pytestmark = pytest.mark.postgres


def test_eight_claimers_take_each_of_a_thousand_jobs_once(database: Database) -> None:
    with database.connect() as connection:
        connection.execute("select tensile_set_quota('postgres', jobs_running => 1000)")
        connection.execute(
            "insert into tensile.jobs (model_name, relation_oid, relation_schema, relation_name, spec)"
            " select 'm', 1, 'public', 't', %s from generate_series(1, 1000)",
            (Jsonb(specification("m")),),
        )
    claimed: list[list[JobId]] = [[] for _ in range(8)]
    barrier = threading.Barrier(8)

    def empty(mine: list[JobId]) -> None:
        with database.connect("tensile_worker") as connection:
            worker = register(connection)
            barrier.wait()
            while isinstance(job := jobs.claim_job(connection, worker), ClaimedJob):
                mine.append(job.job)

    threads = [threading.Thread(target=empty, args=(mine,)) for mine in claimed]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(job for mine in claimed for job in mine) == list(range(1, 1001))
    assert sum(bool(mine) for mine in claimed) > 1, "one claimer did everything: nothing was concurrent"


def test_a_long_queue_slows_neither_an_enqueue_nor_a_claim_whatever_the_statistics_say(database: Database) -> None:
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


def test_a_job_keeps_the_threads_of_the_worker_that_starts_it_first(database: Database) -> None:
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


def test_higher_priority_goes_first_then_the_older_job(database: Database) -> None:
    with database.connect("alice") as alice, database.connect("tensile_worker") as connection:
        order = [enqueue(alice, priority=priority) for priority in (0, 5, 0, 5)]
        worker = register(connection)
        assert [claim(connection, worker).job for _ in order] == [order[1], order[3], order[0], order[2]]
        assert jobs.claim_job(connection, worker) is None


def test_a_claimed_job_is_the_whole_request(database: Database) -> None:
    with database.connect("alice") as alice, database.connect("tensile_worker") as connection:
        job = enqueue(alice, spec={"features": ["a", "b"], "hyperparams": {"epochs": 3}})
        claimed = claim(connection, register(connection))
        assert (claimed.job, claimed.attempt, claimed.spec.features) == (job, 1, ("a", "b"))
        assert claimed.spec.hyperparams == {"epochs": 3}
        row = alice.execute("select current_user::regrole::oid").fetchone()
        assert row == (claimed.owner_oid,)


def test_a_job_is_not_claimed_before_its_time(database: Database) -> None:
    with database.connect("alice") as alice, database.connect("tensile_worker") as connection:
        enqueue(alice, not_before=datetime.now(UTC) + timedelta(hours=1))
        due = enqueue(alice, not_before=datetime.now(UTC) - timedelta(hours=1))
        worker = register(connection)
        assert claim(connection, worker).job == due
        assert jobs.claim_job(connection, worker) is None


def test_a_job_of_another_installation_is_never_claimed(database: Database) -> None:
    with database.connect() as connection:
        enqueue(connection, installation="00000000-0000-0000-0000-000000000000")
        assert jobs.claim_job(connection, register(connection)) is None
        assert jobs.foreign_jobs(connection) == 1


def test_a_worker_that_left_claims_nothing(database: Database) -> None:
    with database.connect("alice") as alice, database.connect("tensile_worker") as connection:
        enqueue(alice)
        worker = register(connection)
        jobs.leave(connection, worker)
        assert jobs.claim_job(connection, worker) is None


def test_a_job_whose_specification_cannot_be_read_fails_and_the_next_one_is_claimed(database: Database) -> None:
    with database.connect("alice") as alice, database.connect("tensile_worker") as connection:
        _admit_any_request(database)
        broken = enqueue(alice, spec={"task": "poetry"})
        good = enqueue(alice)
        worker = register(connection)
        assert claim_or_fail(connection, worker) is None
        assert claim(connection, worker).job == good
        assert state(alice, broken) == "failed"
        row = alice.execute("select error_message from tensile.jobs where job_id = %s", (broken,)).fetchone()
        assert row is not None
        assert "the specification of job" in row[0]
        assert "poetry" in row[0]


@pytest.mark.parametrize("value", ["1e300", f"[{10**30}]", "[" * 3000 + "]" * 3000], ids=["huge", "listed", "deep"])
def test_a_specification_that_could_not_travel_to_a_trainer_fails_as_its_own_jobs_fault(
    database: Database, value: str
) -> None:
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


def test_states_and_phases_follow_one_another_and_leave_events(database: Database) -> None:
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


def test_a_start_that_is_written_twice_changes_nothing_the_second_time(database: Database) -> None:
    with database.connect("alice") as alice, database.connect("tensile_worker") as connection:
        enqueue(alice)
        claimed = claim(connection, register(connection))
        jobs.start_running(connection, claimed.job, claimed.claim)
        jobs.set_phase(connection, claimed.job, claimed.claim, Phase.VALIDATING)
        before = _everything(database)
        jobs.start_running(connection, claimed.job, claimed.claim)
        assert _everything(database) == before
        assert alice.execute("select state::text, phase::text from tensile.jobs").fetchone() == (
            "running",
            "validating",
        )


def test_progress_keeps_what_is_not_said_anew(database: Database) -> None:
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


def test_a_stale_claim_changes_nothing(database: Database) -> None:
    with database.connect("alice") as alice, database.connect("tensile_worker") as connection:
        job = enqueue(alice)
        worker = register(connection)
        stale = claim(connection, worker)
        jobs.requeue(connection, stale.job, stale.claim, "the controller stops")
        fresh = claim(connection, worker)
        before = _everything(database)
        for attempt in _writes(connection, stale):
            with pytest.raises(LostClaimError, match=f"job {job} no longer belongs to claim {stale.claim}"):
                attempt()
        assert _everything(database) == before
        jobs.start_running(connection, fresh.job, fresh.claim)


def test_a_job_waits_a_little_longer_after_each_fault_of_its_own_and_fails_at_the_last(database: Database) -> None:
    with database.connect("alice") as alice, database.connect("tensile_worker") as connection:
        job = enqueue(alice)
        waits = []
        for _ in range(3):
            claimed = claim(connection, register(connection))
            outcome = jobs.interrupt(connection, job, claimed.claim, ComputationError("no kernel"), Blame.JOB)
            waits.append(_pause_s(alice))
            _make_due(database)
        assert outcome is JobState.FAILED
        first, second, last = waits
        assert first is not None
        assert second is not None
        assert 1 < first < 2 < second < 4
        assert last is None
        row = alice.execute("select error_sqlstate, error_message, attempt, faults from tensile.jobs").fetchone()
        assert row == ("58000", "no kernel", 3, 3)


def test_what_is_not_the_jobs_fault_never_ends_it_and_is_tried_again_after_growing_pauses(database: Database) -> None:
    with database.connect("alice") as alice, database.connect("tensile_worker") as connection:
        job = enqueue(alice)
        waits = []
        for _ in range(7):
            claimed = claim(connection, register(connection))
            error = DatabaseError("the disk is full")
            assert jobs.interrupt(connection, job, claimed.claim, error, Blame.OTHERS) is JobState.QUEUED
            waits.append(_pause_s(alice))
            _make_due(database)
        assert waits == sorted(waits, key=lambda wait: wait or 0)
        row = alice.execute(
            "select attempt, faults, interruptions, waits_for, error_message from tensile.jobs"
        ).fetchone()
        assert row == (7, 0, 7, "its next attempt, since the disk is full", "the disk is full")
        detail = {"reason": "the disk is full", "counts": False, "faults": 0, "interruptions": 7}
        query = "select detail from tensile.job_events where kind = 'interrupted' order by event_id desc"
        assert alice.execute(query).fetchone() == (detail,)


def test_a_trainer_that_hangs_counts_from_the_second_time_in_the_same_phase_on(database: Database) -> None:
    with database.connect("alice") as alice, database.connect("tensile_worker") as connection:
        job = enqueue(alice)
        counted = []
        for phase in (Phase.READING, Phase.TRAINING, Phase.TRAINING, Phase.READING):
            claimed = claim(connection, register(connection))
            jobs.set_phase(connection, job, claimed.claim, phase)
            jobs.interrupt(connection, job, claimed.claim, DeviceError("its trainer hangs"), Blame.UNCLEAR)
            row = alice.execute("select faults from tensile.jobs").fetchone()
            assert row is not None
            counted.append(row[0])
            _make_due(database)
        assert counted == [0, 0, 1, 1]


def test_a_job_whose_trainer_the_kernel_ends_for_memory_twice_in_a_row_fails_and_keeps_the_way_out(
    database: Database,
) -> None:
    with database.connect("alice") as alice, database.connect("tensile_worker") as connection:
        job = enqueue(alice)
        starved = DeviceMemoryError("the kernel ended its trainer for memory", hint="Train on a sample.")
        states = []
        for error, blame in (
            (starved, Blame.MEMORY),
            (DeviceError("x"), Blame.OTHERS),
            (starved, Blame.MEMORY),
        ):
            claimed = claim(connection, register(connection))
            states.append(jobs.interrupt(connection, job, claimed.claim, error, blame))
            _make_due(database)
        assert states == ["queued", "queued", "failed"]
        told = "select error_sqlstate, error_message, error_hint, faults from tensile.jobs"
        assert alice.execute(told).fetchone() == ("53200", starved.message, starved.hint, 2)


def test_a_job_that_saved_a_checkpoint_since_may_be_ended_for_memory_once_more(database: Database) -> None:
    with database.connect("alice") as alice, database.connect("tensile_worker") as connection:
        job = enqueue(alice)
        starved = DeviceMemoryError("the kernel ended its trainer for memory")
        claimed = claim(connection, register(connection))
        jobs.interrupt(connection, job, claimed.claim, starved, Blame.MEMORY)
        _make_due(database)
        claimed = claim(connection, register(connection))
        stored_checkpoints.save_checkpoint(connection, job, claimed.claim, [b"state"], {"epoch": 1})
        assert jobs.interrupt(connection, job, claimed.claim, starved, Blame.MEMORY) == "queued"


def test_a_checkpoint_makes_up_for_all_faults_and_interruptions_before_it(database: Database) -> None:
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


def test_a_job_that_is_interrupted_for_longer_than_the_setting_fails_and_says_by_what(database: Database) -> None:
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


def test_the_requests_fault_is_not_tried_again(database: Database) -> None:
    with database.connect("alice") as alice, database.connect("tensile_worker") as connection:
        job = enqueue(alice)
        claimed = claim(connection, register(connection))
        error = DataError("column y is all NULL", detail="of 10 rows", hint="Choose another target.")
        assert jobs.fail(connection, job, claimed.claim, error) is JobState.FAILED
        row = alice.execute(
            "select error_sqlstate, error_message, error_detail, error_hint, worker_id, phase from tensile.jobs"
        ).fetchone()
        assert row == ("22000", "column y is all NULL", "of 10 rows", "Choose another target.", None, None)


def test_a_requeued_job_starts_again_at_once_and_nothing_is_counted(database: Database) -> None:
    with database.connect("alice") as alice, database.connect("tensile_worker") as connection:
        enqueue(alice)
        worker = register(connection)
        claimed = claim(connection, worker)
        jobs.requeue(connection, claimed.job, claimed.claim, "the controller stops")
        again = claim(connection, worker)
        assert (again.attempt, again.claim > claimed.claim) == (2, True)
        row = alice.execute("select detail from tensile.job_events where kind = 'requeued'").fetchone()
        assert row == ({"reason": "the controller stops"},)
        assert alice.execute("select faults, interruptions from tensile.jobs").fetchone() == (0, 0)


def test_jobs_of_a_worker_that_an_observer_declares_dead_are_rescued(database: Database) -> None:
    with database.connect("alice") as alice, database.connect("tensile_worker") as connection:
        job = enqueue(alice)
        dead, living = register(connection), register(connection)
        claimed = claim(connection, dead)
        jobs.beat(connection, dead)
        assert jobs.rescue(connection) == ()
        assert jobs.other_workers(connection, living) == (ObservedWorker(worker=dead, beats=1, lease_s=LEASE_S),)
        seen = jobs.other_workers(connection, living)
        assert jobs.rescue(connection, seen) == (job,)
        assert jobs.rescue(connection, seen) == ()
        assert jobs.other_workers(connection, living) == ()
        assert jobs.beat(connection, dead) == HeartbeatReply(cancelled=(), lost=(), alive=False)
        assert jobs.beat(connection, dead, {job: claimed.claim}).lost == (job,)
        assert jobs.beat(connection, living).alive
        row = alice.execute("select state::text, error_message, not_before > now() from tensile.jobs").fetchone()
        assert row == ("queued", f"attempt 1 was interrupted: worker {dead} on host host is gone", True)


def test_a_worker_that_has_beaten_since_it_was_seen_is_not_dead(database: Database) -> None:
    with database.connect("alice") as alice, database.connect("tensile_worker") as connection:
        job = enqueue(alice)
        worker = register(connection)
        claim(connection, worker)
        seen = jobs.other_workers(connection, None)
        jobs.beat(connection, worker)
        assert jobs.rescue(connection, seen) == ()
        assert jobs.beat(connection, worker).alive
        assert state(alice, job) == "starting"


def test_no_clock_makes_a_worker_dead(database: Database) -> None:
    """The server's clock was set forward by an hour, or back."""
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


def test_the_second_death_of_a_controller_in_the_same_phase_of_a_job_is_the_jobs_fault(database: Database) -> None:
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


def test_a_controller_that_ends_by_a_fault_counts_as_one_that_died(database: Database) -> None:
    with database.connect("alice") as alice, database.connect("tensile_worker") as connection:
        enqueue(alice)
        for in_order in (True, True, False, False):
            worker = register(connection)
            claim(connection, worker)
            jobs.leave(connection, worker, in_order=in_order)
            jobs.rescue(connection)
            _make_due(database)
        assert alice.execute("select faults, interruptions from tensile.jobs").fetchone() == (1, 3)


def test_age_alone_rescues_nothing(database: Database) -> None:
    with database.connect("alice") as alice, database.connect("tensile_worker") as connection:
        job = enqueue(alice)
        claim(connection, register(connection))
        with database.connect() as postgres:
            postgres.execute("update tensile.jobs set started_at = now() - interval '1 year'")
        assert jobs.rescue(connection) == ()
        assert state(alice, job) == "starting"


def test_jobs_of_a_worker_that_left_are_rescued_without_waiting(database: Database) -> None:
    with database.connect("alice") as alice, database.connect("tensile_worker") as connection:
        job = enqueue(alice)
        worker = register(connection)
        claim(connection, worker)
        jobs.leave(connection, worker)
        assert jobs.rescue(connection) == (job,)
        assert state(alice, job) == "queued"


def test_rescue_fails_a_job_whose_faults_are_too_many_and_drops_its_checkpoint(database: Database) -> None:
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


def test_rescue_cancels_what_should_stop(database: Database) -> None:
    with database.connect("alice") as alice, database.connect("tensile_worker") as connection:
        job = enqueue(alice)
        worker = register(connection)
        claim(connection, worker)
        alice.execute("update tensile.jobs set cancel_requested = true")
        jobs.leave(connection, worker)
        assert jobs.rescue(connection) == (job,)
        assert state(alice, job) == "cancelled"


def test_a_queued_job_is_cancelled_at_once_without_any_worker(database: Database) -> None:
    with database.connect("alice") as alice:
        job = enqueue(alice)
        alice.execute("update tensile.jobs set cancel_requested = true where job_id = %s", (job,))
        row = alice.execute("select state::text, finished_at is not null from tensile.jobs").fetchone()
        assert row == ("cancelled", True)


def test_many_jobs_of_one_model_are_cancelled_together_and_free_its_name(database: Database) -> None:
    with database.connect("alice") as alice:
        for _ in range(50):
            enqueue(alice, "reserved")
        alice.execute("update tensile.jobs set cancel_requested = true")
        assert alice.execute("select distinct state::text from tensile.jobs").fetchall() == [("cancelled",)]
        assert alice.execute("select name from tensile.models").fetchall() == []


def test_a_running_job_is_cancelled_by_its_worker_which_hears_it_at_the_next_beat(database: Database) -> None:
    with database.connect("alice") as alice, database.connect("tensile_worker") as connection:
        job = enqueue(alice)
        worker = register(connection)
        claimed = claim(connection, worker)
        alice.execute("update tensile.jobs set cancel_requested = true")
        assert state(alice, job) == "starting"
        held = {job: claimed.claim}
        assert jobs.beat(connection, worker, held) == HeartbeatReply(cancelled=(job,), lost=(), alive=True)
        jobs.cancelled(connection, job, claimed.claim)
        assert jobs.beat(connection, worker, held) == HeartbeatReply(cancelled=(), lost=(), alive=True)
        assert state(alice, job) == "cancelled"


@pytest.mark.parametrize("ending", ["fail", "interrupt", "requeue"])
def test_a_cancelled_job_does_not_go_back_into_the_queue(database: Database, ending: str) -> None:
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


def test_a_beat_tells_of_claims_that_the_worker_never_heard_of(database: Database) -> None:
    with database.connect("alice") as alice, database.connect("tensile_worker") as connection:
        job = enqueue(alice)
        worker = register(connection)
        claimed = claim(connection, worker)
        assert jobs.beat(connection, worker, {}).strays == ((job, claimed.claim),)
        assert jobs.beat(connection, worker, {job: claimed.claim}).strays == ()
        assert jobs.beat(connection, worker).strays == ()


def test_a_beat_is_a_heap_only_update(database: Database) -> None:
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


def test_an_announced_service_is_gone_when_its_worker_leaves(database: Database) -> None:
    with database.connect("tensile_worker") as connection:
        worker = register(connection)
        jobs.announce_service(connection, worker, "s-1.sock")
        assert connection.execute("select service_name from tensile.workers").fetchone() == ("s-1.sock",)
        jobs.leave(connection, worker)
        assert connection.execute("select service_name from tensile.workers").fetchone() == (None,)


def test_an_idempotency_key_is_one_job_of_one_owner(database: Database) -> None:
    with database.connect("alice") as alice, database.connect("bob") as bob:
        enqueue(alice, "a", idempotency_key="k")
        enqueue(bob, "b", idempotency_key="k")
        with pytest.raises(psycopg.errors.UniqueViolation):
            enqueue(alice, "a", idempotency_key="k")


def _writes(connection: psycopg.Connection, claimed: ClaimedJob) -> list[Any]:
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


def _everything(database: Database) -> list[Any]:
    tables = ["jobs", "job_progress", "metrics", "job_events", "checkpoints", "checkpoint_chunks"]
    tables += ["artifacts", "models", "model_versions"]
    with database.connect() as connection:
        return [connection.execute(f"select t::text from tensile.{table} as t").fetchall() for table in tables]


def _pause_s(connection: psycopg.Connection[Any]) -> float | None:
    """How long the only job still waits before its next attempt."""
    row = connection.execute("select extract(epoch from not_before - now())::float8 from tensile.jobs").fetchone()
    assert row is not None
    pause_s: float | None = row[0]
    return pause_s


def _make_due(database: Database) -> None:
    with database.connect() as postgres:
        postgres.execute("update tensile.jobs set not_before = null where state = 'queued'")


def _admit_any_request(database: Database) -> None:
    """As if SQL had seen no fault in it: a worker believes nothing all the same."""
    with database.connect() as connection:
        connection.execute("alter table tensile.jobs disable trigger jobs_are_requests")
