"""Check a rank of a job that several devices train: it leaves its device for nobody, and is in no round."""

from dataclasses import replace

import pytest

from indb_tensile.job import ClaimedJob, ClaimedRank, ClaimToken
from indb_tensile.scheduler.admission.admission_orders import EndTrainer, ParkJob
from indb_tensile.scheduler.admission.events import Capture, IdleDevice, Parking, PauseChange, StepsLeft
from indb_tensile.scheduler.admission.pool import JobStage, Sharing, TrainerId
from indb_tensile.scheduler.admission.trainer_assignment import claim_blocker
from indb_tensile.scheduler.completion.contention import Contention
from indb_tensile.scheduler.link import Link
from tests.scheduler.admission.fake_controller import (
    REGION,
    FakeController,
    HalvingPlanner,
    graph,
    job,
    orders_of_type,
)
from tests.scheduler.admission.test_completion_rule import TimedPlanner


def rank(claimed: ClaimedJob) -> ClaimedJob:
    """Return the job as the second of three ranks."""
    return replace(claimed, gang=ClaimedRank(rank=1, ranks=3, attempt_claim=ClaimToken(1)))


def start(controller: FakeController, claimed: ClaimedJob, regions: int) -> TrainerId:
    trainer = controller.claim(claimed)
    controller.send(Capture(trainer=trainer, graphs=(graph(regions),), latency_ns=((1000,),), unknown=0, steps=100.0))
    controller.adopt_all()
    return trainer


def test_job_of_a_higher_priority_waits_for_a_rank() -> None:
    controller = FakeController(4, TimedPlanner(), sharing=Sharing.COMPLETION, entering_jobs=8)
    start(controller, rank(job(1)), 4)
    start(controller, job(2, priority=5), 4)
    assert orders_of_type(controller.orders, ParkJob) == []
    assert {m.job.job: m.stage for m in controller.pool.members} == {1: JobStage.RUNNING, 2: JobStage.WAITING}


def test_waiting_rank_is_not_handed_to_an_idle_device() -> None:
    controller = FakeController(10, HalvingPlanner(swaps=False))
    controller.start(1, 8)
    trainer = controller.claim(rank(job(2)))
    controller.capture(trainer, 6)
    for _ in range(6):
        controller.send(IdleDevice(budget_bytes=100 * REGION))
    assert orders_of_type(controller.orders, EndTrainer) == []


def test_paused_rank_saves_a_checkpoint_and_keeps_no_memory() -> None:
    controller = FakeController(4, TimedPlanner(), sharing=Sharing.COMPLETION)
    claimed = replace(rank(job(1)), gang=ClaimedRank(rank=0, ranks=3, attempt_claim=ClaimToken(1001)))
    trainer = start(controller, claimed, 4)
    controller.send(PauseChange(paused=frozenset({claimed.job})))
    assert orders_of_type(controller.orders, ParkJob) == [ParkJob(trainer=trainer, number=1, in_memory=False)]


def controller_of_two() -> FakeController:
    """Return a controller that shares by foretold completion, on which a second job doubles the time of a step."""
    return FakeController(
        4,
        TimedPlanner(),
        sharing=Sharing.COMPLETION,
        contention=Contention(points=((1, 1.0), (2, 2.0))),
        entering_jobs=8,
        link=Link(out_bytes_per_s=1 << 30, in_bytes_per_s=1 << 30),
    )


def capture(controller: FakeController, claimed: ClaimedJob, steps: float) -> TrainerId:
    """Let the job be claimed and captured, with steps of ten milliseconds."""
    trainer = controller.claim(claimed)
    times = ((10_000_000,),)
    controller.send(Capture(trainer=trainer, graphs=(graph(4),), latency_ns=times, unknown=0, steps=steps))
    return trainer


@pytest.mark.parametrize("is_rank", [True, False])
def test_long_rank_makes_way_for_no_shorter_job_as_another_long_job_does(is_rank: bool) -> None:
    controller = controller_of_two()
    long = capture(controller, rank(job(1)) if is_rank else job(1), 100_000.0)
    controller.adopt_all()
    controller.send(StepsLeft(trainer=long, steps_left=99_000.0))
    capture(controller, job(2), 500.0)
    assert [order.trainer for order in orders_of_type(controller.orders, ParkJob)] == ([] if is_rank else [long])


@pytest.mark.parametrize("is_rank", [True, False])
def test_rank_is_in_no_round_as_another_job_of_its_owner_is(is_rank: bool) -> None:
    controller = FakeController(10, phases=True)
    for number in (1, 2):
        claimed = rank(job(number)) if is_rank and number == 2 else job(number)
        trainer = controller.claim(claimed)
        controller.send(Capture(trainer=trainer, graphs=(graph(8),), latency_ns=((1000,),), unknown=0, steps=1e12))
        controller.adopt_all()
    assert (controller.pool.round is None) == is_rank


@pytest.mark.parametrize("is_rank", [True, False])
def test_running_job_leaves_the_device_at_once_for_a_rank_for_which_others_may_hold_memory(is_rank: bool) -> None:
    controller = controller_of_two()
    running = capture(controller, job(1), 10_000.0)
    controller.adopt_all()
    controller.send(StepsLeft(trainer=running, steps_left=9_000.0))
    capture(controller, rank(job(2)) if is_rank else job(2), 100_000.0)
    assert [order.trainer for order in orders_of_type(controller.orders, ParkJob)] == ([running] if is_rank else [])


@pytest.mark.parametrize("is_rank", [True, False])
def test_rank_starts_before_a_job_that_was_claimed_earlier_and_other_jobs_start_in_order(is_rank: bool) -> None:
    controller = FakeController(10, HalvingPlanner(swaps=False))
    running = controller.start(1, 8)
    earlier, later = controller.claim(job(2)), controller.claim(rank(job(3)) if is_rank else job(3))
    controller.capture(earlier, 8)
    controller.capture(later, 8)
    controller.finish(running)
    started = {m.job.job for m in controller.pool.at(JobStage.RUNNING)}
    assert started == ({3} if is_rank else {2})


@pytest.mark.parametrize("is_rank", [True, False])
def test_later_job_that_fits_starts_before_another_job_and_not_before_a_rank(is_rank: bool) -> None:
    controller = FakeController(10, HalvingPlanner(swaps=False))
    controller.start(1, 6)
    waiting, later = controller.claim(rank(job(2)) if is_rank else job(2)), controller.claim(job(3))
    controller.capture(waiting, 8)
    controller.capture(later, 2)
    started = {m.job.job for m in controller.pool.at(JobStage.RUNNING)}
    assert started == ({1} if is_rank else {1, 3})
    text = "its turn: job 2 waits for device memory, and its other devices wait for this one"
    assert claim_blocker(controller.pool) == (text if is_rank else "a trainer to start")


def test_job_that_has_made_way_once_makes_way_for_no_further_rank_that_has_just_come() -> None:
    controller = controller_of_two()
    single = capture(controller, job(1), 10_000.0)
    controller.adopt_all()
    controller.send(StepsLeft(trainer=single, steps_left=9_000.0))
    first = capture(controller, rank(job(2)), 500.0)
    controller.send(Parking(trainer=single, number=1, host_bytes=REGION))
    controller.adopt_all()
    controller.finish(first)
    controller.adopt_all()
    controller.send(StepsLeft(trainer=single, steps_left=5_000.0))
    assert controller.pool.at(JobStage.RUNNING)[0].trainer == single, "it is back"
    capture(controller, rank(job(3)), 500.0)
    assert orders_of_type(controller.orders, ParkJob) == []
