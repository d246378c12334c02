"""Check rounds that jobs execute: every tensor lies in memory that the job has, and the members keep to the budget in
any order and timing of their operators.
"""

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.bench.harness.networks.residual import residual
from indb_tensile.errors import InvariantError
from indb_tensile.job import JobId
from indb_tensile.scheduler.judges.gate_check import JobLoads, faults
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import liveness_peak
from indb_tensile.scheduler.memory.residency import intervals
from indb_tensile.scheduler.memory.tensor_placement import place_plan
from indb_tensile.scheduler.phases.round_part import RoundPart, Segment, Wait
from indb_tensile.scheduler.plan import Infeasible
from indb_tensile.scheduler.planner import JobPlan, plan_jobs, schedules_of
from indb_tensile.scheduler.policies.policy import Plans
from indb_tensile.scheduler.rewrite import effective
from indb_tensile.scheduler.round_plans import plan_round
from indb_tensile.scheduler.search.local_search import Effort
from indb_tensile.scheduler.timing.job_runs import Compute
from indb_tensile.scheduler.workload import Workload
from tests.nightly import some_examples
from tests.scheduler.strategies import several_workloads

REGION = 1024
LINK = Link(out_bytes_per_s=10**9, in_bytes_per_s=10**9)


@some_examples()
@given(several_workloads(), st.floats(0.2, 1), st.sampled_from(list(Compute)))
def test_rounds_keep_the_budget_in_whole_regions_for_any_timing(
    jobs: tuple[Workload, ...], fraction: float, compute: Compute
) -> None:
    present = _side_by_side(jobs)
    blocks = sum(_block_regions(workload, plan) for workload, plan in zip(jobs, present, strict=True))
    budget = int(blocks * fraction) * REGION
    planned = plan_round(
        jobs, _plans(present), budget_bytes=budget, region_bytes=REGION, link=LINK, compute=compute, least_gain=0
    )
    if planned is None:
        return
    assert planned == plan_round(
        jobs, _plans(present), budget_bytes=budget, region_bytes=REGION, link=LINK, compute=compute, least_gain=0
    )
    _check(jobs, planned, budget)


@pytest.mark.nightly
def test_four_networks_in_little_memory_are_faster_in_a_round() -> None:
    """On a device whose compute units the jobs share, waiting for another job's peak costs nothing."""
    graph = residual(120)
    (workload,) = (Workload(job=JobId(1), graphs=(graph,), latency_ns=((100_000,) * len(graph.operators),)),)
    jobs = tuple(Workload(job=JobId(n), graphs=(graph,), latency_ns=workload.latency_ns) for n in (1, 2, 3, 4))
    region, link = 1 << 20, Link(out_bytes_per_s=10**10, in_bytes_per_s=10**10)
    budget = int(1.3 * liveness_peak(graph)) // region * region
    present = plan_jobs(jobs, budget_bytes=budget, link=link, compute=Compute.TURNS, effort=Effort.QUICK)
    assert not isinstance(present, Infeasible)
    planned = plan_round(
        jobs,
        _plans(present),
        budget_bytes=budget,
        region_bytes=region,
        link=link,
        compute=Compute.TURNS,
        least_gain=1.1,
    )
    assert planned is not None
    _check(jobs, planned, budget, region)


def test_standing_still_at_boundaries_leaves_few_segments_and_decides_whether_a_round_pays() -> None:
    free, cheap = _round_of_two(boundary_ns=0), _round_of_two(boundary_ns=20_000)
    assert free is not None
    assert cheap is not None
    assert max(_segments(free)) > 8 == max(_segments(cheap))
    assert _round_of_two(boundary_ns=1_000_000) is None


def test_jobs_that_run_as_graphs_share_a_round_only_if_it_pays_to_run_operators_one_by_one() -> None:
    assert _round_of_two(graph_share=0.9) is not None
    assert _round_of_two(graph_share=0.5) is None


def _round_of_two(*, boundary_ns: int = 0, graph_share: float = 1.0) -> tuple[JobPlan, ...] | None:
    """Plan a round that has to do twice as much work as two jobs without it. It does 2.5 times as much if free."""
    graph, region, link = residual(30), 1 << 20, Link(out_bytes_per_s=10**10, in_bytes_per_s=10**10)
    latency_ns = ((100_000,) * len(graph.operators),)
    jobs = tuple(
        Workload(job=JobId(n), graphs=(graph,), latency_ns=latency_ns, graph_share=graph_share) for n in (1, 2)
    )
    budget = int(1.2 * liveness_peak(graph)) // region * region
    present = plan_jobs(jobs, budget_bytes=budget, link=link, compute=Compute.TURNS, effort=Effort.QUICK)
    assert not isinstance(present, Infeasible)
    planned = plan_round(
        jobs,
        _plans(present),
        budget_bytes=budget,
        region_bytes=region,
        link=link,
        compute=Compute.TURNS,
        least_gain=2.0,
        boundary_ns=boundary_ns,
    )
    if planned is not None:
        _check(jobs, planned, budget, region)
    return planned


def _segments(planned: Sequence[JobPlan]) -> list[int]:
    return [len(plan.part.segments) for plan in planned if plan.part is not None]


def test_no_round_is_planned_if_it_gains_too_little_or_everything_fits() -> None:
    jobs, region = tuple(_small_job(number) for number in (1, 2)), 1 << 20
    present = _side_by_side(jobs)
    everything = 2 * liveness_peak(jobs[0].graphs[0]) + 9 * region
    for budget, gain in ((everything, 0.0), (everything // 2, 1e6)):
        planned = plan_round(
            jobs, _plans(present), budget_bytes=budget, region_bytes=region, link=LINK, least_gain=gain
        )
        assert planned is None


def test_part_has_its_gates_by_iteration_and_knows_which_places_it_keeps_to_the_end() -> None:
    part = RoundPart(
        position=0,
        operators=10,
        iterations=2,
        base_bytes=REGION,
        region_bytes=REGION,
        segments=(Segment(operator=0, taken=(0, 1)), Segment(operator=4, returned=(1,), taken=(2,))),
        waits=(Wait(iteration=1, operator=4, position=1, boundary=-3, each=7),),
    )
    assert (part.places, part.kept) == (3, (0, 2))
    assert part.before(0, 4) == part.before(1, 4) == part.before(3, 0) == ()
    assert part.before(3, 4) == ((1, 4),)
    assert part.before(7, 4) == ((1, 18),)


@pytest.mark.parametrize(
    "segments",
    [
        (),
        (Segment(operator=1),),
        (Segment(operator=0), Segment(operator=10)),
        (Segment(operator=0, returned=(0,)),),
        (Segment(operator=0, taken=(0,)), Segment(operator=2, taken=(0,))),
    ],
)
def test_part_that_takes_or_gives_places_twice_is_refused(segments: tuple[Segment, ...]) -> None:
    with pytest.raises(InvariantError, match="part 0 of a round"):
        RoundPart(position=0, operators=10, iterations=1, base_bytes=REGION, region_bytes=REGION, segments=segments)


def _check(jobs: Sequence[Workload], planned: Sequence[JobPlan], budget: int, region: int = REGION) -> None:
    (schedule,) = schedules_of(planned)
    loads = []
    for position, (workload, plan) in enumerate(zip(jobs, planned, strict=True)):
        part = plan.part
        assert part is not None
        assert (part.position, part.base_bytes % region) == (position, 0)
        assert part.base_bytes + part.places * region <= min(budget, workload.limit_bytes or budget)
        held = list(_held(part))
        _check_memory(workload, plan, part, held)
        loads.append(_loads(part, held))
    positions = schedule.among([plan.job for plan in planned])
    assert faults(loads, positions) == ()
    assert schedule.budget_bytes <= budget
    counts = [len(load.running_bytes) for load in loads]
    for plan in planned:
        assert plan.part is not None
        waits = {(w.iteration, w.operator, w.position, w.boundary, w.each) for w in plan.part.waits}
        assert waits == {
            (
                gate.iteration,
                gate.operator,
                gate.after_job,
                gate.after_iteration * counts[gate.after_job] + gate.after_operator + 1,
                schedule.iterations[gate.after_job] * counts[gate.after_job],
            )
            for gate in positions.gates
            if gate.job == plan.part.position
        }


def _held(part: RoundPart) -> Iterator[frozenset[int]]:
    """Yield the places that the job has at each operator."""
    held: frozenset[int] = frozenset()
    segments = {segment.operator: segment for segment in part.segments}
    for operator in range(part.operators):
        if operator in segments:
            held = (held - set(segments[operator].returned)) | set(segments[operator].taken)
        yield held


def _check_memory(workload: Workload, plan: JobPlan, part: RoundPart, held: Sequence[frozenset[int]]) -> None:
    """Check that every tensor lies in the base or in places that the job has, and between iterations in the base."""
    region = part.region_bytes
    for number, (graph, own) in enumerate(zip(workload.graphs, plan.plans, strict=True)):
        placed = place_plan(graph, own, region_bytes=region)
        if number:
            assert placed.size_bytes <= part.base_bytes
            continue
        persistent = {tensor.id for tensor in effective(graph, own).tensors if tensor.persistent}
        for interval, offset in zip(intervals(graph, own), placed.offsets, strict=True):
            places = set(
                range(
                    max(0, offset - part.base_bytes) // region,
                    -(-max(0, offset + interval.size_bytes - part.base_bytes) // region),
                )
            )
            for operator in range(interval.first, interval.stop):
                assert places <= held[operator % len(held)]
            if interval.tensor in persistent and (interval.first == 0 or interval.stop > len(held)):
                assert not places


def _loads(part: RoundPart, held: Sequence[frozenset[int]]) -> JobLoads:
    """Return the job's loads. While it waits it has the places of both segments: those that it does not give."""

    def load(places: frozenset[int]) -> int:
        return part.base_bytes + len(places) * part.region_bytes

    waiting = [load(before & after) for before, after in zip((frozenset[int](), *held), held, strict=False)]
    return JobLoads(running_bytes=tuple(map(load, held)), waiting_bytes=tuple(waiting))


def _side_by_side(jobs: Sequence[Workload]) -> tuple[JobPlan, ...]:
    budget = sum(max(map(liveness_peak, workload.graphs)) for workload in jobs)
    planned = plan_jobs(jobs, budget_bytes=budget, link=LINK)
    if isinstance(planned, Infeasible):  # a job's own limit is below what it needs
        planned = plan_jobs(
            tuple(Workload(job=w.job, graphs=w.graphs, latency_ns=w.latency_ns, limit_bytes=None) for w in jobs),
            budget_bytes=budget,
            link=LINK,
        )
    assert not isinstance(planned, Infeasible)
    return planned


def _block_regions(workload: Workload, plan: JobPlan) -> int:
    sizes = (
        place_plan(g, p, region_bytes=REGION).size_bytes for g, p in zip(workload.graphs, plan.plans, strict=True)
    )
    return -(-max(sizes) // REGION)


def _small_job(number: int) -> Workload:
    graph = residual(30)
    return Workload(job=JobId(number), graphs=(graph,), latency_ns=((1000,) * len(graph.operators),))


def _plans(planned: Sequence[JobPlan]) -> Plans:
    return tuple(plan.plans for plan in planned)
