"""Plans of one graph for any limit: several greedy searches, the best of them improved, and the curve they span.

A greedy plan has anomalies: a larger limit, or a faster link, can come out slower. So plans are made for a fixed
ladder of limits besides the limit that is asked for, and what counts is the fastest of those that fit. Work is
rationed by layouts, in proportion to the size of the graph, never by the clock: equal inputs give equal plans.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from indb_tensile.scheduler.graph import StepGraph, TensorId
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.peak import accesses, floor
from indb_tensile.scheduler.plan import Execution, Plan
from indb_tensile.scheduler.reorder import updates_beside_gradients, with_parts
from indb_tensile.scheduler.search import Manner, StepSearch

RUNGS = (0.85, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.0)  # of the way from the floor to the peak by liveness
_WORK = 3_000_000  # operators laid out for one limit: some tenths of a second
_WORK_PER_OPERATOR = 4  # layouts for each operator of a small graph, which has few choices
_PATIENCE = 40  # how much more than its share a first search may take, because there has to be a plan
_LARGE = 4_000  # operators from which on one search has to do
_PRUNED = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """One plan: how high its peak is, how long an iteration takes alone on its share of the lanes, and copies."""

    peak_bytes: int
    iteration_ns: int
    lane_ns: int
    choices: tuple[tuple[int, int, int], ...]


class Ladder:
    """One graph of one job. `share` is the part of each lane that it may count on."""

    def __init__(
        self, graph: StepGraph, latency_ns: Sequence[int], link: Link, *, share: float = 1.0, rewrites: bool = True
    ) -> None:
        self.graph = graph
        self._latency_ns, self._link, self._share = tuple(latency_ns), link, share
        self._executions: tuple[Execution, ...] = ()
        if rewrites:
            self._executions = with_parts(graph, updates_beside_gradients(graph))
        self._idle = _idle(graph)
        self._search = self._searching(frozenset())
        self._away: frozenset[TensorId] = frozenset()
        self._known: dict[frozenset[TensorId], list[Rung]] = {}
        self.top = self._rung()

    def best(self, limit_bytes: int, *, thorough: bool = True) -> Rung:
        """The fastest plan found within the limit; the least peak found where none is within it."""
        self._leave_idle(limit_bytes)
        found = self._known.setdefault(self._away, [])
        if not found:
            self._search.clear()
            found.append(self._rung())
        if not any(r.peak_bytes <= limit_bytes and r.iteration_ns <= self.top.iteration_ns for r in found):
            found.append(self._searched(limit_bytes, thorough=thorough))
        within = [r for r in found if r.peak_bytes <= limit_bytes]
        if within:
            return min(within, key=lambda r: (r.iteration_ns, r.lane_ns, r.peak_bytes))
        return min(found, key=lambda r: (r.peak_bytes, r.iteration_ns))

    def curve(self) -> tuple[Rung, ...]:
        """The fastest plans for a fixed ladder of limits, from the largest peak to the least.

        The first is the one that does nothing; of the others each is slower than the one before it.
        """
        floor_bytes = floor(self._search.base)
        for fraction in RUNGS:
            self.best(floor_bytes + round(fraction * (self.top.peak_bytes - floor_bytes)), thorough=False)
        rungs = sorted(
            (r for found in self._known.values() for r in found), key=lambda r: (r.peak_bytes, r.iteration_ns)
        )
        envelope: list[Rung] = []
        for rung in rungs:
            if not envelope or rung.iteration_ns < envelope[-1].iteration_ns:
                envelope.append(rung)
        return (self.top, *(rung for rung in reversed(envelope) if rung.peak_bytes < self.top.peak_bytes))

    def plan(self, rung: Rung, policy: str) -> Plan:
        """The rung as a plan. It has to be the last one that `best` gave."""
        self._search.choose(list(rung.choices))
        return self._search.plan(policy)

    def _searched(self, limit_bytes: int, *, thorough: bool) -> Rung:
        search = self._search
        share = max(1, min(_WORK // search.operators, 100 + _WORK_PER_OPERATOR * search.operators))
        start = search.layouts
        rungs: list[Rung] = []
        manners = _manners(search.operators) if thorough else _manners(search.operators)[:1]
        for manner in manners:
            if any(r.iteration_ns <= self.top.iteration_ns for r in rungs) or search.layouts - start > share:
                break
            search.clear()
            if search.lower(limit_bytes, manner, most=share if rungs else _PATIENCE * share):
                search.prune(limit_bytes, min(_PRUNED, share))
                rungs.append(self._rung())
        if not rungs:
            search.exhaust()
            search.prune(limit_bytes, _PATIENCE * share)
            rungs.append(self._rung())
        best = min(rungs, key=lambda r: (max(0, r.peak_bytes - limit_bytes), r.iteration_ns, r.peak_bytes))
        left = share - (search.layouts - start)
        if thorough and left > 0 and best.peak_bytes <= limit_bytes and best.iteration_ns > self.top.iteration_ns:
            search.choose(list(best.choices))
            search.improve(limit_bytes, manners[0], most=left, seed=search.operators)
            best = self._rung()
        return best

    def _leave_idle(self, limit_bytes: int) -> None:
        """Leave tensors that the graph never accesses on the host, the largest first, while the peak is too high."""
        away: set[TensorId] = set()
        peak_bytes = self.top.peak_bytes
        for tensor in self._idle:
            if peak_bytes > limit_bytes:
                away.add(tensor)
                peak_bytes -= self.graph.tensors[tensor].size_bytes
        if frozenset(away) != self._away:
            self._away = frozenset(away)
            self._search = self._searching(self._away)

    def _searching(self, away: frozenset[TensorId]) -> StepSearch:
        return StepSearch(
            self.graph, self._latency_ns, self._link, executions=self._executions, share=self._share, away=away
        )

    def _rung(self) -> Rung:
        search = self._search
        return Rung(
            peak_bytes=search.peak_bytes,
            iteration_ns=search.iteration_ns,
            lane_ns=search.lane_ns,
            choices=tuple(search.choices),
        )


def _manners(operators: int) -> tuple[Manner, ...]:
    """Ways to weigh lanes against waits, and to take many tensors at once or the best of a few."""
    if operators >= _LARGE:
        return (Manner(lane_price=0.02, tried=1, together=64),)
    return (
        Manner(lane_price=0.02, tried=4, together=16),
        Manner(lane_price=0.1, tried=1, together=16),
        Manner(lane_price=0.02, tried=1, together=64),
        Manner(lane_price=0.02, tried=2),
        Manner(lane_price=0.0, tried=6),
    )


def _idle(graph: StepGraph) -> tuple[TensorId, ...]:
    """Persistent tensors that the graph never accesses, largest first."""
    found = [t for t, ops in zip(graph.tensors, accesses(graph), strict=True) if t.persistent and not ops]
    return tuple(t.id for t in sorted(found, key=lambda t: (-t.size_bytes, t.id)))
