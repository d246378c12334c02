"""Plans of one graph for any limit, and the curve they span.

A greedy plan has anomalies: a larger limit, or a faster link, can come out slower. So plans are made for a fixed
ladder of limits besides the limit that is asked for, and what counts is the fastest of those that fit.
"""

from collections.abc import Sequence

from indb_tensile.scheduler.graph import StepGraph, TensorId
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.peak import accesses, floor
from indb_tensile.scheduler.plan import Plan
from indb_tensile.scheduler.search.advance import advanced
from indb_tensile.scheduler.search.descent import (
    LARGE,
    PRUNED,
    SLOWEST,
    Descent,
    Effort,
    Heed,
    manners_of,
    ration_of,
    unhurried,
)
from indb_tensile.scheduler.search.orders import Orders
from indb_tensile.scheduler.search.rung import Rung, envelope, fastest, rung_of

RUNGS = (0.95, 0.85, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.0)  # of the way from the floor to the peak by liveness
_MEDIUM = 1_000  # operators from which on a curve is climbed down from rung to rung


class Ladder:
    """One graph of one job, on its share of both lanes."""

    def __init__(
        self,
        graph: StepGraph,
        latency_ns: Sequence[int],
        link: Link,
        *,
        share: float = 1.0,
        rewrites: bool = True,
        effort: Effort = Effort.USUAL,
        heed: Heed = unhurried,
    ) -> None:
        self._heed = heed
        self.graph, self._effort, self._rewrites = graph, effort, rewrites
        self._latency_ns, self._link = tuple(latency_ns), link
        self._large = len(graph.operators) >= LARGE
        self._orders = Orders(
            graph,
            latency_ns,
            link,
            share=share,
            rewrites=rewrites,
            large=self._large,
            early=effort > Effort.QUICK,
        )
        self._idle = _idle(graph)
        self._away: frozenset[TensorId] = frozenset()
        self._least_bytes = floor(self._orders.first[-1].base)
        self._known: dict[frozenset[TensorId], list[Rung]] = {}
        self._limits: set[tuple[frozenset[TensorId], int]] = set()  # what was searched for
        self.top = rung_of(0, self._orders.first[0])

    def best(self, limit_bytes: int) -> Rung:
        """The fastest plan found within the limit; the least peak found where none is within it."""
        limit_bytes = max(limit_bytes, self._least_bytes)
        self._leave_idle(limit_bytes)
        if self._away not in self._known:
            self._known[self._away] = self._unsearched()
        found = self._known[self._away]
        nothing = (rung for rung in found if rung.lane_ns == 0 and rung.iteration_ns <= self.top.iteration_ns)
        enough = any(rung.peak_bytes <= limit_bytes for rung in nothing)
        if not enough and (self._away, limit_bytes) not in self._limits:
            self._limits.add((self._away, limit_bytes))
            descent = Descent(
                self._orders, self.top, limit_bytes, drops=self._rewrites, effort=self._effort, heed=self._heed
            )
            found.append(descent.best())
        within = [r for r in found if r.peak_bytes <= limit_bytes]
        return fastest(within) if within else min(found, key=lambda r: (r.peak_bytes, r.iteration_ns))

    def curve(self) -> tuple[Rung, ...]:
        """The fastest plans for a fixed ladder of limits, from the largest peak to the least.

        The first is the one that does nothing; of the others each is slower than the one before it.
        """
        least_bytes = self._least_bytes
        self._leave_idle(least_bytes)
        order = len(self._orders.first) - 1
        search = self._orders.search(order)
        ration, manners = ration_of(search.operators), manners_of(search.operators, drops=self._rewrites)
        rungs = []
        search.clear()
        for fraction in RUNGS:
            limit_bytes = least_bytes + round(fraction * (self.top.peak_bytes - least_bytes))
            if search.operators < _MEDIUM:  # from nothing each time: better, and quick enough
                search.clear()
            if not any(search.lower(limit_bytes, manner, most=ration) for manner in manners[:2]):
                break
            if search.operators < _MEDIUM:
                search.prune(limit_bytes, PRUNED)
            rungs.append(rung_of(order, search))
            if search.operators >= _MEDIUM and rungs[-1].iteration_ns > SLOWEST * self.top.iteration_ns:
                break  # most layouts would go into rungs that no division of a budget comes down to
        search.exhaust()
        rungs.append(rung_of(order, search))
        self._known.setdefault(self._away, self._unsearched()).extend(rungs)
        return (self.top, *(rung for rung in envelope(rungs) if rung.peak_bytes < self.top.peak_bytes))

    def within(self, limit_bytes: int, policy: str) -> Plan:
        """The best plan for the limit, its copies moved to where memory is unused while it waits for them."""
        rung = self.best(limit_bytes)
        plan = self.plan(rung, policy)
        if self._large or rung.iteration_ns <= self.top.iteration_ns:
            return plan
        return advanced(self.graph, plan, self._latency_ns, self._link)

    def plan(self, rung: Rung, policy: str) -> Plan:
        """The rung as a plan. It has to be the last one that `best` gave."""
        return self._orders.chosen(rung).plan(policy)

    def _unsearched(self) -> list[Rung]:
        """Each order with nothing chosen."""
        found = []
        for number, search in enumerate(self._orders.first):
            search.clear()
            found.append(rung_of(number, search))
        return found

    def _leave_idle(self, limit_bytes: int) -> None:
        """Leave tensors that the graph never accesses on the host, the largest first, while the peak is too high."""
        away: set[TensorId] = set()
        peak_bytes = self.top.peak_bytes
        for tensor in self._idle:
            if peak_bytes > limit_bytes:
                away.add(tensor)
                peak_bytes -= self.graph.tensors[tensor].size_bytes
        self._away = frozenset(away)
        self._orders.leave(self._away)


def _idle(graph: StepGraph) -> tuple[TensorId, ...]:
    """Persistent tensors that the graph never accesses, largest first."""
    found = [t for t, ops in zip(graph.tensors, accesses(graph), strict=True) if t.persistent and not ops]
    return tuple(t.id for t in sorted(found, key=lambda t: (-t.size_bytes, t.id)))
