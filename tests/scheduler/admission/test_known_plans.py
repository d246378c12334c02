"""The plans of a set of jobs serve a later set of equal jobs in the same memory, so the planner is asked once."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from indb_tensile.job import ClaimedJob, JobId
from indb_tensile.scheduler.admission.admission_orders import SendPlans
from indb_tensile.scheduler.admission.events import Capture
from indb_tensile.scheduler.admission.known_plans import MOST_SETS, KnownPlans
from indb_tensile.scheduler.admission.pool import Sharing, TrainerId
from indb_tensile.scheduler.completion.contention import Contention
from indb_tensile.scheduler.graph import StepGraph
from indb_tensile.scheduler.phases.round_part import RoundPart, Segment
from indb_tensile.scheduler.plan import Infeasible, Plan
from indb_tensile.scheduler.planner import JobPlan
from indb_tensile.scheduler.timing.schedule import Schedule
from indb_tensile.scheduler.workload import Workload

from .fake_controller import REGION, FakeController, HalvingPlanner, graph, job, job_plan, orders_of_type

BUDGET = 10 * REGION
DRIFT = 0.2


def _graph(regions: int, signature: str = "kind") -> StepGraph:
    return replace(graph(regions), signature=signature)


def _workload(number: int, regions: int = 4, latency_ns: int = 1000, signature: str = "kind") -> Workload:
    graphs = (_graph(regions, signature),)
    return Workload(job=JobId(number), graphs=graphs, latency_ns=((latency_ns,),))


def _plan(number: int, policy: str) -> JobPlan:
    return replace(job_plan(JobId(number), 4 * REGION), plans=(Plan(policy=policy),))


def _known(*workloads: Workload, budget_bytes: int = BUDGET) -> KnownPlans:
    plans = [_plan(w.job, f"plan {place}") for place, w in enumerate(workloads)]
    return KnownPlans().with_those_of(workloads, plans, budget_bytes=budget_bytes)


def _policies(
    known: KnownPlans,
    workloads: Sequence[Workload],
    followed: Sequence[JobPlan | None] | None = None,
    budget_bytes: int = BUDGET,
) -> list[tuple[int, str]] | None:
    own = [None] * len(workloads) if followed is None else followed
    plans = known.of(workloads, own, budget_bytes=budget_bytes, most_drift=DRIFT)
    return None if plans is None else [(plan.job, plan.plans[0].policy) for plan in plans]


def test_the_plans_of_a_set_serve_a_set_of_equal_jobs() -> None:
    known = _known(_workload(1), _workload(2))
    assert _policies(known, [_workload(7), _workload(8)]) == [(7, "plan 0"), (8, "plan 1")]


def test_a_job_that_goes_on_keeps_the_plan_that_it_follows() -> None:
    known = _known(_workload(1), _workload(2))
    assert _policies(known, [_workload(2), _workload(3)], [_plan(2, "plan 1"), None]) == [
        (2, "plan 1"),
        (3, "plan 0"),
    ]
    assert _policies(known, [_workload(3), _workload(2)], [None, _plan(2, "plan 0")]) == [
        (3, "plan 1"),
        (2, "plan 0"),
    ]


def test_jobs_of_several_kinds_get_the_plans_of_their_kinds() -> None:
    known = _known(_workload(1), _workload(2, regions=3, signature="other"))
    jobs = [_workload(7, regions=3, signature="other"), _workload(8)]
    assert _policies(known, jobs) == [(7, "plan 1"), (8, "plan 0")]


@pytest.mark.parametrize(
    "jobs",
    [
        pytest.param([_workload(7)], id="fewer jobs"),
        pytest.param([_workload(7), _workload(8), _workload(9)], id="more jobs"),
        pytest.param([_workload(7), _workload(8, signature="other")], id="another kind"),
        pytest.param([_workload(7), _workload(8, regions=5)], id="the same signature for another graph"),
        pytest.param([_workload(7), _workload(8, latency_ns=1201)], id="latencies that have drifted"),
        pytest.param([_workload(7), replace(_workload(8), limit_bytes=3 * REGION)], id="a limit of its own"),
        pytest.param([_workload(7), replace(_workload(8), batch=("x",))], id="a batch that is uploaded ahead"),
        pytest.param([_workload(7), replace(_workload(8), others_ns=500)], id="a rank"),
    ],
)
def test_plans_of_another_set_do_not_serve(jobs: list[Workload]) -> None:
    assert _policies(_known(_workload(1), _workload(2)), jobs) is None


def test_plans_for_other_memory_do_not_serve() -> None:
    assert _policies(_known(_workload(1)), [_workload(7)], budget_bytes=BUDGET + REGION) is None


def test_latencies_may_differ_by_the_drift_that_a_running_job_may_have() -> None:
    assert _policies(_known(_workload(1)), [_workload(7, latency_ns=1200)]) == [(7, "plan 0")]


def test_what_differs_between_a_job_that_starts_and_one_that_goes_on_does_not_matter() -> None:
    running = replace(_workload(7), host_bytes=5, parked_host_bytes=6, graph_share=0.9)
    assert _policies(_known(_workload(1)), [running]) == [(7, "plan 0")]


def test_later_plans_of_an_equal_set_replace_the_earlier_ones() -> None:
    later = _known(_workload(1)).with_those_of([_workload(2)], [_plan(2, "later")], budget_bytes=BUDGET)
    assert len(later.sets) == 1
    assert _policies(later, [_workload(7)]) == [(7, "later")]


def test_the_set_that_was_planned_first_is_forgotten() -> None:
    known = KnownPlans()
    for number in range(MOST_SETS + 1):
        known = known.with_those_of([_workload(1, regions=number + 1)], [_plan(1, "p")], budget_bytes=BUDGET)
    assert len(known.sets) == MOST_SETS
    assert _policies(known, [_workload(7, regions=1)]) is None
    assert _policies(known, [_workload(7, regions=2)]) == [(7, "p")]


def test_nothing_is_learned_from_ranks_rounds_and_graphs_without_signatures() -> None:
    rank, unsigned = replace(_workload(1), others_ns=500), _workload(1, signature="")
    for workload in (rank, unsigned):
        assert KnownPlans().with_those_of([workload], [_plan(1, "p")], budget_bytes=BUDGET).sets == ()
    segments = (Segment(operator=0, taken=()),)
    part = RoundPart(position=0, operators=1, iterations=1, base_bytes=1, region_bytes=1, segments=segments)
    schedule = Schedule(jobs=(1,), iterations=(1,), gates=(), budget_bytes=BUDGET)
    for plan in (replace(_plan(1, "p"), part=part), replace(_plan(1, "p"), schedule=schedule)):
        assert KnownPlans().with_those_of([_workload(1)], [plan], budget_bytes=BUDGET).sets == ()


# --- in a controller ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CountingPlanner(HalvingPlanner):
    """Remembers for which jobs it was asked for plans."""

    asked: list[tuple[JobId, ...]] = field(default_factory=list)

    def plan(self, workloads: tuple[Workload, ...], *, budget_bytes: int) -> tuple[JobPlan, ...] | Infeasible:
        self.asked.append(tuple(workload.job for workload in workloads))
        return super().plan(workloads, budget_bytes=budget_bytes)


def _controller(**rules: Any) -> tuple[FakeController, CountingPlanner]:
    planner = CountingPlanner(slowdown=1.1, planned_slowdown=1.1)
    contention = Contention(points=((1, 1.0), (8, 1.0)))
    given_rules: dict[str, Any] = {"sharing": Sharing.COMPLETION, "contention": contention, "entering_jobs": 8}
    return FakeController(5, planner, **given_rules, **rules), planner


def _capture(controller: FakeController, claimed: ClaimedJob) -> TrainerId:
    trainer = controller.claim(claimed)
    controller.send(Capture(trainer=trainer, graphs=(_graph(4),), latency_ns=((1000,),), unknown=0, steps=100.0))
    controller.adopt_all()
    return trainer


def test_an_equal_job_takes_the_place_of_the_one_that_ends_without_new_plans() -> None:
    controller, planner = _controller()
    first, _ = (_capture(controller, job(number)) for number in (1, 2))
    before = controller.grants()
    assert before[1] + before[2] == 5
    third = _capture(controller, job(3))
    assert controller.grants() == {**before, 3: 0}
    planner.asked.clear()
    orders = controller.finish(first)
    sent = [(order.trainer, order.grant_bytes // REGION) for order in orders_of_type(orders, SendPlans)]
    assert sent == [(third, before[1])]
    assert planner.asked == []
    controller.adopt_all()
    assert controller.grants() == {2: before[2], 3: before[1]}


def test_plans_are_not_used_again_where_the_host_pool_has_no_room_for_them() -> None:
    controller, planner = _controller(host_pool_bytes=1 << 40)
    first, _ = (_capture(controller, job(number)) for number in (1, 2))
    _capture(controller, job(3))
    planner.asked.clear()
    members = tuple(replace(member, host_bytes=1) for member in controller.pool.members)
    controller.pool = replace(controller.pool, members=members, host_pool_bytes=0)
    controller.finish(first)
    assert (JobId(2), JobId(3)) in planner.asked


def test_equal_graphs_of_jobs_that_have_ended_are_one_object() -> None:
    controller, _ = _controller()
    controller.finish(_capture(controller, job(1)))
    trained = controller.pool.plans.graphs[0]
    _capture(controller, job(2))
    (member,) = controller.pool.members
    assert member.workload is not None
    assert member.workload.graphs[0] is trained
