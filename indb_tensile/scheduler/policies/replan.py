"""Renew plans after a latency update: derive them from the present plans, in a fraction of the time of planning.

TENSILE (section IV-E) plans anew from nothing whenever measured latencies have drifted too far from those of the
plan. But the choice of tensors to move or recompute hardly depends on a few per cent of time. The moments at which
copies begin and end do. The choices are therefore read from the present plan and laid out on the new time axis in two
ways: once so that tensors are at least as long away as in the old plan, which keeps its peak; and once with times
that the lanes allow, lowered again if the peak exceeds the limit. The old plan is also timed as it is, and is kept if
nothing is faster. A plan is thus never renewed for the worse, and if the plan stays the same object, its trainer has
nothing to do.

A controller that has reached its drift threshold, with nothing else changed, first calls this module, and plans anew
if the answer is None. The module needs no state of the earlier search, so a plan that was read from the database can
be renewed. Values that follow from the graphs alone are cached if the caller passes a cache (plan_cache.py) and the
same graph objects.

Jobs in phases (JobPlan.schedule) must not be renewed here, because gates between them hold their plans together.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from indb_tensile.errors import GraphError
from indb_tensile.scheduler.graph import StepGraph
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.plan import Execution, Plan
from indb_tensile.scheduler.plan_cache import PlanCache
from indb_tensile.scheduler.policies.job_candidates import NAME
from indb_tensile.scheduler.policies.policy import Plans
from indb_tensile.scheduler.policies.tensile_plus import lane_shares, slowdown
from indb_tensile.scheduler.rewrite import rewrite
from indb_tensile.scheduler.search.step_search import GreedyOptions, StepSearch
from indb_tensile.scheduler.workload import Workload

# Operators laid out to renew one graph's plan: some hundredths of a second. More work may find faster plans and takes
# proportionally longer, during which the controller waits.
_WORK = 250_000
# The most layouts for a small graph, where the work alone would allow too many. A larger number takes longer.
_MOST = 200
# The layout time of one swap, in operators. Used to divide `_WORK`; a wrong value only makes the running time less
# even.
_OPERATORS_PER_SWAP = 8


@dataclass(frozen=True, slots=True)
class _CurrentPlan:
    """A plan with its peak and the time of an iteration alone on the job's share of the lanes."""

    plan: Plan
    peak_bytes: int
    iteration_ns: int


def replan(
    workloads: Sequence[Workload],
    plans: Plans,
    *,
    budget_bytes: int,
    link: Link,
    cache: PlanCache | None = None,
) -> Plans | None:
    """Return plans of these jobs for their present latencies, no slower than the present plans with these latencies.

    The peaks meet the budget and every job's limit. None if `plans` are not tensile+'s for these graphs, or if no
    plans derived from them meet the budget. Pure: equal inputs give equal plans.
    """
    kept = PlanCache() if cache is None else cache
    searches = _searches(workloads, plans, link, kept)
    current = None if searches is None else _current_plans(searches, plans)
    caps = None if current is None else _caps(workloads, current, budget_bytes)
    if searches is None or current is None or caps is None:
        return None
    renewed_plans = [
        [_renew(search, graph_plan, cap) for search, graph_plan in zip(job_searches, job_plans, strict=True)]
        for job_searches, job_plans, cap in zip(searches, current, caps, strict=True)
    ]
    if not _within(renewed_plans, caps):
        return None
    renewed = tuple(tuple(graph_plan.plan for graph_plan in job_plans) for job_plans in renewed_plans)
    if len(workloads) == 1 or renewed == plans or not _within(current, caps):
        return renewed
    faster = slowdown(workloads, renewed, link, cache=kept) < slowdown(workloads, plans, link, cache=kept)
    return renewed if faster else plans


def first_runs(plan: Plan) -> tuple[Execution, ...]:
    """Return the plan's order of execution without re-runs."""
    waiting = {execution.operator for execution in plan.executions}
    runs = []
    for execution in plan.executions:
        if execution.parts > 1 or execution.operator in waiting:
            waiting.discard(execution.operator)
            runs.append(execution)
    return plan.executions if len(runs) == len(plan.executions) else tuple(runs)


def _lawful_runs(graph: StepGraph, plan: Plan, cache: PlanCache) -> tuple[Execution, ...]:
    """Return the first runs. Raises GraphError if this graph cannot run in that order, because a search does not
    check orders.
    """
    runs = first_runs(plan)
    if runs:
        rewrite(graph, runs, cache)
    return runs


def _searches(
    workloads: Sequence[Workload], plans: Plans, link: Link, cache: PlanCache
) -> list[list[StepSearch]] | None:
    """Return one search for each graph, in the order in which the plan's operators first run. None if a plan is not
    ours.
    """
    if [len(w.graphs) for w in workloads] != [len(chosen) for chosen in plans]:
        return None
    graphs = [graph for workload in workloads for graph in workload.graphs]
    if not all(map(_is_ours, graphs, (plan for chosen in plans for plan in chosen))):
        return None
    shares = lane_shares(workloads, cache) if len(workloads) > 1 else (1.0,)
    try:
        return [
            [
                StepSearch(
                    graph,
                    latency_ns,
                    link,
                    executions=_lawful_runs(graph, plan, cache),
                    share=share,
                    away=plan.away,
                    cache=cache,
                )
                for graph, latency_ns, plan in zip(workload.graphs, workload.latency_ns, chosen, strict=True)
            ]
            for workload, chosen, share in zip(workloads, plans, shares, strict=True)
        ]
    except GraphError:  # the order of another graph
        return None


def _is_ours(graph: StepGraph, plan: Plan) -> bool:
    """Return whether the plan may be tensile+'s for this graph, as far as can be checked without its order."""
    tensors = graph.tensors
    return plan.policy == NAME and all(0 <= t < len(tensors) and tensors[t].persistent for t in plan.away)


def _current_plans(searches: Sequence[Sequence[StepSearch]], plans: Plans) -> list[list[_CurrentPlan]] | None:
    """Return the present plans' peaks and times. Each search adopts its plan. None if a search cannot."""
    current: list[list[_CurrentPlan]] = []
    for mine, chosen in zip(searches, plans, strict=True):
        current.append([])
        for search, plan in zip(mine, chosen, strict=True):
            standing = search.adopt(plan)
            if standing is None:
                return None
            current[-1].append(_CurrentPlan(plan, *standing))
    return current


def _caps(
    workloads: Sequence[Workload], current: Sequence[Sequence[_CurrentPlan]], budget_bytes: int
) -> list[int] | None:
    """Return the limit of each job's peak: its present peak plus an equal part of the budget's rest."""
    if len(workloads) == 1:
        caps = [budget_bytes]
    else:
        peaks = [max(graph_plan.peak_bytes for graph_plan in job_plans) for job_plans in current]
        spare_bytes = budget_bytes - sum(peaks)
        if spare_bytes < 0:
            return None
        caps = [peak_bytes + spare_bytes // len(peaks) for peak_bytes in peaks]
    return [cap if w.limit_bytes is None else min(cap, w.limit_bytes) for w, cap in zip(workloads, caps, strict=True)]


def _within(current: Sequence[Sequence[_CurrentPlan]], caps: Sequence[int]) -> bool:
    return all(
        graph_plan.peak_bytes <= cap for job_plans, cap in zip(current, caps, strict=True) for graph_plan in job_plans
    )


def _renew(search: StepSearch, current: _CurrentPlan, cap_bytes: int) -> _CurrentPlan:
    """Return the fastest plan within the cap that can be derived from the plan's choices, or the plan itself if it is
    as fast.

    If nothing fits the cap, return the result that comes closest to it.
    """
    most = _ration(search.operators, len(current.plan.swaps))
    options = GreedyOptions(drops=bool(current.plan.executions), lane_price=0.02, tried=1, together=16)
    covered = search.choices
    best = _RankedChoices(_rank(current.peak_bytes, current.iteration_ns, cap_bytes), None)
    best = min(best, _ranked(search, cap_bytes))
    search.uncover()
    for start in (search.choices, covered):
        search.choose(start)
        if search.lower(cap_bytes, options, most=most):
            search.prune(cap_bytes, most)
        best = min(best, _ranked(search, cap_bytes))
    if best.rank > (0, search.least_ns):
        search.choose(covered if best.choices is None else best.choices)
        search.improve(cap_bytes, options, most=most, seed=search.operators)
        best = min(best, _ranked(search, cap_bytes))
    if best.choices is None:
        return current
    search.choose(best.choices)
    return _CurrentPlan(search.plan(NAME), search.peak_bytes, search.iteration_ns)


@dataclass(frozen=True, slots=True, order=True)
class _RankedChoices:
    """Choices and their rank: bytes over the cap, then time. `choices` is None for the present plan."""

    rank: tuple[int, int]
    choices: list[tuple[int, int, int]] | None = field(compare=False)


def _ranked(search: StepSearch, cap_bytes: int) -> _RankedChoices:
    return _RankedChoices(_rank(search.peak_bytes, search.iteration_ns, cap_bytes), search.choices)


def _rank(peak_bytes: int, iteration_ns: int, cap_bytes: int) -> tuple[int, int]:
    return max(0, peak_bytes - cap_bytes), iteration_ns


def _ration(operators: int, swaps: int) -> int:
    """Return how many sets of choices may be laid out. A swap takes as long as some operators."""
    return max(1, min(_MOST, _WORK // (operators + _OPERATORS_PER_SWAP * swaps)))
