"""Check simulated jobs at gates: by hand, and with operators and copies that take other times than planned."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.errors import InvariantError
from indb_tensile.scheduler.graph import Operator, Role, Stage, StepGraph, Tensor, TensorId
from indb_tensile.scheduler.judges import check
from indb_tensile.scheduler.judges.gate_check import JobLoads
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import LIVENESS, liveness_peak
from indb_tensile.scheduler.phased_plans import phased
from indb_tensile.scheduler.phases.load_cycle import cycle_of
from indb_tensile.scheduler.phases.phase_offsets import least_budget
from indb_tensile.scheduler.plan import Infeasible
from indb_tensile.scheduler.policies import POLICIES
from indb_tensile.scheduler.timing.job_runs import Compute, Event, EventKind, Forecast, JobRun
from indb_tensile.scheduler.timing.schedule import Gate, Schedule
from indb_tensile.scheduler.timing.simulate import simulate, timeline
from indb_tensile.scheduler.workload import Workload
from tests.nightly import some_examples
from tests.scheduler.strategies import links, workloads

LINK = Link(out_bytes_per_s=10**9, in_bytes_per_s=10**9)


def test_job_waits_at_its_gate_until_the_other_job_has_passed_the_operator() -> None:
    """The operators take 50, 200 and 50 ns. The second operators take turns: a round lasts 400 ns, of which each job
    waits 100.
    """
    gates = (_gate(0, 1, 1, -1, 1), _gate(1, 1, 0, 0, 1))
    schedule = Schedule(jobs=(0, 1), iterations=(1, 1), gates=gates, budget_bytes=50)
    runs = (_run_with_peak(), _run_with_peak())
    expected = Forecast(
        iteration_ns=400,
        compute_ns=300,
        stall_out_ns=0,
        stall_in_ns=0,
        upload_ns=0,
        peak_bytes=40,
        out_bytes=0,
        in_bytes=0,
        gate_ns=100,
    )
    assert simulate(runs, LINK, schedules=(schedule,)) == (expected, expected)
    waits = [e for e in timeline(runs, LINK, schedules=(schedule,)) if e.kind is EventKind.GATE]
    assert {(e.operator, e.end_ns - e.start_ns) for e in waits} == {(1, 100)}


def test_gates_cost_nothing_if_jobs_take_turns_anyway() -> None:
    gates = (_gate(0, 1, 1, -1, 1), _gate(1, 1, 0, 0, 1))
    schedule = Schedule(jobs=(0, 1), iterations=(1, 1), gates=gates, budget_bytes=50)
    forecasts = simulate((_run_with_peak(), _run_with_peak()), LINK, compute=Compute.TURNS, schedules=(schedule,))
    assert [f.iteration_ns for f in forecasts] == [600, 600]


def test_job_with_two_iterations_in_a_round_waits_in_one_of_them() -> None:
    """Job 1 has operators of 10 ns. Its second iteration of each round follows job 0's only iteration of 300 ns."""
    short = JobRun(graph=_run_with_peak().graph, plan=LIVENESS, latency_ns=(10, 10, 10))
    gates = (
        _gate(0, 0, 1, -1, 2),
        Gate(job=1, iteration=1, operator=0, after_job=0, after_iteration=0, after_operator=2),
    )
    schedule = Schedule(jobs=(0, 1), iterations=(1, 2), gates=gates, budget_bytes=80)
    long, twice = simulate((_run_with_peak(), short), LINK, schedules=(schedule,))
    assert (long.iteration_ns, long.gate_ns) == (330, 30)
    assert twice.iteration_ns == 165


def test_deadlock_is_an_invariant_error() -> None:
    gates = (_gate(0, 1, 1, 0, 1), _gate(1, 1, 0, 0, 1))
    schedule = Schedule(jobs=(0, 1), iterations=(1, 1), gates=gates, budget_bytes=50)
    with pytest.raises(InvariantError, match="all jobs wait at gates for each other: 0 for 1, 1 for 0"):
        simulate((_run_with_peak(), _run_with_peak()), LINK, schedules=(schedule,))


@some_examples()
@given(
    st.lists(workloads(graphs_each=1), min_size=2, max_size=3),
    links(),
    links(),
    st.floats(0, 0.95),
    st.sampled_from(("liveness", "tensile+", "zico", "capuchin")),
    st.sampled_from(list(Compute)),
    st.data(),
)
def test_budget_holds_for_any_operator_and_copy_times(
    jobs: list[Workload],
    link: Link,
    real_link: Link,
    fraction: float,
    policy: str,
    compute: Compute,
    data: st.DataObject,
) -> None:
    plans = POLICIES[policy].plan(
        jobs, budget_bytes=sum(liveness_peak(w.graphs[0]) for w in jobs) * 2 // 3, link=link
    )
    cycles = [cycle_of(w, job_plans, link) for w, job_plans in zip(jobs, plans, strict=True)]
    least, most = least_budget(cycles), sum(cycle.peak_bytes for cycle in cycles)
    budget = least + int((most - least) * fraction)
    phased_plans = phased(jobs, plans, budget_bytes=budget, link=link, compute=compute, policy=policy)
    assert not isinstance(phased_plans, Infeasible)
    runs = [
        JobRun(graph=w.graphs[0], plan=job_plans[0], latency_ns=data.draw(_other_latencies(w.latency_ns[0])))
        for w, job_plans in zip(jobs, plans, strict=True)
    ]
    steps = [check.steps([(run.graph, run.plan)]) for run in runs]
    events = timeline(runs, real_link, compute=compute, schedules=phased_plans.schedules)
    assert _most_bytes(events, steps) <= budget


def _other_latencies(latency_ns: tuple[int, ...]) -> st.SearchStrategy[tuple[int, ...]]:
    """Draw from a quarter to four times the expected latency, for each operator by itself."""
    quarters = st.tuples(*(st.integers(1, 16) for _ in latency_ns))
    return quarters.map(lambda q: tuple(1 + ns * quarter // 4 for ns, quarter in zip(latency_ns, q, strict=True)))


def _most_bytes(events: Sequence[Event], steps: Sequence[JobLoads]) -> int:
    """Return the most bytes that jobs hold at once in this timeline. In a timeline a job always runs, copies or
    waits.
    """
    changes = []
    for event in events:
        held_bytes = _held_bytes(event, steps[event.job])
        if held_bytes is not None:
            changes += [(event.start_ns, held_bytes), (event.end_ns, -held_bytes)]
    most = total = 0
    for _, change in sorted(changes):
        total += change
        most = max(most, total)
    return most


def _held_bytes(event: Event, loads: JobLoads) -> int | None:
    """Return the bytes that a job holds during this event; None for copies, which run beside other events."""
    if event.kind in (EventKind.SWAP_OUT, EventKind.SWAP_IN):
        return None
    if event.kind is EventKind.LATE_OUT:  # no memory is released yet
        return loads.running_bytes[event.operator - 1]
    if event.kind is EventKind.GATE:
        return loads.waiting_bytes[event.operator]
    return loads.running_bytes[event.operator]


def _run_with_peak() -> JobRun:
    """Return a run of loads 10, 40 and 10 bytes. The second operator has a workspace."""
    tensor = Tensor(id=TensorId(0), name="a", size_bytes=10, role=Role.ACTIVATION)
    uses: tuple[tuple[tuple[TensorId, ...], tuple[TensorId, ...], int], ...] = (
        ((), (tensor.id,), 0),
        ((tensor.id,), (), 30),
        ((tensor.id,), (), 0),
    )
    operators = tuple(
        Operator(
            name="op",
            signature="op",
            stage=Stage.FORWARD,
            reads=reads,
            writes=writes,
            workspace_bytes=workspace_bytes,
        )
        for reads, writes, workspace_bytes in uses
    )
    return JobRun(graph=StepGraph(tensors=(tensor,), operators=operators), plan=LIVENESS, latency_ns=(50, 200, 50))


def _gate(job: int, operator: int, after_job: int, after_iteration: int, after_operator: int) -> Gate:
    return Gate(
        job=job,
        iteration=0,
        operator=operator,
        after_job=after_job,
        after_iteration=after_iteration,
        after_operator=after_operator,
    )
