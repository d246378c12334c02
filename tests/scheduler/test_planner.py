"""Check the planner as a whole: any jobs, budget and policy. The independent judge `judges/check.py` checks the
plans.
"""

from dataclasses import replace

import pytest
from hypothesis import given
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
from indb_tensile.scheduler.timing.job_runs import Compute
from indb_tensile.scheduler.timing.schedule import Gate, Schedule
from tests.nightly import some_examples
from tests.scheduler.strategies import latencies, links, several_workloads

SLOW = Link(out_bytes_per_s=1_000_000, in_bytes_per_s=1_000_000)  # 1 us a byte


@some_examples()
@given(
    several_workloads(exchanges=True), links(), st.floats(0, 1.2), st.sampled_from(sorted(POLICIES)), st.booleans()
)
def test_every_policy_gives_valid_plans_and_equal_inputs_give_equal_plans(
    jobs: tuple[Workload, ...], link: Link, fraction: float, policy: str, rewrites: bool
) -> None:
    least, most = _least_bytes_of(jobs), _peaks_without_plans(jobs)
    budget = least + int((most - least) * fraction)
    planned = plan_jobs(jobs, budget_bytes=budget, link=link, policy=policy, rewrites=rewrites)
    assert planned == plan_jobs(jobs, budget_bytes=budget, link=link, policy=policy, rewrites=rewrites)
    if isinstance(planned, Infeasible):
        assert policy != "tensile+", "tensile+ meets every budget from the floor up"
        assert planned.shortfall_bytes > 0
        return
    pairs = [list(zip(w.graphs, p.plans, strict=True)) for w, p in zip(jobs, planned, strict=True)]
    assert check.faults_together(pairs, budget_bytes=budget) == ()
    assert rewrites or all(not plan.executions for p in planned for plan in p.plans)
    for workload, job_plan in zip(jobs, planned, strict=True):
        _assert_figures_match_the_judge(workload, job_plan)


@some_examples()
@given(several_workloads(), links(), st.floats(0, 1), st.data())
def test_improved_plans_are_valid_and_no_slower_than_the_current_plans(
    jobs: tuple[Workload, ...], link: Link, fraction: float, data: st.DataObject
) -> None:
    least, most = _least_bytes_of(jobs), _peaks_without_plans(jobs)
    budget = least + int((most - least) * fraction)
    current = plan_jobs(jobs, budget_bytes=budget, link=link)
    assert not isinstance(current, Infeasible)
    drifted = tuple(replace(w, latency_ns=tuple(data.draw(latencies(g)) for g in w.graphs)) for w in jobs)
    improved = renew(drifted, current, budget_bytes=budget, link=link, effort=Effort.FULL)
    assert improved is not None
    assert improved == renew(drifted, current, budget_bytes=budget, link=link, effort=Effort.FULL)
    pairs = [list(zip(w.graphs, p.plans, strict=True)) for w, p in zip(drifted, improved, strict=True)]
    assert check.faults_together(pairs, budget_bytes=budget) == ()
    expected = foresee(drifted, current, link=link)
    assert _slowdown(drifted, improved) <= _slowdown(drifted, expected)


def _slowdown(jobs: tuple[Workload, ...], plans: tuple[JobPlan, ...]) -> float:
    return sum(p.forecast.iteration_ns / w.step_ns for w, p in zip(jobs, plans, strict=True))


def _assert_figures_match_the_judge(workload: Workload, job_plan: JobPlan) -> None:
    """Check that the plan's figures are those of the independent judge."""
    peaks = [check.peak(g, p) for g, p in zip(workload.graphs, job_plan.plans, strict=True)]
    assert [peak(g, p) for g, p in zip(workload.graphs, job_plan.plans, strict=True)] == peaks
    assert job_plan.peak_bytes == max(peaks)
    assert job_plan.forecast.peak_bytes == peaks[0]
    assert job_plan.floor_bytes <= job_plan.peak_bytes
    assert job_plan.floor_bytes == least_bytes(workload) <= job_plan.liveness_peak_bytes
    assert job_plan.liveness_peak_bytes <= job_plan.vanilla_peak_bytes
    assert job_plan.swaps == len(job_plan.plans[0].swaps)


@some_examples()
@given(several_workloads(), links())
def test_budget_below_the_floors_is_infeasible_and_states_the_shortfall(
    jobs: tuple[Workload, ...], link: Link
) -> None:
    needed = _least_bytes_of(jobs)
    refusal = plan_jobs(jobs, budget_bytes=max(0, needed - 3), link=link)
    if needed == 0:
        assert not isinstance(refusal, Infeasible)
    else:
        assert isinstance(refusal, Infeasible)
        assert refusal.needed_bytes == needed
        assert refusal.shortfall_bytes == min(3, needed)


@some_examples()
@given(several_workloads(), links(), st.data())
def test_jobs_own_limit_holds_for_every_budget(jobs: tuple[Workload, ...], link: Link, data: st.DataObject) -> None:
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


def test_sufficient_budget_needs_no_swaps() -> None:
    planned = _plan((_job_of_updates(),), budget=1000)
    assert planned[0].plans == (Plan(policy="tensile+"),)
    assert planned[0].forecast.iteration_ns == planned[0].forecast.compute_ns == 4000


def test_largest_tensor_at_the_peak_is_swapped_without_stalls() -> None:
    """Operators take 100 us. `big` (60 bytes, 60 us a copy) is idle from operator 0 to operator 6. It leaves as early
    and returns as late as possible.
    """
    planned = _plan((_job_with_idle_parameter(),), budget=131)
    expected = Swap(
        tensor=TensorId(1), out_after=OpIndex(0), free_at=OpIndex(2), in_at=OpIndex(5), needed_by=OpIndex(6)
    )
    assert planned[0].plans == (Plan(policy="tensile+", swaps=(expected,)),)
    assert planned[0].liveness_peak_bytes == 190
    assert planned[0].peak_bytes == 130
    forecast = planned[0].forecast
    assert (forecast.stall_out_ns, forecast.stall_in_ns, forecast.iteration_ns) == (0, 0, 700_000)


def test_budget_near_the_floor_costs_stalls() -> None:
    workload = replace(_job_with_idle_parameter(), latency_ns=((10_000,) * 7,))
    unplanned_peak = _plan((workload,), budget=190)[0].peak_bytes
    planned = _plan((workload,), budget=130)[0]
    assert unplanned_peak == 190
    assert planned.peak_bytes == 130
    assert planned.forecast.stall_out_ns + planned.forecast.stall_in_ns > 0


def test_tensor_that_no_operator_accesses_stays_on_the_host() -> None:
    step = _job_with_idle_parameter().graphs[0]
    validation = StepGraph(tensors=step.tensors, operators=(_operator("eval", (TensorId(1),), (TensorId(2),)),))
    workload = Workload(job=JobId(1), graphs=(step, validation), latency_ns=((100_000,) * 7, (100_000,)))
    planned = _plan((workload,), budget=160)[0]
    assert planned.plans[1] == Plan(policy="tensile+", away=frozenset({TensorId(0)}))
    assert planned.peak_bytes == 160


def test_job_with_the_lower_swapping_rate_is_swapped_last() -> None:
    first = replace(_job_with_idle_parameter(), latency_ns=((300_000,) * 7,))
    second = replace(first, job=JobId(2))
    plain = _plan((first, second), budget=350)
    spared = _plan((replace(first, max_swapping_rate=0.0), second), budget=350)
    assert [len(p.plans[0].swaps) for p in plain] == [1, 0]
    assert [len(p.plans[0].swaps) for p in spared] == [0, 1]


def test_no_jobs_need_no_plans() -> None:
    assert plan_jobs((), budget_bytes=0, link=SLOW) == ()
    assert plan_jobs((), budget_bytes=0, link=SLOW, phases=True) == ()


@some_examples()
@given(
    several_workloads(), links(), st.floats(0, 1.1), st.sampled_from(sorted(POLICIES)), st.sampled_from(list(Compute))
)
def test_phased_plans_keep_the_budget_for_any_timing_and_lose_no_throughput(
    jobs: tuple[Workload, ...], link: Link, fraction: float, policy: str, compute: Compute
) -> None:
    least, most = max(least_bytes(w) for w in jobs), _peaks_without_plans(jobs)
    budget = least + int((most - least) * fraction)
    planned = plan_jobs(jobs, budget_bytes=budget, link=link, policy=policy, phases=True, compute=compute)
    unphased = plan_jobs(jobs, budget_bytes=budget, link=link, policy=policy, compute=compute)
    if isinstance(planned, Infeasible):
        assert isinstance(unphased, Infeasible), "plans without phases are among the candidates"
        assert planned.shortfall_bytes > 0
        return
    assert planned == plan_jobs(jobs, budget_bytes=budget, link=link, policy=policy, phases=True, compute=compute)
    placed = [schedule.among([p.job for p in planned]) for schedule in schedules_of(planned)]
    pairs = [list(zip(w.graphs, p.plans, strict=True)) for w, p in zip(jobs, planned, strict=True)]
    assert check.faults_together(pairs, budget_bytes=budget, schedules=placed) == ()
    assert check.together_bytes(pairs, placed) <= together_bytes(planned) <= budget
    if not isinstance(unphased, Infeasible):
        assert _throughput(jobs, planned) >= _throughput(jobs, unphased) * (1 - 1e-9)


def test_plans_have_no_schedule_unless_phases_are_requested() -> None:
    planned = _plan((_job_with_idle_parameter(), _second_job()), budget=260)
    assert [p.schedule for p in planned] == [None, None]


def test_jobs_that_fit_together_get_no_gates() -> None:
    planned = _plan_in_phases((_job_with_idle_parameter(), _second_job()), budget=380)
    assert [(p.schedule, p.swaps) for p in planned] == [(None, 0), (None, 0)]


def test_phases_cost_less_than_swapping_over_a_slow_link() -> None:
    """Each job holds 190 bytes while `work` lives and 90 bytes before and after, so 280 bytes hold both in phases. An
    operator takes a sixth of a copy of `big`, so swaps stall.
    """
    jobs = tuple(replace(w, latency_ns=((10_000,) * 7,)) for w in (_job_with_idle_parameter(), _second_job()))
    unphased = plan_jobs(jobs, budget_bytes=280, link=SLOW, compute=Compute.TURNS)
    assert not isinstance(unphased, Infeasible)
    assert max(p.forecast.iteration_ns for p in unphased) > 140_000
    phased = _plan_in_phases(jobs, budget=280, compute=Compute.TURNS)
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


def test_phases_with_swaps_meet_a_budget_that_neither_meets_alone() -> None:
    """The largest operators need 130 bytes each, so swaps alone need 260. Phases of jobs without swaps need 280."""
    jobs = (_job_with_idle_parameter(), _second_job())
    refused = plan_jobs(jobs, budget_bytes=230, link=SLOW)
    assert isinstance(refused, Infeasible)
    assert refused.needed_bytes == 260
    unplanned = plan_jobs(jobs, budget_bytes=230, link=SLOW, policy="liveness", phases=True)
    assert isinstance(unplanned, Infeasible)
    assert unplanned.needed_bytes == 280
    phased = _plan_in_phases(jobs, budget=230)
    assert all(p.swaps for p in phased)
    assert together_bytes(phased) <= 230


def test_zico_alternates_iterations_if_nothing_fits_beside_an_iteration() -> None:
    block = Tensor(id=TensorId(0), name="block", size_bytes=40, role=Role.ACTIVATION)
    graph = StepGraph(tensors=(block,), operators=(_operator("make", (), (block.id,)),))
    jobs = tuple(Workload(job=JobId(job), graphs=(graph,), latency_ns=((1000,),)) for job in (4, 7))
    assert isinstance(plan_jobs(jobs, budget_bytes=79, link=SLOW, policy="zico"), Infeasible)
    phased = _plan_in_phases(jobs, budget=79, policy="zico")
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


def test_memory_of_a_jobs_other_graphs_always_counts() -> None:
    """A validation step of 30 bytes may run at any time beside the other job's 40 bytes, so 70 bytes are needed.
    Alternating training steps alone need less.
    """
    sizes = {"a": 40, "b": 30}
    tensors = [Tensor(id=TensorId(0), name=n, size_bytes=size, role=Role.ACTIVATION) for n, size in sizes.items()]
    make = (_operator("make", (), (TensorId(0),)),)
    graphs = tuple(StepGraph(tensors=(tensor,), operators=make) for tensor in tensors)
    jobs = tuple(Workload(job=JobId(job), graphs=graphs, latency_ns=((1000,), (1000,))) for job in (1, 2))
    assert together_bytes(_plan_in_phases(jobs, budget=70, policy="liveness")) == 70
    refused = plan_jobs(jobs, budget_bytes=69, link=SLOW, policy="liveness", phases=True)
    assert isinstance(refused, Infeasible)
    assert refused.needed_bytes == 70


def test_phased_job_keeps_to_its_own_limit() -> None:
    limited = replace(_job_with_idle_parameter(), limit_bytes=150)
    phased = _plan_in_phases((limited, _second_job()), budget=300)
    assert phased[0].peak_bytes <= 150
    refused = plan_jobs((limited, _second_job()), budget_bytes=300, link=SLOW, policy="liveness", phases=True)
    assert isinstance(refused, Infeasible)
    assert (refused.needed_bytes, refused.budget_bytes) == (190, 150)


def test_phased_budget_below_the_largest_operator_is_infeasible() -> None:
    refused = plan_jobs((_job_with_idle_parameter(), _second_job()), budget_bytes=129, link=SLOW, phases=True)
    assert isinstance(refused, Infeasible)
    assert (refused.needed_bytes, refused.reason) == (130, "the largest operator alone needs 130 bytes")


def test_forecast_of_phased_plans_includes_their_gates() -> None:
    """`work` lives for 900 of 1,300 us, and only one job may hold its `work` at a time."""
    latency_ns = tuple(ns * 1000 for ns in (100, 100, 300, 300, 300, 100, 100))
    jobs = tuple(replace(w, latency_ns=(latency_ns,)) for w in (_job_with_idle_parameter(), _second_job()))
    phased = _plan_in_phases(jobs, budget=280, policy="liveness")
    assert [(p.forecast.iteration_ns, p.forecast.gate_ns) for p in phased] == [(1_800_000, 500_000)] * 2
    assert foresee(jobs, phased, link=SLOW) == phased
    even = tuple(replace(w, latency_ns=((100_000,) * 7,)) for w in jobs)
    assert [p.forecast.gate_ns for p in foresee(even, phased, link=SLOW)] == [0, 0]


def test_wrong_requests_are_refused_with_a_hint() -> None:
    with pytest.raises(MissingError, match="no policy 'magic'") as caught:
        plan_jobs((), budget_bytes=0, link=SLOW, policy="magic")
    assert ", ".join(sorted(POLICIES)) in caught.value.hint
    with pytest.raises(InvariantError, match="budget_bytes is -1"):
        plan_jobs((), budget_bytes=-1, link=SLOW)
    with pytest.raises(InvariantError, match="planned twice"):
        plan_jobs((_job_of_updates(), _job_of_updates()), budget_bytes=10**6, link=SLOW)


def test_inconsistent_workload_is_refused() -> None:
    graph = _job_of_updates().graphs[0]
    with pytest.raises(InvariantError, match="3 latencies for 4 operators"):
        Workload(job=JobId(1), graphs=(graph,), latency_ns=((1, 1, 1),))
    with pytest.raises(InvariantError, match="not be negative nor all 0"):
        Workload(job=JobId(1), graphs=(graph,), latency_ns=((0, 0, 0, 0),))
    with pytest.raises(InvariantError, match="0 latency rows for 1 graphs"):
        Workload(job=JobId(1), graphs=(graph,), latency_ns=())
    with pytest.raises(InvariantError, match=r"max_swapping_rate is 1\.5"):
        replace(_job_of_updates(), max_swapping_rate=1.5)
    other = _job_with_idle_parameter().graphs[0]
    with pytest.raises(InvariantError, match="persistent tensors are not those of graph 0"):
        Workload(job=JobId(1), graphs=(graph, other), latency_ns=((1,) * 4, (1,) * 7))


def _plan(jobs: tuple[Workload, ...], *, budget: int) -> tuple[JobPlan, ...]:
    planned = plan_jobs(jobs, budget_bytes=budget, link=SLOW)
    assert not isinstance(planned, Infeasible)
    return planned


def _plan_in_phases(
    jobs: tuple[Workload, ...], *, budget: int, policy: str = "tensile+", compute: Compute = Compute.OVERLAP
) -> tuple[JobPlan, ...]:
    planned = plan_jobs(jobs, budget_bytes=budget, link=SLOW, policy=policy, phases=True, compute=compute)
    assert not isinstance(planned, Infeasible)
    return planned


def _throughput(jobs: tuple[Workload, ...], planned: tuple[JobPlan, ...]) -> float:
    """Return how much work the device does in a unit of time: nanoseconds of captured operators, without uploads."""
    work = 0.0
    for workload, plan in zip(jobs, planned, strict=True):
        for operator, ns in zip(workload.graphs[0].operators, workload.latency_ns[0], strict=True):
            work += ns / plan.forecast.iteration_ns * (operator.stage is not Stage.UPLOAD)
    return work


def _least_bytes_of(jobs: tuple[Workload, ...]) -> int:
    return sum(least_bytes(w) for w in jobs)


def _peaks_without_plans(jobs: tuple[Workload, ...]) -> int:
    return sum(max(liveness_peak(g) for g in w.graphs) for w in jobs)


def _operator(name: str, reads: tuple[TensorId, ...], writes: tuple[TensorId, ...]) -> Operator:
    return Operator(name=name, signature=name, stage=Stage.FORWARD, reads=reads, writes=writes)


def _job_of_updates() -> Workload:
    """Return a job of four operators of 1 us. Each updates one of two parameters."""
    tensors = tuple(Tensor(id=TensorId(i), name=f"p{i}", size_bytes=10, role=Role.PARAMETER) for i in range(2))
    operators = tuple(_operator(f"op{k}", (TensorId(k % 2),), (TensorId(k % 2),)) for k in range(4))
    return Workload(
        job=JobId(1), graphs=(StepGraph(tensors=tensors, operators=operators),), latency_ns=((1000,) * 4,)
    )


def _job_with_idle_parameter() -> Workload:
    """Return a job whose first and last operators use `big`. An activation of 100 bytes lives in between."""
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


def _second_job() -> Workload:
    return replace(_job_with_idle_parameter(), job=JobId(2))
