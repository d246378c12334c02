"""Plans of one graph for any limit, and the curve they span.

A greedy plan has anomalies: a larger limit, or a faster link, can come out slower. So plans are made for a fixed
ladder of limits besides the limit that is asked for, and what counts is the fastest of those that fit.
"""

from collections.abc import Sequence

from indb_tensile.scheduler.graph import StepGraph, TensorId
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.plan import Plan
from indb_tensile.scheduler.search.advance import advanced
from indb_tensile.scheduler.search.descent import Descent, Effort, Heed, lowerable, manners_of, ration_of, unhurried
from indb_tensile.scheduler.search.first_plan import FirstPlan
from indb_tensile.scheduler.search.orders import MOST, Orders
from indb_tensile.scheduler.search.rung import Rung, envelope, fastest, rung_of

RUNGS = (0.95, 0.85, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.0)  # of the way from the floor to the peak by liveness
_ORDERED = 30_000  # operators in orders of one graph: one order of ten thousand takes a fifth of a second in Python
_CURVE_PRICES = (0.02, 0.1, 0.4)  # of the lanes, for each rung of a curve
_CURVE_PART = 8  # of a ration: what coming down to one rung may take


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
        work: float = 1,
        heed: Heed = unhurried,
    ) -> None:
        self._heed = heed
        self.graph, self._effort, self._rewrites, self._work = graph, effort, rewrites, work
        self._link = link
        self._orders = Orders(
            graph,
            latency_ns,
            link,
            share=share,
            rewrites=rewrites,
            early=effort > Effort.QUICK,
            most=max(1, min(MOST, _ORDERED // max(1, len(graph.operators)))),
        )
        self._idle = _idle(graph)
        self._away: frozenset[TensorId] = frozenset()
        self._least_bytes = self._orders.first[-1].floor_bytes
        self._known: dict[frozenset[TensorId], list[Rung]] = {}
        self._limits: set[tuple[frozenset[TensorId], int]] = set()  # what was searched for
        self.top = rung_of(0, self._orders.first[0])

    def best(self, limit_bytes: int) -> Rung:
        """The fastest plan found within the limit; the least peak found where none is within it."""
        limit_bytes = max(limit_bytes, self._least_bytes)
        self._leave_idle(limit_bytes)
        found = self._plans()
        nothing = (rung for rung in found if rung.lane_ns == 0 and rung.iteration_ns <= self.top.iteration_ns)
        enough = any(rung.peak_bytes <= limit_bytes for rung in nothing)
        if not enough and (self._away, limit_bytes) not in self._limits:
            self._limits.add((self._away, limit_bytes))
            found += self._searched(limit_bytes)
        within = [r for r in found if r.peak_bytes <= limit_bytes]
        return fastest(within) if within else min(found, key=lambda r: (r.peak_bytes, r.iteration_ns))

    @property
    def layouts(self) -> int:
        """How many sets of choices were laid out so far: what planning costs, whatever the machine."""
        return self._orders.layouts

    def curve(self) -> tuple[Rung, ...]:
        """The fastest plans for a fixed ladder of limits, from the largest peak to the least.

        The first is the one that does nothing; of the others each is slower than the one before it.
        """
        least_bytes = self._least_bytes
        self._leave_idle(least_bytes)
        order = len(self._orders.first) - 1
        search = self._orders.search(order)
        rungs = []
        for fraction in RUNGS:
            limit_bytes = least_bytes + round(fraction * (self.top.peak_bytes - least_bytes))
            rungs += self._rungs(order, limit_bytes)
        search.exhaust()
        rungs.append(rung_of(order, search))
        self._plans().extend(rungs)
        return (self.top, *(rung for rung in envelope(rungs) if rung.peak_bytes < self.top.peak_bytes))

    def _searched(self, limit_bytes: int) -> list[Rung]:
        """What the effort finds for this limit: with all of it, what the usual one does and more."""
        first = FirstPlan(self._orders, self.top, limit_bytes, drops=self._rewrites, work=self._work, heed=self._heed)
        if self._effort is Effort.QUICK:
            return [first.quick()]
        found = [first.best()]
        nothing = found[0].iteration_ns <= self.top.iteration_ns and found[0].peak_bytes <= limit_bytes
        if self._effort is Effort.USUAL or nothing:
            return found
        found.append(first.improved(found[0]))
        if lowerable(len(found[0].choices), ration_of(len(self.graph.operators))):
            found.append(Descent(self._orders, self.top, limit_bytes, drops=self._rewrites, heed=self._heed).best())
        return found

    def _rungs(self, order: int, limit_bytes: int) -> list[Rung]:
        """A few plans for a rung of the curve: swept at several prices, and lowered where that takes few layouts."""
        search = self._orders.search(order)
        found = []
        for lane_price in _CURVE_PRICES:
            if search.sweep(limit_bytes, drops=self._rewrites, lane_price=lane_price):
                found.append(rung_of(order, search))
        most = ration_of(search.operators) // _CURVE_PART
        if found and not lowerable(len(found[0].choices), most):
            return found
        search.clear()
        if any(search.lower(limit_bytes, manner, most=most) for manner in manners_of(drops=self._rewrites)[:2]):
            search.prune(limit_bytes, most)
            found.append(rung_of(order, search))
        return found

    def within(self, limit_bytes: int, policy: str) -> Plan:
        """The best plan for the limit, its copies moved to where memory is unused while it waits for them."""
        rung = self.best(limit_bytes)
        if rung.iteration_ns <= self.top.iteration_ns:
            return self.plan(rung, policy)
        return advanced(self._orders.chosen(rung), policy, self._link)

    def plan(self, rung: Rung, policy: str) -> Plan:
        """The rung as a plan. It has to be the last one that `best` gave."""
        return self._orders.chosen(rung).plan(policy)

    def _plans(self) -> list[Rung]:
        """All plans known so far; at first, in each order, nothing chosen and everything swapped.

        A plan found for a limit is therefore never slower than swapping everything, where that meets the limit.
        """
        if self._away not in self._known:
            found = self._known[self._away] = []
            for number, search in enumerate(self._orders.first):
                search.clear()
                found.append(rung_of(number, search))
                search.exhaust()
                found.append(rung_of(number, search))
        return self._known[self._away]

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
    accessed: set[TensorId] = set()
    for operator in graph.operators:
        accessed.update(operator.reads, operator.writes)
    found = [t for t in graph.tensors if t.persistent and t.id not in accessed]
    return tuple(t.id for t in sorted(found, key=lambda t: (-t.size_bytes, t.id)))
