"""A job of a higher priority makes lower ones leave the device at their next boundary, and lets them return."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.job import JobId
from indb_tensile.scheduler.admission.admission_orders import ParkJob, SendPlans
from indb_tensile.scheduler.admission.events import Capture, PauseChange, PriorityChange, Tick
from indb_tensile.scheduler.admission.fair_turns import in_fair_order
from indb_tensile.scheduler.admission.pool import JobStage, Sharing, TrainerId
from indb_tensile.scheduler.completion.contention import Contention

from .fake_controller import REGION, FakeController, graph, job, orders_of_type
from .test_completion_rule import TimedPlanner
from .timed_jobs import capture, leaving_trainers, park, stages, start, timed_controller, train


def _controller(budget: int, **rules: Any) -> FakeController:
    return FakeController(budget, TimedPlanner(), sharing=Sharing.COMPLETION, entering_jobs=8, **rules)


def _capture(controller: FakeController, number: int, regions: int, **claimed: Any) -> TrainerId:
    trainer = controller.claim(job(number, **claimed))
    controller.send(Capture(trainer=trainer, graphs=(graph(regions),), latency_ns=((1000,),), unknown=0, steps=100.0))
    return trainer


def _start(controller: FakeController, number: int, regions: int, **claimed: Any) -> TrainerId:
    trainer = _capture(controller, number, regions, **claimed)
    controller.adopt_all()
    return trainer


def test_lower_job_leaves_for_a_higher_one_and_returns_after_it() -> None:
    controller = _controller(4)
    low = _start(controller, 1, 4)
    high = _capture(controller, 2, 4, priority=5)
    assert [order.trainer for order in orders_of_type(controller.orders, ParkJob)] == [low]
    park(controller, low)
    assert [order.trainer for order in orders_of_type(controller.orders, SendPlans)] == [high]
    controller.adopt_all()
    assert stages(controller) == {1: JobStage.WAITING, 2: JobStage.RUNNING}
    assert controller.grants() == {1: 0, 2: 4}
    controller.finish(high)
    controller.adopt_all()
    assert stages(controller) == {1: JobStage.RUNNING}
    assert controller.grants() == {1: 4}


def test_a_lower_job_does_not_return_before_a_higher_one_that_still_leaves() -> None:
    controller = _controller(4)
    low = _start(controller, 1, 4)
    middle = _capture(controller, 2, 4, priority=5)
    park(controller, low)
    controller.adopt_all()
    high = _capture(controller, 3, 4, priority=10)
    assert stages(controller) == {1: JobStage.WAITING, 2: JobStage.PARKING, 3: JobStage.RUNNING}
    first = controller.pool.of_trainer(low)
    assert first is not None
    assert first.waits_for == "its turn: job 2 has a higher priority, and leaves the device first"
    park(controller, middle)
    controller.adopt_all()
    assert stages(controller) == {1: JobStage.WAITING, 2: JobStage.WAITING, 3: JobStage.RUNNING}
    for ended in (high, middle, low):
        assert controller.pool.at(JobStage.RUNNING)[0].trainer == ended
        controller.finish(ended)
        controller.adopt_all()


def test_a_priority_delays_no_job_of_another_owner() -> None:
    controller = _controller(4)
    running = _start(controller, 1, 4, owner=1)
    ours = _capture(controller, 2, 4, owner=1)
    for number in (3, 4):
        _capture(controller, number, 4, owner=2, priority=1000)
    assert not orders_of_type(controller.orders, ParkJob)
    assert in_fair_order(controller.pool, controller.pool.at(JobStage.WAITING))[0].job.owner_oid == 1
    controller.finish(running)
    controller.adopt_all()
    member = controller.pool.of_trainer(ours)
    assert member is not None
    assert member.stage is JobStage.RUNNING, "it came first, and is as long as the others"


def test_nobody_leaves_for_a_job_of_equal_or_lower_priority() -> None:
    controller = _controller(4)
    _start(controller, 1, 4, priority=5)
    for number, priority in ((2, 5), (3, 0)):
        _capture(controller, number, 4, priority=priority)
        assert orders_of_type(controller.orders, ParkJob) == []


def test_nobody_leaves_for_a_higher_job_that_fits_beside_him() -> None:
    controller = _controller(8)
    _start(controller, 1, 4)
    _start(controller, 2, 4, priority=5)
    assert controller.grants() == {1: 4, 2: 4}


def test_a_higher_job_takes_the_place_of_a_lower_one_if_a_pair_gains_nothing() -> None:
    controller = timed_controller(8)
    low = start(controller, 1, 1000.0)
    train(controller, low, 800.0)
    high = capture(controller, 2, 1000.0, priority=5)
    assert leaving_trainers(controller) == [low]
    park(controller, low)
    controller.adopt_all()
    assert stages(controller) == {1: JobStage.WAITING, 2: JobStage.RUNNING}, (
        "the lower one does not come back beside it"
    )
    controller.finish(high)
    controller.adopt_all()
    assert stages(controller) == {1: JobStage.RUNNING}


def test_a_job_that_has_little_left_comes_back_beside_a_long_higher_one_after_a_quantum() -> None:
    controller = timed_controller(8)
    low = start(controller, 1, 1000.0)
    train(controller, low, 900.0)
    capture(controller, 2, 100_000.0, priority=5)
    park(controller, low)
    controller.adopt_all()
    for now_s, stage in ((1.0, JobStage.WAITING), (3.0, JobStage.RUNNING)):
        controller.send(Tick(now_s=now_s))
        controller.adopt_all()
        assert stages(controller) == {1: stage, 2: JobStage.RUNNING}, f"a quantum is 2 s, and {now_s} s have passed"


def test_nobody_leaves_for_a_higher_job_if_the_pair_gains_clearly() -> None:
    controller = timed_controller(8, contention=Contention(points=((1, 1.0), (2, 1.7))))
    start(controller, 1, 1000.0)
    capture(controller, 2, 1000.0, priority=5)
    assert leaving_trainers(controller) == []
    controller.adopt_all()
    assert stages(controller) == {1: JobStage.RUNNING, 2: JobStage.RUNNING}


@pytest.mark.parametrize(("left", "leaves"), [(9.0, False), (50.0, True)])
def test_a_lower_job_leaves_only_if_it_goes_on_for_longer_than_a_change_takes(left: float, leaves: bool) -> None:
    controller = timed_controller()
    low = start(controller, 1, 1000.0)
    train(controller, low, 1000.0 - left)
    high = capture(controller, 2, 1000.0, priority=5)
    assert leaving_trainers(controller) == [low] * leaves
    if not leaves:
        controller.finish(low)
        controller.adopt_all()
        assert [m.trainer for m in controller.pool.at(JobStage.RUNNING)] == [high]


def test_nobody_leaves_for_a_higher_job_that_waits_for_its_owners_quota() -> None:
    controller = _controller(8)
    _start(controller, 1, 4, owner=7, owner_limit_bytes=4 * REGION)
    _start(controller, 2, 4, owner=8)
    _capture(controller, 3, 4, owner=7, owner_limit_bytes=4 * REGION, priority=5)
    assert orders_of_type(controller.orders, ParkJob) == []


def test_lower_job_returns_if_the_higher_one_is_paused_while_it_waits() -> None:
    controller = _controller(4)
    low = _start(controller, 1, 4)
    _capture(controller, 2, 4, priority=5)
    controller.send(PauseChange(paused=frozenset({JobId(2)})))
    park(controller, low)
    controller.adopt_all()
    assert controller.grants()[1] == 4


def test_a_running_job_leaves_when_the_priority_of_a_waiting_one_is_raised_and_returns_when_it_is_lowered() -> None:
    controller = _controller(4)
    low = _start(controller, 1, 4)
    _capture(controller, 2, 4)
    assert stages(controller) == {1: JobStage.RUNNING, 2: JobStage.WAITING}
    controller.send(PriorityChange(priorities={JobId(1): 0, JobId(2): 5}))
    assert [order.trainer for order in orders_of_type(controller.orders, ParkJob)] == [low]
    assert [m.job.priority for m in controller.pool.members] == [0, 5]
    park(controller, low)
    controller.adopt_all()
    assert controller.grants() == {1: 0, 2: 4}
    controller.send(PriorityChange(priorities={JobId(1): 9, JobId(2): 5}))
    high = controller.pool.members[1].trainer
    assert [order.trainer for order in orders_of_type(controller.orders, ParkJob)] == [high]


def test_a_running_job_alone_does_not_notice_its_new_priority() -> None:
    controller = _controller(4)
    _start(controller, 1, 4)
    controller.send(PriorityChange(priorities={JobId(1): -5}))
    assert controller.orders == ()
    assert controller.grants() == {1: 4}


@given(priorities=st.lists(st.integers(0, 2), min_size=1, max_size=5), data=st.data())
def test_every_job_runs_in_the_end_and_the_budget_holds(priorities: list[int], data: st.DataObject) -> None:
    controller = _controller(8, parked_jobs=8)
    trainers = {}
    for number, priority in enumerate(priorities, start=1):
        trainers[number] = _capture(controller, number, data.draw(st.integers(2, 8)), priority=priority)
        _settle(controller)
    for _ in range(len(priorities)):
        running = [m for m in controller.pool.members if m.stage is JobStage.RUNNING]
        assert running, "jobs wait and none runs"
        assert controller.pool.held_bytes <= controller.pool.budget_bytes
        assert running[0].trainer is not None
        controller.finish(running[0].trainer)
        _settle(controller)
    assert controller.pool.members == ()


def _settle(controller: FakeController) -> None:
    """Let every trainer park that was told to, and follow every plan that was sent."""
    while True:
        controller.adopt_all()
        parking = [m for m in controller.pool.members if m.stage is JobStage.PARKING]
        if not parking:
            return
        assert parking[0].trainer is not None
        park(controller, parking[0].trainer)
