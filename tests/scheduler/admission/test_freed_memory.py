"""A job starts in the memory that another gives back, and those that go on keep their plans if nothing is left."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from indb_tensile.job import ClaimedJob, JobId
from indb_tensile.scheduler.admission.admission_orders import SendPlans
from indb_tensile.scheduler.admission.completion_rule import gains_by
from indb_tensile.scheduler.admission.events import Capture, Departure, Holding
from indb_tensile.scheduler.admission.pool import Member, Sharing, TrainerId
from indb_tensile.scheduler.completion.contention import Contention
from indb_tensile.scheduler.completion.demand import TradeOff
from indb_tensile.scheduler.plan import Infeasible
from indb_tensile.scheduler.planner import JobPlan
from indb_tensile.scheduler.workload import Workload

from .fake_controller import REGION, FakeController, HalvingPlanner, graph, job, orders_of_type


@dataclass(frozen=True)
class RecordingPlanner(HalvingPlanner):
    """Remembers for which jobs it was asked for plans."""

    asked: list[tuple[JobId, ...]] = field(default_factory=list)

    def plan(self, workloads: tuple[Workload, ...], *, budget_bytes: int) -> tuple[JobPlan, ...] | Infeasible:
        self.asked.append(tuple(workload.job for workload in workloads))
        return super().plan(workloads, budget_bytes=budget_bytes)


def _controller(budget: int, slowdown: float) -> tuple[FakeController, RecordingPlanner]:
    planner = RecordingPlanner(slowdown=slowdown, planned_slowdown=slowdown)
    contention = Contention(points=((1, 1.0), (8, 1.0)))
    rules: dict[str, Any] = {"sharing": Sharing.COMPLETION, "contention": contention, "entering_jobs": 8}
    return FakeController(budget, planner, **rules), planner


def _capture(controller: FakeController, claimed: ClaimedJob, regions: int) -> TrainerId:
    trainer = controller.claim(claimed)
    controller.send(Capture(trainer=trainer, graphs=(graph(regions),), latency_ns=((1000,),), unknown=0, steps=100.0))
    controller.adopt_all()
    return trainer


def test_a_job_is_planned_alone_for_memory_that_is_being_given_back_and_starts_when_it_is_free() -> None:
    controller, planner = _controller(10, slowdown=4.0)
    _, second = (_capture(controller, job(number), 4) for number in (1, 2))
    third = _capture(controller, job(3), 6)
    assert controller.grants() == {1: 4, 2: 4, 3: 0}
    planner.asked.clear()
    orders = controller.decide(Departure(trainer=second))
    assert not orders_of_type(orders, SendPlans), "the ledger has not confirmed that the memory is free"
    orders = controller.decide(Holding(trainer=second, held_bytes=0))
    assert [(order.trainer, order.grant_bytes) for order in orders_of_type(orders, SendPlans)] == [
        (third, 6 * REGION)
    ]
    assert planner.asked == [(JobId(3),)], "the first job keeps its plan"


def test_a_job_that_goes_on_is_planned_anew_if_it_gains_by_what_is_left() -> None:
    controller, planner = _controller(9, slowdown=1.1)
    _capture(controller, job(1), 8)
    second = _capture(controller, job(2), 10)
    _capture(controller, job(3), 1)
    assert controller.grants() == {1: 4, 2: 5, 3: 0}
    planner.asked.clear()
    controller.send(Departure(trainer=second))
    controller.adopt_all()
    assert controller.grants() == {1: 8, 2: 0, 3: 1}
    assert planner.asked == [(JobId(3),), (JobId(1), JobId(3))]


@pytest.mark.parametrize(
    ("has", "more", "gains"),
    [(4, 0, False), (4, 3, False), (4, 4, True), (6, 2, True), (8, 8, False), (3, 0, False), (3, 1, True)],
)
def test_memory_is_a_gain_if_it_allows_a_faster_trade_off(has: int, more: int, gains: bool) -> None:
    points = tuple(TradeOff(peak_bytes=size, iteration_ns=ns, compute_ns=ns) for size, ns in ((8, 100), (4, 110)))
    assert gains_by(Member(job=job(1), trade_offs=points), has, more) is gains


def test_memory_is_a_gain_where_no_trade_offs_are_known_and_none_where_they_hardly_differ() -> None:
    assert gains_by(Member(job=job(1)), 4, 4)
    points = tuple(TradeOff(peak_bytes=size, iteration_ns=ns, compute_ns=ns) for size, ns in ((8, 100), (4, 102)))
    assert not gains_by(Member(job=job(1), trade_offs=points), 4, 4)
