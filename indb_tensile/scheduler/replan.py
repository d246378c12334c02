"""Plans renewed after a latency update: gone on from the plans that are followed, in a fraction of planning's time.

TENSILE (section IV-E) plans anew from nothing whenever measured latencies have moved too far from those planned with.
But the tensors to move or make again, and where, hardly depend on a few per cent of time; what does is when copies
begin and end. So the choices are read off the followed plan and laid out on the new axis: once as far away as they
are in the old plan, which keeps its peak, and once free to come and go as the lanes now allow, lowered again where
that is over the limit. The old plan as it stands is timed beside them, and kept where nothing is faster: a plan is
never renewed for the worse, and one that stays the same object costs its trainer nothing.

A controller that has reached its drift threshold, with nothing else changed, asks here before it plans anew, and
plans anew where the answer is None. It is told nothing of what was searched before: a plan read from the database
will do. What follows from the graphs alone is remembered (memo.py), so the same graph objects should be passed.

Jobs in phases (JobPlan.schedule) must not be renewed here: their plans hold together by gates between them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from indb_tensile.errors import GraphError
from indb_tensile.scheduler.graph import StepGraph
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.plan import Execution, Plan
from indb_tensile.scheduler.policies.tensile_plus import NAME, Plans, lane_shares, slowdown
from indb_tensile.scheduler.rewrite import rewrite
from indb_tensile.scheduler.search.step_search import Manner, StepSearch
from indb_tensile.scheduler.workload import Workload

_WORK = 250_000  # operators laid out to renew one graph's plan: some hundredths of a second
_MOST = 200  # layouts for a small graph
_OPERATORS_PER_SWAP = 8


@dataclass(frozen=True, slots=True)
class _Held:
    """A plan, how high its peak is, and how long an iteration takes alone on its share of the lanes."""

    plan: Plan
    peak_bytes: int
    iteration_ns: int


def replan(workloads: Sequence[Workload], plans: Plans, *, budget_bytes: int, link: Link) -> Plans | None:
    """The plans of these jobs for their present latencies, no slower than those followed are with them.

    The peaks meet the budget and every job's limit. None where `plans` are not tensile+'s for these graphs, or
    going on from them does not meet the budget. Pure: equal inputs give equal plans.
    """
    searches = _searches(workloads, plans, link)
    held = None if searches is None else _held(searches, plans)
    caps = None if held is None else _caps(workloads, held, budget_bytes)
    if searches is None or held is None or caps is None:
        return None
    found = [
        [_renewed(search, one, cap) for search, one in zip(mine, those, strict=True)]
        for mine, those, cap in zip(searches, held, caps, strict=True)
    ]
    if not _within(found, caps):
        return None
    renewed = tuple(tuple(one.plan for one in those) for those in found)
    if len(workloads) == 1 or renewed == plans or not _within(held, caps):
        return renewed
    return renewed if slowdown(workloads, renewed, link) < slowdown(workloads, plans, link) else plans


def first_runs(plan: Plan) -> tuple[Execution, ...]:
    """The plan's order of execution without what it runs again."""
    waiting = {execution.operator for execution in plan.executions}
    found = []
    for execution in plan.executions:
        if execution.parts > 1 or execution.operator in waiting:
            waiting.discard(execution.operator)
            found.append(execution)
    return plan.executions if len(found) == len(plan.executions) else tuple(found)


def _lawful_runs(graph: StepGraph, plan: Plan) -> tuple[Execution, ...]:
    """The first runs. Raises GraphError where this graph cannot run in that order: a search takes any as lawful."""
    runs = first_runs(plan)
    if runs:
        rewrite(graph, runs)
    return runs


def _searches(workloads: Sequence[Workload], plans: Plans, link: Link) -> list[list[StepSearch]] | None:
    """One search for each graph, in the order in which the plan's operators run first."""
    if [len(w.graphs) for w in workloads] != [len(chosen) for chosen in plans]:
        return None
    graphs = [graph for workload in workloads for graph in workload.graphs]
    if not all(map(_ours, graphs, (plan for chosen in plans for plan in chosen))):
        return None
    shares = lane_shares(workloads) if len(workloads) > 1 else (1.0,)
    try:
        return [
            [
                StepSearch(graph, latency_ns, link, executions=_lawful_runs(graph, plan), share=share, away=plan.away)
                for graph, latency_ns, plan in zip(workload.graphs, workload.latency_ns, chosen, strict=True)
            ]
            for workload, chosen, share in zip(workloads, plans, shares, strict=True)
        ]
    except GraphError:  # another graph's order
        return None


def _ours(graph: StepGraph, plan: Plan) -> bool:
    """Whether the plan may be tensile+'s for this graph, as far as can be seen without its order."""
    tensors = graph.tensors
    return plan.policy == NAME and all(0 <= t < len(tensors) and tensors[t].persistent for t in plan.away)


def _held(searches: Sequence[Sequence[StepSearch]], plans: Plans) -> list[list[_Held]] | None:
    """How the followed plans stand now; the searches go on from them."""
    found: list[list[_Held]] = []
    for mine, chosen in zip(searches, plans, strict=True):
        found.append([])
        for search, plan in zip(mine, chosen, strict=True):
            standing = search.adopt(plan)
            if standing is None:
                return None
            found[-1].append(_Held(plan, *standing))
    return found


def _caps(workloads: Sequence[Workload], held: Sequence[Sequence[_Held]], budget_bytes: int) -> list[int] | None:
    """How high each job's peak may be: what it is, and an equal part of what the budget leaves over."""
    if len(workloads) == 1:
        caps = [budget_bytes]
    else:
        peaks = [max(one.peak_bytes for one in those) for those in held]
        spare_bytes = budget_bytes - sum(peaks)
        if spare_bytes < 0:
            return None
        caps = [peak_bytes + spare_bytes // len(peaks) for peak_bytes in peaks]
    return [cap if w.limit_bytes is None else min(cap, w.limit_bytes) for w, cap in zip(workloads, caps, strict=True)]


def _within(held: Sequence[Sequence[_Held]], caps: Sequence[int]) -> bool:
    return all(one.peak_bytes <= cap for those, cap in zip(held, caps, strict=True) for one in those)


def _renewed(search: StepSearch, held: _Held, cap_bytes: int) -> _Held:
    """The fastest within the cap of what the plan's choices lead to now; the plan itself where that is as fast.

    Where nothing is within the cap, what comes closest.
    """
    most = _ration(search.operators, len(held.plan.swaps))
    manner = Manner(drops=bool(held.plan.executions), lane_price=0.02, tried=1, together=16)
    covered = search.choices
    best = _Found(_rank(held.peak_bytes, held.iteration_ns, cap_bytes), None)
    best = min(best, _found(search, cap_bytes))
    search.uncover()
    for start in (search.choices, covered):
        search.choose(start)
        if search.lower(cap_bytes, manner, most=most):
            search.prune(cap_bytes, most)
        best = min(best, _found(search, cap_bytes))
    if best.rank > (0, search.least_ns):
        search.choose(covered if best.choices is None else best.choices)
        search.improve(cap_bytes, manner, most=most, seed=search.operators)
        best = min(best, _found(search, cap_bytes))
    if best.choices is None:
        return held
    search.choose(best.choices)
    return _Held(search.plan(NAME), search.peak_bytes, search.iteration_ns)


@dataclass(frozen=True, slots=True, order=True)
class _Found:
    """Choices, None for the plan that is followed, and how good they are: bytes over the cap, then time."""

    rank: tuple[int, int]
    choices: list[tuple[int, int, int]] | None = field(compare=False)


def _found(search: StepSearch, cap_bytes: int) -> _Found:
    return _Found(_rank(search.peak_bytes, search.iteration_ns, cap_bytes), search.choices)


def _rank(peak_bytes: int, iteration_ns: int, cap_bytes: int) -> tuple[int, int]:
    return max(0, peak_bytes - cap_bytes), iteration_ns


def _ration(operators: int, swaps: int) -> int:
    """How many sets of choices may be laid out: a swap takes as long as some operators."""
    return max(1, min(_MOST, _WORK // (operators + _OPERATORS_PER_SWAP * swaps)))
