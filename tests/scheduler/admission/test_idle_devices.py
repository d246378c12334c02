"""Check that a waiting job goes to a controller that has nothing to do."""

from dataclasses import replace

import pytest

from indb_tensile.job import Blame, ClaimToken, JobId
from indb_tensile.scheduler.admission.admission_orders import (
    EndMethod,
    EndTrainer,
    Order,
    ParkJob,
    RequeueJob,
    SendPlans,
)
from indb_tensile.scheduler.admission.events import Capture, Exit, Failure, IdleDevice, Parking
from indb_tensile.scheduler.admission.pool import Fault, JobStage, TrainerId
from tests.scheduler.admission.fake_controller import (
    REGION,
    FakeController,
    HalvingPlanner,
    graph,
    job,
    orders_of_type,
)

LARGE = IdleDevice(budget_bytes=100 * REGION)


def busy(*waiting: int) -> tuple[FakeController, list[TrainerId]]:
    """Return a controller with a running job, and the trainers of jobs of these sizes that wait for memory."""
    controller = FakeController(10, HalvingPlanner(swaps=False))
    controller.start(1, 8)
    trainers = []
    for number, regions in enumerate(waiting, 2):
        trainers.append(controller.claim(job(number)))
        controller.capture(trainers[-1], regions)
    return controller, trainers


def after_reports(controller: FakeController, *reports: IdleDevice) -> tuple[Order, ...]:
    return tuple(order for report in reports for order in controller.send(report))


def test_last_waiting_job_goes_back_to_the_queue_when_another_device_stays_idle() -> None:
    controller, (_, last) = busy(6, 6)
    assert after_reports(controller, LARGE, LARGE) == ()
    assert after_reports(controller, LARGE) == (EndTrainer(trainer=last, method=EndMethod.TERMINATE),)
    requeued = RequeueJob(
        job=JobId(3),
        claim=ClaimToken(1003),
        reason="it waited here, and the device of another controller is idle",
        blame=Blame.NOBODY,
    )
    assert requeued in controller.send(Exit(trainer=last, code=-15))
    assert after_reports(controller, LARGE, LARGE) == (), "the other device has time to claim the job"


def test_device_that_was_busy_in_between_gets_no_job() -> None:
    controller, _ = busy(6)
    none = IdleDevice(budget_bytes=None)
    assert after_reports(controller, LARGE, LARGE, none, LARGE, LARGE, none) == ()


def test_job_that_the_idle_device_could_not_hold_stays_and_a_smaller_one_goes() -> None:
    controller, (small, _) = busy(4, 6)
    idle = IdleDevice(budget_bytes=5 * REGION)
    assert after_reports(controller, idle, idle, idle) == (EndTrainer(trainer=small, method=EndMethod.TERMINATE),)


def test_running_jobs_and_jobs_of_a_later_attempt_stay() -> None:
    controller, _ = busy()
    assert after_reports(controller, *[LARGE] * 6) == ()
    second = controller.claim(replace(job(2), attempt=2))
    controller.capture(second, 6)
    assert after_reports(controller, *[LARGE] * 6) == ()


def test_job_that_waits_for_its_owners_quota_stays() -> None:
    controller = FakeController(100)
    for number, regions in ((1, 8), (2, 6)):
        trainer = controller.claim(job(number, owner_limit_bytes=10 * REGION))
        controller.capture(trainer, regions)
        controller.adopt_all()
    waiting = [m.job.job for m in controller.pool.members if m.over_quota]
    assert after_reports(controller, *[LARGE] * 6) == ()
    assert waiting == [JobId(2)]


def side_by_side(*minutes_left: float, moves_trained: bool = True) -> tuple[FakeController, list[TrainerId]]:
    """Return a controller with running jobs, and their trainers, by the minutes that each would train alone."""
    controller = FakeController(10, HalvingPlanner(swaps=False), moves_trained=moves_trained)
    trainers = []
    for number, minutes in enumerate(minutes_left, 1):
        trainer = controller.claim(job(number))
        controller.send(
            Capture(trainer=trainer, graphs=(graph(3),), latency_ns=((10**9,),), unknown=0, steps=60 * minutes)
        )
        trainers.append(trainer)
    controller.adopt_all()
    return controller, trainers


def test_trained_job_with_the_most_work_left_saves_a_checkpoint_and_goes() -> None:
    controller, (_, long, _) = side_by_side(2.0, 5.0, 1.0)
    assert after_reports(controller, LARGE, LARGE) == ()
    orders = orders_of_type(after_reports(controller, LARGE), ParkJob)
    assert orders == [ParkJob(trainer=long, number=1, in_memory=True, elsewhere=True)]
    assert after_reports(controller, LARGE, LARGE, LARGE) == (), "one job goes at a time"
    fault = Fault(sqlstate="55000", message="job 2 left its device for one that has nothing to do")
    controller.send(Failure(trainer=long, fault=fault, retry=True, blame=Blame.NOBODY))
    requeued = orders_of_type(controller.send(Exit(trainer=long, code=0)), RequeueJob)
    assert [(order.job, order.blame) for order in requeued] == [(JobId(2), Blame.NOBODY)]


def test_job_that_could_not_save_a_checkpoint_for_all_hosts_goes_on_here() -> None:
    controller, (long, other) = side_by_side(5.0, 2.0)
    after_reports(controller, LARGE, LARGE, LARGE)
    sent = orders_of_type(controller.send(Parking(trainer=long, number=1, host_bytes=7)), SendPlans)
    assert long in [plans.trainer for plans in sent]
    controller.adopt_all()
    assert [(m.stage, m.moving) for m in controller.pool.members] == [(JobStage.RUNNING, False)] * 2
    going = orders_of_type(after_reports(controller, LARGE, LARGE, LARGE), ParkJob)
    assert [order.trainer for order in going] == [other], "the same job is not told to go once more"


@pytest.mark.parametrize(
    ("minutes_left", "moves_trained"),
    [((5.0,), True), ((5.0, 0.4), True), ((0.4, 0.3), True), ((5.0, 5.0), False)],
    ids=["it has the device for itself", "the other ends soon", "both end soon", "checkpoints stay on this host"],
)
def test_trained_job_stays_if_a_move_does_not_pay(minutes_left: tuple[float, ...], moves_trained: bool) -> None:
    controller, _ = side_by_side(*minutes_left, moves_trained=moves_trained)
    assert after_reports(controller, *[LARGE] * 6) == ()


def test_job_that_has_not_trained_goes_before_one_that_has() -> None:
    controller, _ = side_by_side(5.0, 5.0)
    waiting = controller.claim(job(3))
    controller.capture(waiting, 9)
    assert after_reports(controller, LARGE, LARGE, LARGE) == (
        EndTrainer(trainer=waiting, method=EndMethod.TERMINATE),
    )
