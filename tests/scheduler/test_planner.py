"""The planner as a whole: any jobs, any budget, any policy, judged by judges/check.py."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indb_tensile.errors import InvariantError, MissingError
from indb_tensile.job import JobId
from indb_tensile.scheduler.graph import Operator, OpIndex, Role, Stage, StepGraph, Tensor, TensorId
from indb_tensile.scheduler.judges import check
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import liveness_peak, peak
from indb_tensile.scheduler.plan import Infeasible, Plan, Swap
from indb_tensile.scheduler.planner import (
    JobPlan,
    Workload,
    foresee,
    least_bytes,
    plan_jobs,
    renew,
    schedules_of,
    together_bytes,
)
from indb_tensile.scheduler.policies import POLICIES
from indb_tensile.scheduler.search.local_search import Effort
from indb_tensile.scheduler.timing.schedule import Gate, Schedule
from indb_tensile.scheduler.timing.simulate import Compute
from tests.scheduler.strategies import latencies, links, several_workloads

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


@settings(max_examples=30, deadline=None)
@given(several_workloads(), links(), st.floats(0, 1), st.data())
def test_improved_plans_are_lawful_and_no_slower_than_those_that_are_followed(
    jobs: tuple[Workload, ...], link: Link, fraction: float, data: st.DataObject
) -> None:
    floors, bars = _floors(jobs), _bars(jobs)
    budget = floors + int((bars - floors) * fraction)
    followed = plan_jobs(jobs, budget_bytes=budget, link=link)
    assert not isinstance(followed, Infeasible)
    moved = tuple(replace(w, latency_ns=tuple(data.draw(latencies(g)) for g in w.graphs)) for w in jobs)
    improved = renew(moved, followed, budget_bytes=budget, link=link, effort=Effort.FULL)
    assert improved is not None
    assert improved == renew(moved, followed, budget_bytes=budget, link=link, effort=Effort.FULL)
    pairs = [list(zip(w.graphs, p.plans, strict=True)) for w, p in zip(moved, improved, strict=True)]
    assert check.faults_together(pairs, budget_bytes=budget) == ()
    expected = foresee(moved, followed, link=link)
    assert _slowdown(moved, improved) <= _slowdown(moved, expected)


def _slowdown(jobs: tuple[Workload, ...], plans: tuple[JobPlan, ...]) -> float:
    return sum(p.forecast.iteration_ns / sum(w.latency_ns[0]) for w, p in zip(jobs, plans, strict=True))


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
    limited = (replace(jobs[0], limit_bytes=limit), *jobs[1:])
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
    workload = replace(_idle_while_working(), latency_ns=((10_000,) * 7,))
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
    first = replace(_idle_while_working(), latency_ns=((300_000,) * 7,))
    second = replace(first, job=JobId(2))
    plain = _planned((first, second), budget=350)
    spared = _planned((replace(first, max_swapping_rate=0.0), second), budget=350)
    assert [len(p.plans[0].swaps) for p in plain] == [1, 0]
    assert [len(p.plans[0].swaps) for p in spared] == [0, 1]


def test_no_jobs_need_no_plans() -> None:
    assert plan_jobs((), budget_bytes=0, link=SLOW) == ()
    assert plan_jobs((), budget_bytes=0, link=SLOW, phases=True) == ()


@settings(max_examples=60, deadline=None)
@given(
    several_workloads(), links(), st.floats(0, 1.1), st.sampled_from(sorted(POLICIES)), st.sampled_from(list(Compute))
)
def test_in_phases_the_budget_holds_for_any_timing_and_no_work_takes_longer(
    jobs: tuple[Workload, ...], link: Link, fraction: float, policy: str, compute: Compute
) -> None:
    least, bars = max(least_bytes(w) for w in jobs), _bars(jobs)
    budget = least + int((bars - least) * fraction)
    planned = plan_jobs(jobs, budget_bytes=budget, link=link, policy=policy, phases=True, compute=compute)
    apart = plan_jobs(jobs, budget_bytes=budget, link=link, policy=policy, compute=compute)
    if isinstance(planned, Infeasible):
        assert isinstance(apart, Infeasible), "plans without phases are among the candidates"
        assert planned.shortfall_bytes > 0
        return
    assert planned == plan_jobs(jobs, budget_bytes=budget, link=link, policy=policy, phases=True, compute=compute)
    placed = [schedule.among([p.job for p in planned]) for schedule in schedules_of(planned)]
    pairs = [list(zip(w.graphs, p.plans, strict=True)) for w, p in zip(jobs, planned, strict=True)]
    assert check.faults_together(pairs, budget_bytes=budget, schedules=placed) == ()
    assert check.together_bytes(pairs, placed) <= together_bytes(planned) <= budget
    if not isinstance(apart, Infeasible):
        assert _work(jobs, planned) >= _work(jobs, apart) * (1 - 1e-9)


def test_where_phases_are_not_asked_for_no_plan_has_any() -> None:
    planned = _planned((_idle_while_working(), _second()), budget=260)
    assert [p.schedule for p in planned] == [None, None]


def test_jobs_that_need_not_wait_do_not() -> None:
    planned = _phased((_idle_while_working(), _second()), budget=380)
    assert [(p.schedule, p.swaps) for p in planned] == [(None, 0), (None, 0)]


def test_waiting_in_turns_costs_less_than_swapping_over_a_slow_link() -> None:
    """190 bytes while `work` lives and 90 before and after: 280 together, where operators last a tenth of a copy."""
    jobs = tuple(replace(w, latency_ns=((10_000,) * 7,)) for w in (_idle_while_working(), _second()))
    apart = plan_jobs(jobs, budget_bytes=280, link=SLOW, compute=Compute.TURNS)
    assert not isinstance(apart, Infeasible)
    assert max(p.forecast.iteration_ns for p in apart) > 140_000
    phased = _phased(jobs, budget=280, compute=Compute.TURNS)
    assert [p.forecast.iteration_ns for p in phased] == [140_000, 140_000]
    assert [(p.swaps, p.peak_bytes) for p in phased] == [(0, 190), (0, 190)]
    gate = {"iteration": 0, "operator": 2, "after_operator": 4}
    assert phased[0].schedule == Schedule(
        jobs=(1, 2),
        iterations=(1, 1),
        gates=(
            Gate(job=0, after_job=1, after_iteration=-1, **gate),
            Gate(job=1, after_job=0, after_iteration=0, **gate),
        ),
        budget_bytes=280,
    )
    assert phased[0].schedule == phased[1].schedule
    assert together_bytes(phased) == 280 < sum(p.peak_bytes for p in phased)


def test_phases_and_swaps_together_reach_what_neither_does_alone() -> None:
    """The largest operators need 130 each, 260 together; unplanned jobs in phases need 280."""
    jobs = (_idle_while_working(), _second())
    refused = plan_jobs(jobs, budget_bytes=230, link=SLOW)
    assert isinstance(refused, Infeasible)
    assert refused.needed_bytes == 260
    unplanned = plan_jobs(jobs, budget_bytes=230, link=SLOW, policy="liveness", phases=True)
    assert isinstance(unplanned, Infeasible)
    assert unplanned.needed_bytes == 280
    phased = _phased(jobs, budget=230)
    assert all(p.swaps for p in phased)
    assert together_bytes(phased) <= 230


def test_zico_takes_turns_by_iteration_where_nothing_fits_beside_an_iteration() -> None:
    block = Tensor(id=TensorId(0), name="block", size_bytes=40, role=Role.ACTIVATION)
    graph = StepGraph(tensors=(block,), operators=(_operator("make", (), (block.id,)),))
    jobs = tuple(Workload(job=JobId(job), graphs=(graph,), latency_ns=((1000,),)) for job in (4, 7))
    assert isinstance(plan_jobs(jobs, budget_bytes=79, link=SLOW, policy="zico"), Infeasible)
    phased = _phased(jobs, budget=79, policy="zico")
    assert [p.forecast.iteration_ns for p in phased] == [2000, 2000]
    assert [p.forecast.gate_ns for p in phased] == [1000, 1000]
    gate = {"iteration": 0, "operator": 0, "after_operator": 0}
    schedule = Schedule(
        jobs=(4, 7),
        iterations=(1, 1),
        gates=(
            Gate(job=0, after_job=1, after_iteration=-1, **gate),
            Gate(job=1, after_job=0, after_iteration=0, **gate),
        ),
        budget_bytes=79,
    )
    assert [p.schedule for p in phased] == [schedule, schedule]
    refused = plan_jobs(jobs, budget_bytes=39, link=SLOW, policy="zico", phases=True)
    assert isinstance(refused, Infeasible)
    assert (refused.needed_bytes, refused.shortfall_bytes) == (40, 1)


def test_what_a_jobs_other_graphs_need_counts_all_the_time() -> None:
    """A validation step of 30 bytes may run beside the other job's 40: 70, and not 50 as for training alone."""
    sizes = {"a": 40, "b": 30}
    tensors = [Tensor(id=TensorId(0), name=n, size_bytes=size, role=Role.ACTIVATION) for n, size in sizes.items()]
    make = (_operator("make", (), (TensorId(0),)),)
    graphs = tuple(StepGraph(tensors=(tensor,), operators=make) for tensor in tensors)
    jobs = tuple(Workload(job=JobId(job), graphs=graphs, latency_ns=((1000,), (1000,))) for job in (1, 2))
    assert together_bytes(_phased(jobs, budget=70, policy="liveness")) == 70
    refused = plan_jobs(jobs, budget_bytes=69, link=SLOW, policy="liveness", phases=True)
    assert isinstance(refused, Infeasible)
    assert refused.needed_bytes == 70


def test_in_phases_too_a_job_keeps_to_its_own_limit() -> None:
    limited = replace(_idle_while_working(), limit_bytes=150)
    phased = _phased((limited, _second()), budget=300)
    assert phased[0].peak_bytes <= 150
    refused = plan_jobs((limited, _second()), budget_bytes=300, link=SLOW, policy="liveness", phases=True)
    assert isinstance(refused, Infeasible)
    assert (refused.needed_bytes, refused.budget_bytes) == (190, 150)


def test_in_phases_a_budget_below_the_largest_operator_is_infeasible() -> None:
    refused = plan_jobs((_idle_while_working(), _second()), budget_bytes=129, link=SLOW, phases=True)
    assert isinstance(refused, Infeasible)
    assert (refused.needed_bytes, refused.reason) == (130, "the largest operator alone needs 130 bytes")


def test_what_is_foreseen_of_plans_in_phases_is_simulated_with_their_gates() -> None:
    """`work` lives for 900 of 1,300 us, and only one may at a time."""
    latency_ns = tuple(ns * 1000 for ns in (100, 100, 300, 300, 300, 100, 100))
    jobs = tuple(replace(w, latency_ns=(latency_ns,)) for w in (_idle_while_working(), _second()))
    phased = _phased(jobs, budget=280, policy="liveness")
    assert [(p.forecast.iteration_ns, p.forecast.gate_ns) for p in phased] == [(1_800_000, 500_000)] * 2
    assert foresee(jobs, phased, link=SLOW) == phased
    even = tuple(replace(w, latency_ns=((100_000,) * 7,)) for w in jobs)
    assert [p.forecast.gate_ns for p in foresee(even, phased, link=SLOW)] == [0, 0]


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
        replace(_ring(), max_swapping_rate=1.5)
    other = _idle_while_working().graphs[0]
    with pytest.raises(InvariantError, match="persistent tensors are not those of graph 0"):
        Workload(job=JobId(1), graphs=(graph, other), latency_ns=((1,) * 4, (1,) * 7))


def _planned(jobs: tuple[Workload, ...], *, budget: int) -> tuple[JobPlan, ...]:
    planned = plan_jobs(jobs, budget_bytes=budget, link=SLOW)
    assert not isinstance(planned, Infeasible)
    return planned


def _phased(
    jobs: tuple[Workload, ...], *, budget: int, policy: str = "tensile+", compute: Compute = Compute.OVERLAP
) -> tuple[JobPlan, ...]:
    planned = plan_jobs(jobs, budget_bytes=budget, link=SLOW, policy=policy, phases=True, compute=compute)
    assert not isinstance(planned, Infeasible)
    return planned


def _work(jobs: tuple[Workload, ...], planned: tuple[JobPlan, ...]) -> float:
    """What the device gets done in a unit of time: nanoseconds of the captured operators, without uploads."""
    done = 0.0
    for workload, plan in zip(jobs, planned, strict=True):
        for operator, ns in zip(workload.graphs[0].operators, workload.latency_ns[0], strict=True):
            done += ns / plan.forecast.iteration_ns * (operator.stage is not Stage.UPLOAD)
    return done


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


def _second() -> Workload:
    return replace(_idle_while_working(), job=JobId(2))
