"""Check what `decide()` does when a trainer fails, exits, falls silent, is cancelled or loses its claim, and when the
controller stops.
"""

from dataclasses import replace

import pytest

from indb_tensile.job import Blame, ClaimToken, JobId
from indb_tensile.scheduler.admission.admission_orders import (
    CancelJob,
    ClaimNext,
    EndMethod,
    EndTrainer,
    FailJob,
    ReleaseTrainer,
    RequeueJob,
)
from indb_tensile.scheduler.admission.decide import finished
from indb_tensile.scheduler.admission.events import (
    Adoption,
    CancelRequest,
    Capture,
    Claim,
    ClaimLoss,
    Event,
    Exit,
    ExitCause,
    Failure,
    Finish,
    Overrun,
    Silence,
    SpareReady,
    Stall,
    Stop,
    Tick,
)
from indb_tensile.scheduler.admission.pool import Fault, TrainerId
from tests.scheduler.admission.fake_controller import FakeController, graph, job, measurement, orders_of_type

DEVICE_LOST = Fault(sqlstate="58000", message="the device is gone", hint="Wait for it.")


@pytest.mark.parametrize(
    "event",
    [CancelRequest(job=JobId(1)), Failure(trainer=TrainerId(1), fault=Fault(sqlstate="22000", message="no"))],
)
def test_lost_claim_suppresses_the_pending_outcome(event: Event) -> None:
    controller = FakeController(10)
    trainer = controller.start(1, 4)
    controller.send(event)
    controller.send(ClaimLoss(claim=ClaimToken(1001)))
    orders = controller.send(Exit(trainer=trainer, code=-9))
    assert not any(isinstance(o, CancelJob | FailJob | RequeueJob) for o in orders)


def test_trainer_that_died_is_released_before_its_job_is_requeued() -> None:
    controller = FakeController(10)
    trainer = controller.start(1, 4)
    orders = controller.send(Exit(trainer=trainer, code=1))
    assert orders[:2] == (
        ReleaseTrainer(trainer=trainer),
        RequeueJob(
            job=JobId(1),
            claim=ClaimToken(1001),
            reason="its trainer ended with code 1 before the job was done",
            blame=Blame.JOB,
        ),
    )
    assert controller.pool.members == ()


def test_failed_job_is_recorded_after_its_trainer_exits() -> None:
    controller = FakeController(10)
    trainer = controller.start(1, 4)
    fault = Fault(sqlstate="22000", message="column y is all NULL")
    assert controller.send(Failure(trainer=trainer, fault=fault)) == (
        EndTrainer(trainer=trainer, method=EndMethod.LET_EXIT),
    )
    orders = controller.send(Exit(trainer=trainer, code=1))
    assert orders[1] == FailJob(job=JobId(1), claim=ClaimToken(1001), fault=fault)


@pytest.mark.parametrize("blame", [Blame.JOB, Blame.OTHERS])
def test_temporary_failure_requeues_the_job_with_its_blame(blame: Blame) -> None:
    controller = FakeController(10)
    trainer = controller.start(1, 4)
    fault = Fault(sqlstate="58000", message="no database")
    controller.send(Failure(trainer=trainer, fault=fault, retry=True, blame=blame))
    orders = controller.send(Exit(trainer=trainer, code=1))
    assert orders[1] == RequeueJob(
        job=JobId(1), claim=ClaimToken(1001), reason="no database", blame=blame, fault=fault
    )


def test_lost_device_costs_no_attempt_and_is_retried_after_growing_pauses() -> None:
    controller = FakeController(10, spare_trainers=1)
    controller.capture(controller.claim(job(1)), 4)
    for pause_ticks in (2, 4, 8):
        trainer = controller.pool.members[0].trainer
        assert trainer is not None
        controller.send(Failure(trainer=trainer, fault=DEVICE_LOST, retry=True, lost=True))
        controller.send(SpareReady(trainer=controller.pool.spares[0].trainer))
        assert RequeueJob(
            job=JobId(1),
            claim=ClaimToken(1001),
            reason="the device is gone",
            blame=Blame.OTHERS,
            fault=DEVICE_LOST,
            waits_for="a device that works: the device is gone",
        ) in controller.send(Exit(trainer=trainer, code=5))
        for _ in range(pause_ticks - 1):
            assert controller.send(Tick()) == ()
        assert controller.send(Tick()) == (ClaimNext(),)
        controller.send(Claim(job=job(1)))
        assert controller.pool.members[0].trainer is not None
        controller.capture(controller.pool.members[0].trainer, 4)


def test_job_that_lost_the_device_while_training_has_unclear_blame() -> None:
    """The other job's measurement shows that the device works, so claims go on at once."""
    controller = FakeController(10)
    first, second = controller.start(1, 4), controller.start(2, 4)
    for trainer in (first, second):
        controller.send(measurement(trainer, 1000))
    controller.send(Failure(trainer=first, fault=DEVICE_LOST, retry=True, lost=True))
    orders = controller.send(Exit(trainer=first, code=5))
    assert [o.blame for o in orders_of_type(orders, RequeueJob)] == [Blame.UNCLEAR]
    assert controller.pool.claim_pause_ticks == 2
    controller.send(measurement(second, 1000))
    assert (controller.pool.claim_pause_ticks, controller.pool.losses) == (0, 0), "the device works for the other job"


def test_cancelled_job_is_terminated_and_recorded_once() -> None:
    controller = FakeController(10)
    trainer = controller.start(1, 4)
    assert controller.send(CancelRequest(job=JobId(1)))[0] == EndTrainer(trainer=trainer, method=EndMethod.TERMINATE)
    assert EndTrainer not in map(type, controller.send(CancelRequest(job=JobId(1))))
    orders = controller.send(Exit(trainer=trainer, code=-15))
    assert orders[1] == CancelJob(job=JobId(1), claim=ClaimToken(1001))


def test_job_beyond_its_max_runtime_fails() -> None:
    controller = FakeController(10)
    trainer = controller.claim(job(1, max_runtime_s=60))
    controller.capture(trainer, 4)
    assert controller.send(Overrun(trainer=trainer))[0] == EndTrainer(trainer=trainer, method=EndMethod.TERMINATE)
    failed = orders_of_type(controller.send(Exit(trainer=trainer, code=-15)), FailJob)[0]
    assert (failed.fault.sqlstate, failed.fault.message) == (
        "57014",
        "job 1 ran for longer than its max_runtime of 60 s",
    )


def test_trainers_owe_an_answer_until_ready_and_after_every_plan() -> None:
    controller = FakeController(10)
    controller.send(Tick())
    assert controller.pool.owing == {(TrainerId(1), 0)}
    trainer = controller.claim(job(1))
    (spare,) = controller.pool.spares
    assert controller.pool.owing == {(spare.trainer, 0)}  # no deadline for reading the table
    controller.capture(trainer, 4)
    assert controller.pool.owing == {(spare.trainer, 0), (trainer, 1)}
    controller.adopt_all()
    assert controller.pool.owing == {(spare.trainer, 0)}


def test_silent_trainer_is_killed_and_its_job_requeued() -> None:
    controller = FakeController(10)
    trainer = controller.claim(job(1))
    controller.capture(trainer, 4)
    assert controller.send(Silence(trainer=trainer))[0] == EndTrainer(trainer=trainer, method=EndMethod.KILL)
    requeued = orders_of_type(controller.send(Exit(trainer=trainer, code=-9)), RequeueJob)[0]
    assert (requeued.reason, requeued.blame) == ("its trainer did not take up plan 1", Blame.UNCLEAR)
    assert controller.pool.granted_bytes == 0


def test_stalled_trainer_is_killed_and_its_job_requeued() -> None:
    controller = FakeController(10)
    trainer = controller.start(1, 4)
    assert controller.send(Stall(trainer=trainer, silent_s=600.4))[0] == EndTrainer(
        trainer=trainer, method=EndMethod.KILL
    )
    assert EndTrainer not in map(type, controller.send(Stall(trainer=trainer, silent_s=601.0)))
    assert controller.send(Exit(trainer=trainer, code=-9, ending=ExitCause.STOPPED))[1] == RequeueJob(
        job=JobId(1),
        claim=ClaimToken(1001),
        reason="its trainer made no progress for 600 s",
        blame=Blame.UNCLEAR,
    )


def test_trainer_that_reads_its_table_does_not_stall() -> None:
    controller = FakeController(10)
    trainer = controller.claim(job(1))
    assert controller.send(Stall(trainer=trainer, silent_s=600.0)) == ()


@pytest.mark.parametrize(
    ("code", "ending", "reason", "blame"),
    [
        (-9, ExitCause.OUTSIDE, "its trainer was killed by signal 9 from outside", Blame.OTHERS),
        (-15, ExitCause.OUTSIDE, "its trainer was killed by signal 15 from outside", Blame.OTHERS),
        (-9, ExitCause.STOPPED, "its controller stopped its trainer", Blame.OTHERS),
        (-9, ExitCause.INVALID_MESSAGE, "its trainer sent a message that its controller cannot read", Blame.JOB),
        (4, ExitCause.BY_ITSELF, "its trainer ended with code 4 before the job was done", Blame.OTHERS),
        (9, ExitCause.BY_ITSELF, "its trainer ended with code 9 before the job was done", Blame.OTHERS),
        (70, ExitCause.BY_ITSELF, "its trainer ended with code 70 before the job was done", Blame.JOB),
    ],
)
def test_unexplained_exit_is_blamed_by_its_cause(code: int, ending: ExitCause, reason: str, blame: Blame) -> None:
    controller = FakeController(10)
    trainer = controller.start(1, 4)
    (requeued,) = orders_of_type(controller.send(Exit(trainer=trainer, code=code, ending=ending)), RequeueJob)
    assert requeued == RequeueJob(job=JobId(1), claim=ClaimToken(1001), reason=reason, blame=blame)


@pytest.mark.parametrize(
    ("ending", "cause"),
    [
        (ExitCause.STARVED, "the kernel ended its trainer for memory"),
        (
            ExitCause.PROBABLY_STARVED,
            "its trainer got SIGKILL, not from its controller: most probably the kernel ended it for memory",
        ),
    ],
)
def test_trainer_killed_for_lack_of_memory_requeues_its_job_with_a_hint(ending: ExitCause, cause: str) -> None:
    controller = FakeController(10)
    trainer = controller.start(1, 4)
    exit_event = Exit(trainer=trainer, code=-9, ending=ending, peak_bytes=3 << 30, memory_bytes=4 << 30)
    (requeued,) = orders_of_type(controller.send(exit_event), RequeueJob)
    reason = f"{cause}: it had 3.00 GB of 4.00 GB"
    assert requeued.fault is not None
    assert (requeued.reason, requeued.blame) == (reason, Blame.MEMORY)
    assert (requeued.fault.sqlstate, requeued.fault.message) == ("53200", reason)
    for remedy in ("exclude", "sample", "batch_size", "read_limit_bytes", "more memory"):
        assert remedy in requeued.fault.hint


def test_trainer_that_has_answered_meanwhile_is_not_killed() -> None:
    controller = FakeController(10)
    trainer = controller.start(1, 4)
    assert controller.send(Silence(trainer=trainer)) == ()
    controller.send(SpareReady(trainer=controller.pool.spares[0].trainer))
    assert controller.send(Silence(trainer=controller.pool.spares[0].trainer)) == ()


def test_job_that_published_before_its_cancellation_succeeds() -> None:
    controller = FakeController(10)
    trainer = controller.start(1, 4)
    controller.send(CancelRequest(job=JobId(1)))
    controller.send(Finish(trainer=trainer))
    orders = controller.send(Exit(trainer=trainer, code=-15))
    assert not any(isinstance(o, CancelJob | FailJob | RequeueJob) for o in orders)


def test_lost_claim_kills_the_trainer_records_nothing_and_delays_the_next_claim() -> None:
    controller = FakeController(10)
    trainer = controller.start(1, 4)
    orders = controller.send(ClaimLoss(claim=ClaimToken(1001)))
    assert orders[0] == EndTrainer(trainer=trainer, method=EndMethod.KILL)
    controller.send(SpareReady(trainer=controller.pool.spares[0].trainer))
    assert controller.orders == ()
    orders = controller.send(Exit(trainer=trainer, code=-9))
    assert orders == (ReleaseTrainer(trainer=trainer), ClaimNext())


def test_stop_requeues_every_job_and_ends_every_trainer() -> None:
    controller = FakeController(10)
    trainer = controller.start(1, 4)
    spare = controller.pool.spares[0].trainer
    assert controller.send(Stop()) == (
        EndTrainer(trainer=trainer, method=EndMethod.TERMINATE),
        EndTrainer(trainer=spare, method=EndMethod.TERMINATE),
    )
    assert not finished(controller.pool)
    controller.send(Exit(trainer=spare, code=-15))
    assert controller.send(Exit(trainer=trainer, code=-15)) == (
        ReleaseTrainer(trainer=trainer),
        RequeueJob(job=JobId(1), claim=ClaimToken(1001), reason="its controller was stopped", blame=Blame.NOBODY),
    )
    controller.pool = replace(controller.pool, claiming=False)
    assert finished(controller.pool)


def test_job_claimed_while_stopping_is_requeued() -> None:
    controller = FakeController(10)
    controller.send(Tick())
    controller.send(SpareReady(trainer=TrainerId(1)))
    controller.send(Stop())
    orders = controller.send(Claim(job=job(1)))
    assert orders == (
        RequeueJob(job=JobId(1), claim=ClaimToken(1001), reason="its controller was stopped", blame=Blame.NOBODY),
    )


def test_memory_fault_of_a_trainer_costs_its_job_an_attempt() -> None:
    controller = FakeController(10)
    trainer = controller.start(1, 4)
    controller.send(Exit(trainer=trainer, code=-11))
    (requeued,) = orders_of_type(controller.orders, RequeueJob)
    assert requeued.blame is Blame.JOB
    assert requeued.reason == (
        "its trainer ended with a memory fault (SIGSEGV, see the controller's log) before the job was done"
    )


def test_late_messages_of_unknown_trainers_change_nothing() -> None:
    controller = FakeController(10)
    controller.send(Tick())
    before = controller.pool
    late_messages = (
        Finish(trainer=TrainerId(99)),
        Exit(trainer=TrainerId(99), code=0),
        Adoption(trainer=TrainerId(99), generation=3),
        Failure(trainer=TrainerId(99), fault=Fault(sqlstate="XX000", message="?")),
        Capture(trainer=TrainerId(99), graphs=(graph(1),), latency_ns=((1,),), unknown=0),
        CancelRequest(job=JobId(99)),
        ClaimLoss(claim=ClaimToken(99)),
    )
    for event in late_messages:
        assert controller.send(event) == ()
        assert controller.pool == before
