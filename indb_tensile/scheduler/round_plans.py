"""Plan a round: plans, gates and places with which jobs share the device in phases, if that is faster.

Admission asks for this in the background, after the jobs' ready plans were sent. Plans are made with little effort
for the list of budgets of phased_plans.py. For each, the jobs' loads in whole regions (phases/round_part.py) are
interleaved under the budget, and the simulator decides whether the device does more work than under the present
plans. Planning four ResNet-50s takes one to two seconds of a processor. With the usual effort it takes 4 to 12 s, for
rounds that are up to 4 % faster.

A job's other graphs (the last, smaller batch; the validation pass) run between iterations and pass no gates, so the
job keeps their memory all the time. They run seldom, so they get the largest plans that fit into what the job keeps
anyway, or else the smallest.

On a GPU the host takes part between two segments: it waits until the GPU has finished, exchanges regions and starts
the next segment. So no iteration of a round is launched as one CUDA graph, operators then take as long as one by one
(`Workload.graph_share`), and the GPU stands still for `boundary_ns` at each boundary. An iteration has so few
segments that this is at most `_MOST_IDLE` of it, and the rest counts in the comparison with the present plans.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.phased_plans import Phased, budget_steps, forecasts, work_of
from indb_tensile.scheduler.phases.interleaved_schedule import MOST_SEGMENTS, schedule_cycles
from indb_tensile.scheduler.phases.round_part import BlockUse, RoundPart, block_use
from indb_tensile.scheduler.plan import Infeasible, Plan
from indb_tensile.scheduler.plan_cache import PlanCache
from indb_tensile.scheduler.planner import JobPlan, job_plans
from indb_tensile.scheduler.policies import DEFAULT_POLICY, policy_named
from indb_tensile.scheduler.policies.policy import BudgetPlanner, PlanOptions, Plans
from indb_tensile.scheduler.search.local_search import CancellationCheck, Effort, never_cancel
from indb_tensile.scheduler.timing.job_runs import Compute, Forecast
from indb_tensile.scheduler.workload import Workload, least_bytes

# A round has to do this much more work than the present plans. Forecasts of times differ from measured times by a few
# per cent, and changing plans costs each job about an iteration.
LEAST_GAIN = 1.05
_SMALLER = 0.75  # ratio of one budget for a job's other graphs to the next higher one
_MOST_BUDGETS = 8  # most budgets that are tried for a job's other graphs
# Share of an iteration for which the device may stand still: about half of the least gain of a round.
_MOST_IDLE = 0.02
_FEWEST_SEGMENTS = 8  # with fewer segments, a job has nearly its peak all the time, and a round gains nothing


def plan_round(
    workloads: Sequence[Workload],
    present: Plans,
    *,
    budget_bytes: int,
    region_bytes: int,
    link: Link,
    policy: str = DEFAULT_POLICY,
    compute: Compute = Compute.OVERLAP,
    effort: Effort = Effort.QUICK,
    least_gain: float = LEAST_GAIN,
    boundary_ns: int = 0,
    cancellation_check: CancellationCheck = never_cancel,
    cache: PlanCache | None = None,
) -> tuple[JobPlan, ...] | None:
    """Return plans with parts in a round that is faster than the present plans by a factor of `least_gain`, or None.

    The bases of all jobs and the pool of the round together are at most the budget. The device stands still for
    `boundary_ns` between two segments of an iteration.
    """
    kept = PlanCache() if cache is None else cache
    budget_bytes -= budget_bytes % region_bytes
    options = PlanOptions(compute=compute, effort=effort, cancellation_check=cancellation_check)
    members = tuple(map(_one_by_one, workloads))
    planner = policy_named(policy).budget_planner(members, link=link, options=options, cache=kept)
    least_work = least_gain * work_of(workloads, forecasts(workloads, present, link, compute, cache=kept))
    best: tuple[float, Phased, tuple[RoundPart, ...]] | None = None
    for plans in _candidates(members, present, planner, budget_bytes, kept):
        cancellation_check()
        blocks = _blocks(members, plans, link, region_bytes, boundary_ns, kept)
        candidate = _interleaved(members, plans, blocks, budget_bytes, link, compute, kept)
        if candidate is None:
            continue
        work = work_of(workloads, _with_boundaries(*candidate, boundary_ns))
        if work > least_work and (best is None or work > best[0]):
            best = work, *candidate
    return None if best is None else job_plans(workloads, best[1], kept, best[2])


def _one_by_one(workload: Workload) -> Workload:
    """Return the workload with the latencies of the training step's operators when no graph holds them."""
    if workload.graph_share == 1.0:
        return workload
    first, *others = workload.latency_ns
    slower = tuple(round(latency_ns / workload.graph_share) for latency_ns in first)
    return replace(workload, latency_ns=(slower, *others), graph_share=1.0)


def _with_boundaries(candidate: Phased, parts: Sequence[RoundPart], boundary_ns: int) -> tuple[Forecast, ...]:
    """Return the forecasts with the time for which the device stands still at the boundaries of each job."""
    return tuple(
        replace(forecast, iteration_ns=forecast.iteration_ns + len(part.segments) * boundary_ns)
        for forecast, part in zip(candidate.forecasts, parts, strict=True)
    )


def _most_segments(workload: Workload, boundary_ns: int) -> int:
    if not boundary_ns:
        return MOST_SEGMENTS
    affordable = int(_MOST_IDLE * sum(workload.latency_ns[0])) // boundary_ns
    return max(_FEWEST_SEGMENTS, min(MOST_SEGMENTS, affordable))


def _candidates(
    workloads: Sequence[Workload], present: Plans, planner: BudgetPlanner, budget_bytes: int, cache: PlanCache
) -> Iterator[Plans]:
    """Yield different plans whose peaks together exceed the budget, with small plans for the jobs' other graphs."""
    larger = [planner.plans_in_phases(budget) for budget in budget_steps(workloads, budget_bytes, cache=cache)]
    others = [*larger, present]
    if any(len(workload.graphs) > 1 for workload in workloads):
        others += [planner.plans_in_phases(budget) for budget in _smaller_budgets(workloads, budget_bytes, cache)]
    seen: set[tuple[tuple[Plan, ...], ...]] = set()
    for number, plans in enumerate(larger):
        for other in others[number:]:
            mixed = tuple((own[0], *rest[1:]) for own, rest in zip(plans, other, strict=True))
            if mixed not in seen:
                seen.add(mixed)
                yield mixed


def _smaller_budgets(workloads: Sequence[Workload], budget_bytes: int, cache: PlanCache) -> Iterator[int]:
    least = sum(least_bytes(workload, cache) for workload in workloads)
    candidate_bytes = budget_bytes
    for _ in range(_MOST_BUDGETS):
        candidate_bytes = int(candidate_bytes * _SMALLER)
        if candidate_bytes <= least:
            break
        yield candidate_bytes
    yield least


def _blocks(
    workloads: Sequence[Workload],
    plans: Plans,
    link: Link,
    region_bytes: int,
    boundary_ns: int,
    cache: PlanCache,
) -> tuple[BlockUse, ...]:
    """Return each job's use of its block. Equal jobs' is computed once."""
    known: dict[tuple[object, ...], BlockUse] = {}
    blocks = []
    for workload, chosen in zip(workloads, plans, strict=True):
        key = (*map(id, workload.graphs), *map(id, chosen), workload.latency_ns)
        if key not in known:
            known[key] = block_use(
                workload,
                chosen,
                link,
                region_bytes=region_bytes,
                most_segments=_most_segments(workload, boundary_ns),
                cache=cache,
            )
        blocks.append(known[key])
    return tuple(blocks)


def _interleaved(
    workloads: Sequence[Workload],
    plans: Plans,
    blocks: Sequence[BlockUse],
    budget_bytes: int,
    link: Link,
    compute: Compute,
    cache: PlanCache,
) -> tuple[Phased, tuple[RoundPart, ...]] | None:
    """Return these plans in phases, with the jobs' parts; None if they do not fit, or need no phases."""
    limits = [workload.limit_bytes for workload in workloads]
    # a block has no more addresses than the device has bytes
    over = any(
        block.size_bytes > (budget_bytes if limit is None else min(budget_bytes, limit))
        for block, limit in zip(blocks, limits, strict=True)
    )
    if over or sum(max(block.cycle.load_bytes) for block in blocks) <= budget_bytes:
        return None
    schedules = schedule_cycles([block.cycle for block in blocks], budget_bytes=budget_bytes, compute=compute)
    if isinstance(schedules, Infeasible):
        return None
    (schedule,) = schedules
    operators = [block.operators for block in blocks]
    parts = tuple(block.part(position, schedule, operators) for position, block in enumerate(blocks))
    foretold = forecasts(workloads, plans, link, compute, schedules, cache=cache)
    return Phased(plans=plans, schedules=schedules, forecasts=foretold), parts
