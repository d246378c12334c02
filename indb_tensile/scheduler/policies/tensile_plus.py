"""TENSILE Algorithm 3 for any number of jobs: lower the peaks until they fit, by the largest tensor first.

Phase one swaps only what stalls nobody, as the paper does: the largest tensor at any job's peak, then the
same tensor's further gaps, until the budget is met, nothing more can be swapped, or three rounds after the
hundredth lowered the peaks by less than 0.05 %. It stops as soon as the budget is met: a plan that moves
less disturbs less. (The paper goes on to the least memory; ask for that with a budget of 0 bytes.)

Phase two, where the budget calls for it, accepts stalls: it swaps where most bytes leave the peak per
nanosecond of estimated stall. Every gap may then be swapped, so it reaches the floor. (The paper recomputes
here; that is another policy's work.) Last, swaps that later ones made needless are undone.

The jobs of a device are not synchronised and their iterations differ in length, so no calendar can say when
two jobs' copies meet. Each job therefore plans with a fixed share of both lanes, as much of them as its
demand is of all demands: the bytes it could give up (liveness peak - floor) per time of its iteration. The
paper's maximum swapping rate is a priority between jobs: in phase one a job at its rate is asked only where
no other job has anything to swap. (A hard limit would cost stalls that a swap in that job avoids.)
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.peak import liveness_peak
from indb_tensile.scheduler.plan import Plan
from indb_tensile.scheduler.swap import SwapPlan
from indb_tensile.scheduler.workload import Workload, least_bytes

_ROUNDS_BEFORE_STOP = 100  # TENSILE Algorithm 3, line 4
_ROUNDS_COMPARED = 3
_LEAST_REDUCTION = 0.0005


def tensile_plus(
    workloads: Sequence[Workload], *, budget_bytes: int, link: Link, rewrites: bool = True
) -> tuple[tuple[Plan, ...], ...]:
    """Plans whose peaks meet the budget and every job's limit, if any plans can."""
    shares = lane_shares(workloads)
    jobs = [_Job(workload, link, share) for workload, share in zip(workloads, shares, strict=True)]
    _swap_without_stalls(jobs, budget_bytes)
    _swap_with_stalls(jobs, budget_bytes)
    for job in jobs:
        cap_bytes = _allowed(job, jobs, budget_bytes)
        for graph in job.graphs:
            graph.prune(cap_bytes)
    return tuple(tuple(graph.plan("tensile+") for graph in job.graphs) for job in jobs)


def lane_shares(workloads: Sequence[Workload]) -> tuple[float, ...]:
    """Each job's part of both lanes, in proportion to the bytes it could give up per time."""
    demands = []
    for workload in workloads:
        above_floor = max(liveness_peak(g) for g in workload.graphs) - least_bytes(workload)
        demands.append(above_floor / sum(workload.latency_ns[0]))
    total = sum(demands)
    return tuple(demand / total if demand else 1.0 for demand in demands)


@dataclass(slots=True)
class _Job:
    """One job's graphs in planning, and which gaps were tried in vain at which operator."""

    workload: Workload
    link: Link
    share: float
    graphs: list[SwapPlan] = field(init=False)
    refused: set[tuple[int, int, int]] = field(default_factory=set)  # (graph, gap, operator)

    def __post_init__(self) -> None:
        pairs = zip(self.workload.graphs, self.workload.latency_ns, strict=True)
        self.graphs = [SwapPlan(graph, latency, self.link, self.share) for graph, latency in pairs]

    @property
    def peak_bytes(self) -> int:
        return max(graph.peak_bytes for graph in self.graphs)

    @property
    def swap_count(self) -> int:
        return sum(graph.swap_count for graph in self.graphs)

    @property
    def over_limit(self) -> bool:
        limit = self.workload.limit_bytes
        return limit is not None and self.peak_bytes > limit

    def worst(self) -> int:
        """The graph that sets the job's peak."""
        peaks = [graph.peak_bytes for graph in self.graphs]
        return peaks.index(max(peaks))


@dataclass(frozen=True, slots=True)
class _Choice:
    """One gap of one job's worst graph, at its peak operator."""

    job: _Job
    graph: int
    gap: int
    operator: int

    @property
    def plan(self) -> SwapPlan:
        return self.job.graphs[self.graph]

    @property
    def size_bytes(self) -> int:
        return self.plan.size_of(self.gap)


def _to_lower(jobs: Sequence[_Job], budget_bytes: int) -> list[_Job]:
    """The jobs whose peak has to fall: all where the sum is too high, else those over their own limit."""
    if sum(job.peak_bytes for job in jobs) > budget_bytes:
        return list(jobs)
    return [job for job in jobs if job.over_limit]


def _allowed(job: _Job, jobs: Sequence[_Job], budget_bytes: int) -> int:
    """How high the job's peak may be, with all that the budget leaves over."""
    left = max(0, budget_bytes - sum(other.peak_bytes for other in jobs))
    limit = job.workload.limit_bytes
    cap_bytes = job.peak_bytes + left
    return cap_bytes if limit is None else max(job.peak_bytes, min(limit, cap_bytes))


# --- phase one: nobody waits -----------------------------------------------------------------------------------


def _swap_without_stalls(jobs: Sequence[_Job], budget_bytes: int) -> None:
    history: list[int] = []
    best: dict[int, _Choice | None] = {}
    while lowering := _to_lower(jobs, budget_bytes):
        if any(_leave_idle(job) for job in lowering):
            best.clear()
            continue
        choice = _largest([j for j in lowering if not _at_its_rate(j, jobs)], best) or _largest(lowering, best)
        if choice is None:
            return
        best.pop(id(choice.job), None)
        if not choice.plan.swap(choice.gap, choice.operator, stalls=False):
            choice.job.refused.add((choice.graph, choice.gap, choice.operator))
            continue
        _swap_further(choice)
        history.append(sum(job.peak_bytes for job in jobs))
        if _stands_still(history):
            return


def _largest(jobs: Sequence[_Job], best: dict[int, _Choice | None]) -> _Choice | None:
    """The largest tensor at any of these jobs' peaks; earlier jobs first among equals."""
    for job in jobs:
        if id(job) not in best:
            best[id(job)] = _largest_of(job)
    choices = [choice for job in jobs if (choice := best[id(job)]) is not None]
    return max(choices, key=lambda c: c.size_bytes, default=None)


def _largest_of(job: _Job) -> _Choice | None:
    number = job.worst()
    graph = job.graphs[number]
    operator = graph.load.argmax()
    for gap in graph.holding(operator).tolist():
        if (number, gap, operator) not in job.refused:
            return _Choice(job, number, gap, operator)
    return None


def _leave_idle(job: _Job) -> bool:
    """Leave the largest tensor that the worst graph never accesses on the host: it moves once, not each time."""
    graph = job.graphs[job.worst()]
    if not graph.idle:
        return False
    graph.put_away(graph.idle[-1])
    return True


def _swap_further(choice: _Choice) -> None:
    """Swap the same tensor in its other gaps where it could become the peak's tensor again."""
    plan = choice.plan
    level_bytes = plan.peak_bytes - choice.size_bytes
    for gap in plan.further_gaps(plan.tensor_of(choice.gap), level_bytes):
        plan.swap(gap, None, stalls=False)


def _at_its_rate(job: _Job, jobs: Sequence[_Job]) -> bool:
    """The job's share of all swapped tensors has reached its maximum swapping rate."""
    rate = job.workload.max_swapping_rate
    return rate < 1.0 and job.swap_count >= rate * sum(other.swap_count for other in jobs)


def _stands_still(history: Sequence[int]) -> bool:
    if len(history) <= max(_ROUNDS_BEFORE_STOP, _ROUNDS_COMPARED):
        return False
    before = history[-1 - _ROUNDS_COMPARED]
    return before - history[-1] < _LEAST_REDUCTION * before


# --- phase two: waiting for memory -----------------------------------------------------------------------------


def _swap_with_stalls(jobs: Sequence[_Job], budget_bytes: int) -> None:
    best: dict[int, tuple[float, _Choice] | None] = {}
    while lowering := _to_lower(jobs, budget_bytes):
        for job in lowering:
            if id(job) not in best:
                best[id(job)] = _cheapest_of(job)
        offers = [offer for job in lowering if (offer := best[id(job)]) is not None]
        if not offers:
            return
        _, choice = max(offers, key=lambda offer: offer[0])
        best.pop(id(choice.job))
        choice.plan.swap(choice.gap, choice.operator, stalls=True)


def _cheapest_of(job: _Job) -> tuple[float, _Choice] | None:
    """Most bytes off the job's peak per nanosecond of stall; larger tensors first among the free ones."""
    number = job.worst()
    graph = job.graphs[number]
    operator = graph.load.argmax()
    while graph.idle and graph.load.at(operator) > graph.least[operator]:
        _leave_idle(job)
        return _cheapest_of(job)
    found = graph.candidates(operator)
    if len(found.gap) == 0:
        return None
    score = found.size_bytes / (found.stall_ns + 1)
    chosen = int(np.argmax(score))
    return float(score[chosen]), _Choice(job, number, int(found.gap[chosen]), operator)
