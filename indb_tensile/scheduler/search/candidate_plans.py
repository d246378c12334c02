"""Make candidate plans of one graph for any limit, and the budget curve of the candidates.

A greedy plan has anomalies: a plan for a larger limit, or for a faster link, can be slower. Plans are therefore made
for a fixed list of limits as well as for the requested limit, and the fastest plan that fits is taken.
"""

from collections.abc import Sequence

from indb_tensile.scheduler.graph import StepGraph, TensorId
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.plan import Plan
from indb_tensile.scheduler.plan_cache import PlanCache
from indb_tensile.scheduler.search.advance_copies import advance_copies
from indb_tensile.scheduler.search.candidate import CandidatePlan, candidate_of, fastest_candidate, pareto_front
from indb_tensile.scheduler.search.execution_orders import MOST, ExecutionOrders
from indb_tensile.scheduler.search.first_plan import FirstPlan
from indb_tensile.scheduler.search.local_search import (
    CancellationCheck,
    Effort,
    LocalSearch,
    fits_layout_limit,
    layout_limit,
    never_cancel,
    search_parameters,
)

# The limits of a budget curve, as fractions of the way from the floor to the liveness peak. Each further limit costs
# the layouts of its candidates and makes the curve finer.
LIMIT_FRACTIONS = (0.95, 0.85, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.0)
# The most operators in all orders of one graph together. Measured: an order of ten thousand operators takes a fifth
# of a second in Python, so this bounds the orders' set-up time at about 0.6 s. A larger number lets larger graphs
# have more orders.
_ORDERED = 30_000
# The lane prices at which each limit of a curve is swept: one low, one medium, one high. See `_SWEEPS` in
# first_plan.py for how prices matter. A further price costs one sweep for each limit.
_CURVE_PRICES = (0.02, 0.1, 0.4)
_CURVE_PART = 8  # Each limit of a curve may take 1/8 of a ration of layouts. A smaller part makes worse points.


class CandidatePlans:
    """The candidate plans of one graph of one job, on the job's share of both lanes."""

    def __init__(
        self,
        graph: StepGraph,
        latency_ns: Sequence[int],
        link: Link,
        *,
        share: float = 1.0,
        rewrites: bool = True,
        effort: Effort = Effort.USUAL,
        work: float = 1,
        cancellation_check: CancellationCheck = never_cancel,
        cache: PlanCache | None = None,
    ) -> None:
        self._cancellation_check = cancellation_check
        self.graph, self._effort, self._rewrites, self._work = graph, effort, rewrites, work
        self._link = link
        self._orders = ExecutionOrders(
            graph,
            latency_ns,
            link,
            share=share,
            rewrites=rewrites,
            early=effort > Effort.QUICK,
            most=max(1, min(MOST, _ORDERED // max(1, len(graph.operators)))),
            cache=cache,
        )
        self._idle = _idle(graph)
        self._away: frozenset[TensorId] = frozenset()
        self._least_bytes = self._orders.first[-1].floor_bytes
        self._known: dict[frozenset[TensorId], list[CandidatePlan]] = {}
        self._limits: set[tuple[frozenset[TensorId], int]] = set()  # limits that were already searched for
        self.top = candidate_of(0, self._orders.first[0])

    def best(self, limit_bytes: int) -> CandidatePlan:
        """Return the fastest candidate within the limit. If no candidate fits, return the one with the least peak."""
        limit_bytes = max(limit_bytes, self._least_bytes)
        self._leave_idle(limit_bytes)
        candidates = self._known_candidates()
        without_copies = (
            candidate
            for candidate in candidates
            if candidate.lane_ns == 0 and candidate.iteration_ns <= self.top.iteration_ns
        )
        enough = any(candidate.peak_bytes <= limit_bytes for candidate in without_copies)
        if not enough and (self._away, limit_bytes) not in self._limits:
            self._limits.add((self._away, limit_bytes))
            candidates += self._search_limit(limit_bytes)
        within = [r for r in candidates if r.peak_bytes <= limit_bytes]
        return fastest_candidate(within) if within else min(candidates, key=lambda r: (r.peak_bytes, r.iteration_ns))

    @property
    def layouts(self) -> int:
        """The number of sets of choices that were laid out so far.

        It measures the cost of planning independently of the machine.
        """
        return self._orders.layouts

    def curve(self) -> tuple[CandidatePlan, ...]:
        """Return the fastest candidates for a fixed list of limits, from the largest peak to the least.

        The first candidate keeps every tensor. Each further candidate is slower than the candidate before.
        """
        least_bytes = self._least_bytes
        self._leave_idle(least_bytes)
        order = len(self._orders.first) - 1
        search = self._orders.search(order)
        candidates = []
        for fraction in LIMIT_FRACTIONS:
            limit_bytes = least_bytes + round(fraction * (self.top.peak_bytes - least_bytes))
            candidates += self._limit_candidates(order, limit_bytes)
        search.exhaust()
        candidates.append(candidate_of(order, search))
        self._known_candidates().extend(candidates)
        return (
            self.top,
            *(candidate for candidate in pareto_front(candidates) if candidate.peak_bytes < self.top.peak_bytes),
        )

    def _search_limit(self, limit_bytes: int) -> list[CandidatePlan]:
        """Return what the effort finds for this limit. Full effort includes what the usual effort finds."""
        first = FirstPlan(
            self._orders,
            self.top,
            limit_bytes,
            drops=self._rewrites,
            work=self._work,
            cancellation_check=self._cancellation_check,
        )
        if self._effort is Effort.QUICK:
            return [first.quick()]
        candidates = [first.best()]
        costs_nothing = (
            candidates[0].iteration_ns <= self.top.iteration_ns and candidates[0].peak_bytes <= limit_bytes
        )
        if self._effort is Effort.USUAL or costs_nothing:
            return candidates
        candidates.append(first.improved(candidates[0]))
        if fits_layout_limit(len(candidates[0].choices), layout_limit(len(self.graph.operators))):
            candidates.append(
                LocalSearch(
                    self._orders,
                    self.top,
                    limit_bytes,
                    drops=self._rewrites,
                    cancellation_check=self._cancellation_check,
                ).best()
            )
        return candidates

    def _limit_candidates(self, order: int, limit_bytes: int) -> list[CandidatePlan]:
        """Return a few candidates for one limit of the curve: sweeps at several prices, and a local search if that
        takes few layouts.
        """
        search = self._orders.search(order)
        candidates = []
        for lane_price in _CURVE_PRICES:
            if search.sweep(limit_bytes, drops=self._rewrites, lane_price=lane_price):
                candidates.append(candidate_of(order, search))
        most = layout_limit(search.operators) // _CURVE_PART
        if candidates and not fits_layout_limit(len(candidates[0].choices), most):
            return candidates
        search.clear()
        first_two = search_parameters(drops=self._rewrites)[:2]  # points of a curve need no more
        if any(search.lower(limit_bytes, options, most=most) for options in first_two):
            search.prune(limit_bytes, most)
            candidates.append(candidate_of(order, search))
        return candidates

    def within(self, limit_bytes: int, policy: str) -> Plan:
        """Return the best plan for the limit.

        If the plan costs time, its copies are moved into memory that would be unused while the job waits for copies.
        """
        candidate = self.best(limit_bytes)
        if candidate.iteration_ns <= self.top.iteration_ns:
            return self.plan(candidate, policy)
        return advance_copies(self._orders.chosen(candidate), policy, self._link)

    def plan(self, candidate: CandidatePlan, policy: str) -> Plan:
        """Return the candidate as a plan. It has to be the last candidate that `best` returned."""
        return self._orders.chosen(candidate).plan(policy)

    def _known_candidates(self) -> list[CandidatePlan]:
        """Return all candidates known so far. Initially these are, for each order, the plan that keeps everything and
        the plan that swaps everything.

        A plan for a limit is therefore never slower than swapping everything, if swapping everything meets the limit.
        """
        if self._away not in self._known:
            candidates = self._known[self._away] = []
            for number, search in enumerate(self._orders.first):
                search.clear()
                candidates.append(candidate_of(number, search))
                search.exhaust()
                candidates.append(candidate_of(number, search))
        return self._known[self._away]

    def _leave_idle(self, limit_bytes: int) -> None:
        """Keep tensors that the graph never accesses on the host, the largest first, until the peak is within the
        limit.
        """
        away: set[TensorId] = set()
        peak_bytes = self.top.peak_bytes
        for tensor in self._idle:
            if peak_bytes > limit_bytes:
                away.add(tensor)
                peak_bytes -= self.graph.tensors[tensor].size_bytes
        self._away = frozenset(away)
        self._orders.leave(self._away)


def _idle(graph: StepGraph) -> tuple[TensorId, ...]:
    """Return the persistent tensors that the graph never accesses, largest first."""
    accessed: set[TensorId] = set()
    for operator in graph.operators:
        accessed.update(operator.reads, operator.writes)
    idle = [t for t in graph.tensors if t.persistent and t.id not in accessed]
    return tuple(t.id for t in sorted(idle, key=lambda t: (-t.size_bytes, t.id)))
