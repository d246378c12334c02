"""Check that a waiting job goes to a controller that has nothing to do."""

from dataclasses import replace

from indb_tensile.job import Blame, ClaimToken, JobId
from indb_tensile.scheduler.admission.admission_orders import EndMethod, EndTrainer, Order, RequeueJob
from indb_tensile.scheduler.admission.events import Exit, IdleDevice
from indb_tensile.scheduler.admission.pool import TrainerId
from tests.scheduler.admission.fake_controller import REGION, FakeController, HalvingPlanner, job

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
