"""The planner as a whole: any jobs, any budget, any policy, judged by check.py."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indb_tensile.errors import InvariantError, MissingError
from indb_tensile.job import JobId
from indb_tensile.scheduler import check
from indb_tensile.scheduler.graph import Operator, OpIndex, Role, Stage, StepGraph, Tensor, TensorId
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.peak import liveness_peak, peak
from indb_tensile.scheduler.plan import Infeasible, Plan, Swap
from indb_tensile.scheduler.planner import JobPlan, Workload, least_bytes, plan_jobs
from indb_tensile.scheduler.policies import POLICIES
from tests.scheduler.strategies import links, several_workloads

SLOW = Link(out_bytes_per_s=1_000_000, in_bytes_per_s=1_000_000)  # 1 us a byte


@settings(max_examples=300, deadline=None)
@given(several_workloads(), links(), st.floats(0, 1.2), st.sampled_from(sorted(POLICIES)), st.booleans())
def test_no_policy_breaks_a_rule_and_equal_inputs_give_equal_plans(
    jobs: tuple[Workload, ...], link: Link, fraction: float, policy: str, rewrites: bool
) -> None:
    floors, bars = _floors(jobs), _bars(jobs)
    budget = floors + int((bars - floors) * fraction)
    planned = plan_jobs(jobs, budget_bytes=budget, link=link, policy=policy, rewrites=rewrites)
    assert planned == plan_jobs(jobs, budget_bytes=budget, link=link, policy=policy, rewrites=rewrites)
    if isinstance(planned, Infeasible):
        assert policy != "tensile+", "every budget from the floor up can be met"
        assert planned.shortfall_bytes > 0
        return
    pairs = [list(zip(w.graphs, p.plans, strict=True)) for w, p in zip(jobs, planned, strict=True)]
    assert check.faults_together(pairs, budget_bytes=budget) == ()
    assert rewrites or all(not plan.executions for p in planned for plan in p.plans)
    for workload, job_plan in zip(jobs, planned, strict=True):
        _agrees(workload, job_plan)


def _agrees(workload: Workload, job_plan: JobPlan) -> None:
    """The plan's figures are what the independent judge finds."""
    peaks = [check.peak(g, p) for g, p in zip(workload.graphs, job_plan.plans, strict=True)]
    assert [peak(g, p) for g, p in zip(workload.graphs, job_plan.plans, strict=True)] == peaks
    assert job_plan.peak_bytes == max(peaks)
    assert job_plan.forecast.peak_bytes == peaks[0]
    assert job_plan.floor_bytes <= job_plan.peak_bytes
    assert job_plan.floor_bytes == least_bytes(workload) <= job_plan.liveness_peak_bytes
    assert job_plan.liveness_peak_bytes <= job_plan.vanilla_peak_bytes
    assert job_plan.swaps == len(job_plan.plans[0].swaps)


@settings(max_examples=100, deadline=None)
@given(several_workloads(), links())
def test_a_budget_below_the_floors_is_infeasible_and_says_by_how_much(jobs: tuple[Workload, ...], link: Link) -> None:
    needed = _floors(jobs)
    refusal = plan_jobs(jobs, budget_bytes=max(0, needed - 3), link=link)
    if needed == 0:
        assert not isinstance(refusal, Infeasible)
    else:
        assert isinstance(refusal, Infeasible)
        assert refusal.needed_bytes == needed
        assert refusal.shortfall_bytes == min(3, needed)


@settings(max_examples=100, deadline=None)
@given(several_workloads(), links(), st.data())
def test_a_jobs_own_limit_holds_whatever_the_budget(
    jobs: tuple[Workload, ...], link: Link, data: st.DataObject
) -> None:
    least = least_bytes(jobs[0])
    limit = data.draw(st.integers(max(0, least - 5), least + 60))
    limited = (dataclasses.replace(jobs[0], limit_bytes=limit), *jobs[1:])
    planned = plan_jobs(limited, budget_bytes=10**9, link=link)
    if isinstance(planned, Infeasible):
        assert limit < least
        assert (planned.needed_bytes, planned.budget_bytes) == (least, limit)
    else:
        assert planned[0].peak_bytes <= limit
        for workload, job_plan in zip(jobs[1:], planned[1:], strict=True):
            assert all(not plan.swaps for plan in job_plan.plans)
            assert job_plan.peak_bytes == max(liveness_peak(g) for g in workload.graphs)


def test_nothing_moves_where_the_budget_holds_everything() -> None:
    planned = _planned((_ring(),), budget=1000)
    assert planned[0].plans == (Plan(policy="tensile+"),)
    assert planned[0].forecast.iteration_ns == planned[0].forecast.compute_ns == 4000


def test_the_largest_tensor_at_the_peak_leaves_as_early_and_returns_as_late_as_nobody_waits() -> None:
    """Operators of 100 us; `big` (60 bytes, 60 us a copy) is idle from operator 0 to operator 6."""
    planned = _planned((_idle_while_working(),), budget=131)
    expected = Swap(
        tensor=TensorId(1), out_after=OpIndex(0), free_at=OpIndex(2), in_at=OpIndex(5), needed_by=OpIndex(6)
    )
    assert planned[0].plans == (Plan(policy="tensile+", swaps=(expected,)),)
    assert planned[0].liveness_peak_bytes == 190
    assert planned[0].peak_bytes == 130
    forecast = planned[0].forecast
    assert (forecast.stall_out_ns, forecast.stall_in_ns, forecast.iteration_ns) == (0, 0, 700_000)


def test_a_budget_between_what_is_free_and_the_floor_is_bought_with_stalls() -> None:
    workload = dataclasses.replace(_idle_while_working(), latency_ns=((10_000,) * 7,))
    free_peak = _planned((workload,), budget=190)[0].peak_bytes
    bought = _planned((workload,), budget=130)[0]
    assert free_peak == 190
    assert bought.peak_bytes == 130
    assert bought.forecast.stall_out_ns + bought.forecast.stall_in_ns > 0


def test_a_tensor_no_graph_operator_accesses_stays_on_the_host() -> None:
    step = _idle_while_working().graphs[0]
    validation = StepGraph(tensors=step.tensors, operators=(_operator("eval", (TensorId(1),), (TensorId(2),)),))
    workload = Workload(job=JobId(1), graphs=(step, validation), latency_ns=((100_000,) * 7, (100_000,)))
    planned = _planned((workload,), budget=160)[0]
    assert planned.plans[1] == Plan(policy="tensile+", away=frozenset({TensorId(0)}))
    assert planned.peak_bytes == 160


def test_the_job_with_the_lower_swapping_rate_is_left_alone_first() -> None:
    first = dataclasses.replace(_idle_while_working(), latency_ns=((300_000,) * 7,))
    second = dataclasses.replace(first, job=JobId(2))
    plain = _planned((first, second), budget=350)
    spared = _planned((dataclasses.replace(first, max_swapping_rate=0.0), second), budget=350)
    assert [len(p.plans[0].swaps) for p in plain] == [1, 0]
    assert [len(p.plans[0].swaps) for p in spared] == [0, 1]


def test_no_jobs_need_no_plans() -> None:
    assert plan_jobs((), budget_bytes=0, link=SLOW) == ()


def test_wrong_requests_are_refused_with_a_way_out() -> None:
    with pytest.raises(MissingError, match="no policy 'magic'") as caught:
        plan_jobs((), budget_bytes=0, link=SLOW, policy="magic")
    assert ", ".join(sorted(POLICIES)) in caught.value.hint
    with pytest.raises(InvariantError, match="budget_bytes is -1"):
        plan_jobs((), budget_bytes=-1, link=SLOW)
    with pytest.raises(InvariantError, match="planned twice"):
        plan_jobs((_ring(), _ring()), budget_bytes=10**6, link=SLOW)


def test_a_workload_that_contradicts_itself_is_refused() -> None:
    graph = _ring().graphs[0]
    with pytest.raises(InvariantError, match="3 latencies for 4 operators"):
        Workload(job=JobId(1), graphs=(graph,), latency_ns=((1, 1, 1),))
    with pytest.raises(InvariantError, match="not be negative nor all 0"):
        Workload(job=JobId(1), graphs=(graph,), latency_ns=((0, 0, 0, 0),))
    with pytest.raises(InvariantError, match="0 latency rows for 1 graphs"):
        Workload(job=JobId(1), graphs=(graph,), latency_ns=())
    with pytest.raises(InvariantError, match=r"max_swapping_rate is 1\.5"):
        dataclasses.replace(_ring(), max_swapping_rate=1.5)
    other = _idle_while_working().graphs[0]
    with pytest.raises(InvariantError, match="persistent tensors are not those of graph 0"):
        Workload(job=JobId(1), graphs=(graph, other), latency_ns=((1,) * 4, (1,) * 7))


def _planned(jobs: tuple[Workload, ...], *, budget: int) -> tuple[JobPlan, ...]:
    planned = plan_jobs(jobs, budget_bytes=budget, link=SLOW)
    assert not isinstance(planned, Infeasible)
    return planned


def _floors(jobs: tuple[Workload, ...]) -> int:
    return sum(least_bytes(w) for w in jobs)


def _bars(jobs: tuple[Workload, ...]) -> int:
    return sum(max(liveness_peak(g) for g in w.graphs) for w in jobs)


def _operator(name: str, reads: tuple[TensorId, ...], writes: tuple[TensorId, ...]) -> Operator:
    return Operator(name=name, signature=name, stage=Stage.FORWARD, reads=reads, writes=writes)


def _ring() -> Workload:
    """Four operators of 1 us that each update one of two parameters."""
    tensors = tuple(Tensor(id=TensorId(i), name=f"p{i}", size_bytes=10, role=Role.PARAMETER) for i in range(2))
    operators = tuple(_operator(f"op{k}", (TensorId(k % 2),), (TensorId(k % 2),)) for k in range(4))
    return Workload(
        job=JobId(1), graphs=(StepGraph(tensors=tensors, operators=operators),), latency_ns=((1000,) * 4,)
    )


def _idle_while_working() -> Workload:
    """`big` is used by the first and the last operator; in between an activation of 100 bytes lives."""
    tensors = (
        Tensor(id=TensorId(0), name="small", size_bytes=30, role=Role.OPTIMIZER_STATE),
        Tensor(id=TensorId(1), name="big", size_bytes=60, role=Role.PARAMETER),
        Tensor(id=TensorId(2), name="work", size_bytes=100, role=Role.ACTIVATION),
    )
    small, big, work = (t.id for t in tensors)
    operators = (
        _operator("first", (big,), ()),
        _operator("quiet", (small,), ()),
        _operator("make", (), (work,)),
        _operator("use", (small, work), ()),
        _operator("end", (work, small), ()),
        _operator("calm", (small,), ()),
        _operator("last", (big,), (big, small)),
    )
    graph = StepGraph(tensors=tensors, operators=operators)
    return Workload(job=JobId(1), graphs=(graph,), latency_ns=((100_000,) * 7,))
