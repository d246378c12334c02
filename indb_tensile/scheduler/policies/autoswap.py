"""AutoSwap: swap the variables across the peak in the order of a score, down to a load limit.

Zhang et al., "Efficient Memory Management for GPU-based Deep Learning Systems", section IV. Candidates are the
variables over a size threshold that are alive and idle at the peak (IV-A). Each has four priority scores (IV-B): the
duration of its absence (DOA), that times its size (AOA), the area under the load curve between its two accesses
(WDOA), and the same with the load lowered by the variables that are swapped before it (SWDOA). A weighted sum of the
four standardised scores ranks the candidates. The weights are tuned by Bayesian optimisation against the overhead
(IV-C). Variables are taken in that order until the load, with all of them away, is within the limit (IV-D). Their
copies are scheduled in the order of accesses, with delayed allocation (IV-E, swap_times.py).

Where the paper is silent: it measures the overhead by running; we ask the simulator. The paper ensures that the
combined score is no worse than each of the four, so the search starts with these. Below `load_min`, the load with all
candidates away, it says that other variables have to be swapped, some more than once. We continue with the candidates
of the peak that is then the highest, by the area of load that each removes. The paper's threshold of 1 MB is 0.15 %
of the smallest network that it shows; a graph whose peak is below 1 GB has a lower threshold here. Persistent
variables that a graph never accesses stay on the host. Jobs are planned one by one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from indb_tensile.scheduler.graph import StepGraph, TensorId
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import LIVENESS, Gap, accesses, gaps, liveness_peak, need_index
from indb_tensile.scheduler.plan import Plan
from indb_tensile.scheduler.plan_cache import PlanCache
from indb_tensile.scheduler.policies.bayes import minimise
from indb_tensile.scheduler.policies.division import demand, divide
from indb_tensile.scheduler.policies.swap_times import empty_load, inside, run_ns, schedule
from indb_tensile.scheduler.timing.job_runs import JobRun
from indb_tensile.scheduler.timing.simulate import simulate
from indb_tensile.scheduler.workload import Workload

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_THRESHOLD_BYTES = 1 << 20  # section IV-A
_THRESHOLD_PART = 1000  # the threshold is at most the peak divided by this
_EVALUATIONS = 40  # section VI-B: it converges within 30 to 40 evaluations; fewer for fewer candidates
# The first four weigh one score alone: AOA, DOA, WDOA, SWDOA. Then come all four alike, and the two scores that the
# paper found best on most limits.
_STARTS = (
    (1.0, 0.0, 0.0, 0.0),
    (0.0, 1.0, 0.0, 0.0),
    (0.0, 0.0, 1.0, 0.0),
    (0.0, 0.0, 0.0, 1.0),
    (1.0, 1.0, 1.0, 1.0),
    (0.0, 0.0, 1.0, 1.0),
)


def autoswap(
    workloads: Sequence[Workload],
    *,
    budget_bytes: int,
    link: Link,
    rewrites: bool = True,
    cache: PlanCache | None = None,
) -> tuple[tuple[Plan, ...], ...]:
    """Return each job's plans under its part of the budget. The policy only swaps, so `rewrites` is ignored."""
    del rewrites
    reached = [max(least_load(graph) for graph in workload.graphs) for workload in workloads]
    limits = divide([demand(w, r, cache) for w, r in zip(workloads, reached, strict=True)], budget_bytes)
    return tuple(
        tuple(
            _planned(graph, latency, link, limit, cache)
            for graph, latency in zip(workload.graphs, workload.latency_ns, strict=True)
        )
        for workload, limit in zip(workloads, limits, strict=True)
    )


def least_load(graph: StepGraph) -> int:
    """Return the paper's load_min: the peak with all candidates away for the whole time between their accesses."""
    return int(empty_load(graph, candidates(graph), idle(graph)).max())


def candidates(graph: StepGraph) -> tuple[Gap, ...]:
    """Return the gaps at the peak of all variables over the threshold, by tensor (section IV-A)."""
    load_bytes = empty_load(graph, (), idle(graph))
    least_bytes = min(_THRESHOLD_BYTES, int(load_bytes.max()) // _THRESHOLD_PART)
    return tuple(
        gap
        for gap in gaps(graph)
        if graph.tensors[gap.tensor].size_bytes > least_bytes
        and _covers(gap, int(load_bytes.argmax()), len(load_bytes))
    )


def _planned(
    graph: StepGraph, latency_ns: tuple[int, ...], link: Link, limit_bytes: int, cache: PlanCache | None
) -> Plan:
    if liveness_peak(graph, cache) <= limit_bytes:
        return Plan(policy="autoswap")
    away = idle(graph)
    selection = Selection(graph, latency_ns, link, away, limit_bytes)

    known: dict[tuple[Gap, ...], tuple[Plan, int]] = {}  # weights that give the same ranking choose the same gaps

    def plan_of(chosen: tuple[Gap, ...]) -> tuple[Plan, int]:
        if chosen not in known:
            plan = schedule(graph, latency_ns, link, chosen, limit_bytes=limit_bytes, policy="autoswap", away=away)
            known[chosen] = plan, _iteration_ns(graph, plan, latency_ns, link)
        return known[chosen]

    def cost(weights: tuple[float, ...]) -> float:
        return plan_of(selection.chosen(weights))[1]

    weights: tuple[float, ...] = _STARTS[0]
    if selection.least_bytes <= limit_bytes:  # otherwise all candidates leave, in whatever order
        evaluations = min(_EVALUATIONS, len(_STARTS) + len(selection.candidates))
        without_ns = _iteration_ns(graph, LIVENESS, latency_ns, link)
        weights = minimise(cost, _STARTS, evaluations=evaluations, enough=without_ns)
    return plan_of(selection.chosen(weights))[0]


def _iteration_ns(graph: StepGraph, plan: Plan, latency_ns: tuple[int, ...], link: Link) -> int:
    (forecast,) = simulate((JobRun(graph=graph, plan=plan, latency_ns=latency_ns),), link)
    return forecast.iteration_ns


def idle(graph: StepGraph) -> frozenset[TensorId]:
    """Return the persistent tensors that the graph never accesses."""
    pairs = zip(graph.tensors, accesses(graph), strict=True)
    return frozenset(tensor.id for tensor, ops in pairs if tensor.persistent and not ops)


def _covers(gap: Gap, operator: int, count: int) -> bool:
    need = need_index(gap, count)
    return gap.out_after < operator < need or gap.out_after < operator + count < need


# --- scores ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """The four priority scores of each candidate (section IV-B), in nanoseconds, bytes and their products."""

    doa: Floats
    aoa: Floats
    wdoa: Floats
    swdoa: Floats

    def combined(self, weights: tuple[float, ...]) -> Floats:
        """Return the paper's equation 3 over the standardised scores. Weights are in the order AOA,
        DOA, WDOA, SWDOA.
        """
        parts = (self.aoa, self.doa, self.wdoa, self.swdoa)
        total = sum(weight * _standard(part) for weight, part in zip(weights, parts, strict=True))
        return np.asarray(total, dtype=np.float64)


def scores(
    graph: StepGraph, latency_ns: Sequence[int], link: Link, candidate_gaps: Sequence[Gap], load_bytes: Ints
) -> Scores:
    """Return the scores of these gaps under this load."""
    area = _Area(candidate_gaps, run_ns(graph, latency_ns, link))
    sizes = [graph.tensors[gap.tensor].size_bytes for gap in candidate_gaps]
    size = np.array(sizes, dtype=np.float64)
    doa = area.of(np.ones_like(load_bytes)) - np.array(
        [link.out_ns(s) + link.in_ns(s) for s in sizes], dtype=np.float64
    )
    return Scores(
        doa=doa,
        aoa=np.where(doa >= 0, doa * size, doa / size),
        wdoa=area.of(load_bytes),
        swdoa=_submodular(area, candidate_gaps, sizes, load_bytes),
    )


class _Area:
    """The area under a load curve between the two accesses of each gap."""

    def __init__(self, candidate_gaps: Sequence[Gap], duration_ns: Ints) -> None:
        count = len(duration_ns)
        self._duration_ns = np.tile(duration_ns.astype(np.float64), 2)
        self._first = np.array([gap.out_after + 1 for gap in candidate_gaps], dtype=np.int64)
        self._stop = np.array([need_index(gap, count) for gap in candidate_gaps], dtype=np.int64)

    def of(self, load_bytes: Ints) -> Floats:
        area = np.concatenate(([0.0], np.cumsum(self._duration_ns * np.tile(load_bytes, 2))))
        return np.asarray(area[self._stop] - area[self._first], dtype=np.float64)


def _submodular(area: _Area, candidate_gaps: Sequence[Gap], sizes: Sequence[int], load_bytes: Ints) -> Floats:
    """Return WDOA in greedy order: each score is under the load that remains when the better candidates are away."""
    load_bytes = load_bytes.copy()
    score = np.zeros(len(candidate_gaps))
    waiting = np.ones(len(candidate_gaps), dtype=np.bool_)
    for _ in candidate_gaps:
        now = np.where(waiting, area.of(load_bytes), -np.inf)
        best = int(np.argmax(now))
        score[best], waiting[best] = now[best], False
        load_bytes[inside(candidate_gaps[best], len(load_bytes))] -= sizes[best]
    return score


def _standard(score: Floats) -> Floats:
    spread = float(score.std()) if len(score) else 0.0
    return (score - score.mean()) / spread if spread else np.zeros_like(score)


# --- selection -------------------------------------------------------------------------------------------------


class Selection:
    """The candidates in the order of their score until the load is within the limit (section IV-D)."""

    def __init__(
        self, graph: StepGraph, latency_ns: tuple[int, ...], link: Link, away: frozenset[TensorId], limit_bytes: int
    ) -> None:
        self._graph = graph
        self._limit = limit_bytes
        self._held = empty_load(graph, (), away)
        self.candidates = candidates(graph)
        self.least_bytes = int(empty_load(graph, self.candidates, away).max())
        self._scores = scores(graph, latency_ns, link, self.candidates, self._held)
        self._duration_ns = run_ns(graph, latency_ns, link)

    def chosen(self, weights: tuple[float, ...]) -> tuple[Gap, ...]:
        """Return the gaps to swap, by tensor; no more than the limit requires."""
        score = self._scores.combined(weights)
        load_bytes, selected = self._held.copy(), []
        for position in np.argsort(-score, kind="stable").tolist():
            if load_bytes.max() <= self._limit:
                break
            selected.append(self.candidates[position])
            self._remove(load_bytes, selected[-1])
        self._go_on(load_bytes, selected)
        return tuple(sorted(selected, key=lambda gap: (gap.tensor, gap.out_after)))

    def _go_on(self, load_bytes: Ints, selected: list[Gap]) -> None:
        """Swap further below load_min: repeatedly take the variable at the present peak that removes the largest
        area.
        """
        gap, first, stop = self._others
        taken = np.isin(np.arange(len(gap)), [gap.index(g) for g in selected])
        while load_bytes.max() > self._limit:
            peak = int(load_bytes.argmax())
            covers = ((first <= peak) & (peak < stop)) | (
                (first <= peak + len(load_bytes)) & (peak + len(load_bytes) < stop)
            )
            at_peak = np.flatnonzero(covers & ~taken)
            if len(at_peak) == 0:
                return
            taken[at_peak[0]] = True
            selected.append(gap[at_peak[0]])
            self._remove(load_bytes, selected[-1])

    def _remove(self, load_bytes: Ints, gap: Gap) -> None:
        load_bytes[inside(gap, len(load_bytes))] -= self._graph.tensors[gap.tensor].size_bytes

    @cached_property
    def _others(self) -> tuple[list[Gap], Ints, Ints]:
        """All gaps, those that remove the largest area of load first, and the operators between which
        each gap lies.
        """
        all_gaps = gaps(self._graph)
        size = np.array([self._graph.tensors[gap.tensor].size_bytes for gap in all_gaps], dtype=np.float64)
        area = _Area(all_gaps, self._duration_ns).of(np.ones_like(self._held)) * size
        all_gaps = tuple(all_gaps[k] for k in np.argsort(-area, kind="stable").tolist())
        stop = np.array([need_index(gap, len(self._held)) for gap in all_gaps], dtype=np.int64)
        return list(all_gaps), np.array([gap.out_after + 1 for gap in all_gaps], dtype=np.int64), stop
