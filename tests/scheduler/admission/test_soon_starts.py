"""A waiting job starts up while another one does its last steps, once a report of progress says that it is time."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from indb_tensile.job import JobId
from indb_tensile.scheduler.admission.admission_orders import SendPlans
from indb_tensile.scheduler.admission.events import CancelRequest, Departure, StepsLeft
from indb_tensile.scheduler.admission.overheads import KindOverheads, Overheads
from indb_tensile.scheduler.admission.pool import JobStage, Pool, Sharing, TrainerId
from indb_tensile.scheduler.completion.contention import of_cores
from tests.scheduler.admission.fake_controller import FakeController, job, orders_of_type

_STEPS = 1e7  # of 1,000 ns: ten seconds
_STARTUP_NS = 2_000_000_000
_TIME = 0.225 * _STEPS  # steps that take as long as the start-up and a quarter of a second, between two reports


def test_job_starts_when_the_running_one_has_as_long_left_as_the_start_up_takes() -> None:
    controller, first, second = _one_waits()
    assert not _sent(controller, StepsLeft(trainer=first, steps_left=1.01 * _TIME))
    assert _stage(controller, 2) is JobStage.WAITING
    assert _sent(controller, StepsLeft(trainer=first, steps_left=0.99 * _TIME)) == [second]
    assert _stage(controller, 1) is JobStage.RUNNING, "and goes on with its plan"
    controller.adopt_all()
    assert not _sent(controller, StepsLeft(trainer=first, steps_left=0.5 * _TIME)), "nothing undoes the start"
    controller.send(Departure(trainer=first))
    assert (_stage(controller, 1), _stage(controller, 2)) == (JobStage.CLOSING, JobStage.RUNNING)


def test_on_processors_job_starts_later_because_steps_take_longer_while_it_starts_up() -> None:
    known = KindOverheads(kind="a", state_bytes=1, startup_ns=_STARTUP_NS, closing_ns=_STARTUP_NS / 10)
    controller, first, second = _one_waits(
        contention=of_cores(2, 2), prepares_on_device=True, overheads=Overheads(kinds=(known,))
    )
    steps = 0.125 * _STEPS  # half of those of the start-up, which are done at half of their speed meanwhile
    assert not _sent(controller, StepsLeft(trainer=first, steps_left=1.01 * steps))
    assert _sent(controller, StepsLeft(trainer=first, steps_left=0.99 * steps)) == [second]


def test_job_that_does_not_fit_beside_the_running_one_starts_when_that_has_left() -> None:
    controller, first, second = _one_waits(budget=3)
    assert not _sent(controller, StepsLeft(trainer=first, steps_left=0.5 * _TIME))
    assert _sent(controller, Departure(trainer=first)) == [second]


@pytest.mark.parametrize(
    "undo",
    [
        lambda controller: replace(controller.pool, sharing=Sharing.ANY_PRICE),
        lambda controller: replace(controller.pool, last_choice=None),
        lambda controller: replace(controller.pool, asked=True),
    ],
)
def test_progress_divides_no_memory_without_a_choice_or_while_the_planner_owes_an_answer(
    undo: Callable[[FakeController], Pool],
) -> None:
    controller, first, _ = _one_waits()
    controller.pool = undo(controller)
    assert not _sent(controller, StepsLeft(trainer=first, steps_left=0.5 * _TIME))
    assert controller.pool.due is None


def test_job_that_was_cancelled_before_its_time_does_not_start() -> None:
    controller, first, _ = _one_waits()
    controller.send(CancelRequest(job=JobId(2)))
    assert not _sent(controller, StepsLeft(trainer=first, steps_left=0.5 * _TIME))


def _one_waits(budget: int = 20, **rules: Any) -> tuple[FakeController, TrainerId, TrainerId]:
    """Return a controller whose first job runs and has shown how long jobs start up. The second waits for its end."""
    defaults: dict[str, Any] = {"contention": of_cores(1, 1), "entering_jobs": 4}
    controller = FakeController(budget, sharing=Sharing.COMPLETION, **(defaults | rules))
    first, second = (controller.claim(job(number)) for number in (1, 2))
    controller.capture(first, 2, steps=_STEPS)
    controller.adopt_all()
    controller.send(StepsLeft(trainer=first, steps_left=_STEPS - 1, startup_ns=_STARTUP_NS + 1_000))
    controller.capture(second, 2, steps=_STEPS)
    assert _stage(controller, 2) is JobStage.WAITING, "each would use all that the device has"
    return controller, first, second


def _sent(controller: FakeController, event: StepsLeft | Departure) -> list[TrainerId]:
    """Return the trainers that are sent plans after this event."""
    return [order.trainer for order in orders_of_type(controller.send(event), SendPlans)]


def _stage(controller: FakeController, number: int) -> JobStage:
    member = controller.pool.of_job(JobId(number))
    assert member is not None
    return member.stage
