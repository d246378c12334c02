"""Plans of one graph for any limit: several greedy searches, the best of them improved, and the curve they span.

A greedy plan has anomalies: a larger limit, or a faster link, can come out slower. So plans are made for a fixed
ladder of limits besides the limit that is asked for, and what counts is the fastest of those that fit. Work is
rationed by layouts, in proportion to the size of the graph, never by the clock: equal inputs give equal plans.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from indb_tensile.scheduler.graph import StepGraph, TensorId
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.peak import accesses, floor
from indb_tensile.scheduler.plan import Execution, Plan
from indb_tensile.scheduler.rewrite import captured_order
from indb_tensile.scheduler.search.advance import advanced
from indb_tensile.scheduler.search.reorder import rearranged, with_parts
from indb_tensile.scheduler.search.step_search import Manner, StepSearch

RUNGS = (0.85, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.0)  # of the way from the floor to the peak by liveness
_WORK = 1_000_000  # operators laid out for one limit: some tenths of a second
_WORK_PER_OPERATOR = 8  # layouts for each operator of a small graph, which has few choices
_MEDIUM = 1_000  # operators from which on a curve is climbed down from rung to rung
_LARGE = 4_000  # operators from which on one search has to do
_SLOWEST = 2  # times as long as doing nothing, at which a large graph's curve ends but for the least memory
_TRIES = 2  # rations after which no further manner is tried
_DEEP = 3  # rations for an improvement
_PATIENT = 3  # rations for a limit that no manner comes down to
_NEAR = 0.1  # of the way up from such a limit, from where pressing the rest down costs least
_PRUNED = 200
_CLOSE = 1.02  # of the time that doing nothing takes
_CAREFUL = tuple(
    Manner(drops=False, lane_price=0.02, tried=1, together=together, careful=True) for together in (64, 8)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """One plan: how high its peak is, how long an iteration takes alone on its share of the lanes, and copies."""

    order: int  # which of the ladder's orders of execution
    peak_bytes: int
    iteration_ns: int
    lane_ns: int
    choices: tuple[tuple[int, int, int], ...]
    room_bytes: int | None = None  # the memory that they are laid into, where they are


class Standing(Protocol):
    """What an envelope is drawn of."""

    @property
    def peak_bytes(self) -> int:
        """How much memory it needs."""
        ...

    @property
    def iteration_ns(self) -> int:
        """How long it takes."""
        ...


_Ranked = TypeVar("_Ranked", bound=Standing)


class Ladder:
    """One graph of one job, on its share of both lanes. `thorough` goes on searching after a first plan."""

    def __init__(
        self,
        graph: StepGraph,
        latency_ns: Sequence[int],
        link: Link,
        *,
        share: float = 1.0,
        rewrites: bool = True,
        thorough: bool = True,
    ) -> None:
        self.graph, self._thorough = graph, thorough
        self._latency_ns, self._link, self._share = tuple(latency_ns), link, share
        self._rewrites = rewrites
        self._orders = _orders(graph, rewrites=rewrites)
        self._idle = _idle(graph)
        self._searches = self._searching(frozenset())
        self._least_bytes = floor(self._searches[-1].base)
        self._away: frozenset[TensorId] = frozenset()
        self._known: dict[frozenset[TensorId], list[Rung]] = {}
        self._limits: set[tuple[frozenset[TensorId], int]] = set()  # what was searched for
        self.top = _rung(0, self._searches[0])

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
            found.append(self._searched(limit_bytes))
        within = [r for r in found if r.peak_bytes <= limit_bytes]
        if within:
            return min(within, key=_speed)
        return min(found, key=lambda r: (r.peak_bytes, r.iteration_ns))

    def curve(self) -> tuple[Rung, ...]:
        """The fastest plans for a fixed ladder of limits, from the largest peak to the least.

        The first is the one that does nothing; of the others each is slower than the one before it.
        """
        least_bytes = self._least_bytes
        self._leave_idle(least_bytes)
        search, order = self._searches[-1], len(self._searches) - 1
        ration, manners = _ration(search.operators), _manners(search.operators, drops=self._rewrites)
        rungs = []
        search.clear()
        for fraction in RUNGS:
            limit_bytes = least_bytes + round(fraction * (self.top.peak_bytes - least_bytes))
            if search.operators < _MEDIUM:  # from nothing each time: better, and quick enough
                search.clear()
            if not any(search.lower(limit_bytes, manner, most=ration) for manner in manners[:2]):
                break
            if search.operators < _MEDIUM:
                search.prune(limit_bytes, _PRUNED)
            rungs.append(_rung(order, search))
            if search.operators >= _MEDIUM and rungs[-1].iteration_ns > _SLOWEST * self.top.iteration_ns:
                break  # most layouts would go into rungs that no division of a budget comes down to
        search.exhaust()
        rungs.append(_rung(order, search))
        self._known.setdefault(self._away, self._unsearched()).extend(rungs)
        return (self.top, *(rung for rung in envelope(rungs) if rung.peak_bytes < self.top.peak_bytes))

    def _unsearched(self) -> list[Rung]:
        """Each order with nothing chosen."""
        found = []
        for number, search in enumerate(self._searches):
            search.clear()
            found.append(_rung(number, search))
        return found

    def within(self, limit_bytes: int, policy: str) -> Plan:
        """The best plan for the limit, its copies moved to where memory is unused while it waits for them."""
        rung = self.best(limit_bytes)
        plan = self.plan(rung, policy)
        if len(self.graph.operators) >= _LARGE or rung.iteration_ns <= self.top.iteration_ns:
            return plan
        return advanced(self.graph, plan, self._latency_ns, self._link)

    def plan(self, rung: Rung, policy: str) -> Plan:
        """The rung as a plan. It has to be the last one that `best` gave."""
        search = self._searches[rung.order]
        search.choose(list(rung.choices), rung.room_bytes)
        return search.plan(policy)

    def _searched(self, limit_bytes: int) -> Rung:
        """The best of what the manners find in every order, improved by what is left of the work."""
        ration = _ration(self._searches[0].operators)
        manners = _manners(self._searches[0].operators, drops=self._rewrites)
        rungs: list[Rung] = []
        spent = 0
        for number, manner in enumerate(manners):
            for order, search in enumerate(self._searches):
                if rungs and (
                    self._costs_nothing(rungs) or (number and (spent > _TRIES * ration or not self._thorough))
                ):
                    break
                start = search.layouts
                rungs += _lowered(order, search, limit_bytes, manner, ration)
                spent += search.layouts - start
        if not rungs:
            rungs = self._once_more(limit_bytes, _PATIENT * ration)
        if not rungs:
            return self._pressed(limit_bytes, ration)
        best = min(rungs, key=lambda r: (r.iteration_ns, r.peak_bytes))
        if not self._thorough or self._costs_nothing(rungs):
            return best
        large = self._searches[0].operators >= _LARGE
        deep, refining = (ration, manners[:1]) if large else (_DEEP * ration, (manners[0], self._patient()))
        improved = [self._improved(best, limit_bytes, (manner,), deep) for manner in refining]
        if improved[0].iteration_ns < _CLOSE * self.top.iteration_ns:
            improved += self._copying(improved[0], limit_bytes, deep)
        improved += self._exchanged(min(improved, key=_speed), limit_bytes, ration)
        return min(improved, key=_speed)

    def _improved(self, rung: Rung, limit_bytes: int, manners: Sequence[Manner], ration: int) -> Rung:
        search = self._searches[rung.order]
        search.choose(list(rung.choices))
        for number, manner in enumerate(manners):
            search.improve(limit_bytes, manner, most=ration, seed=search.operators + number)
        return _rung(rung.order, search)

    def _exchanged(self, rung: Rung, limit_bytes: int, most: int) -> list[Rung]:
        """Laid into the limit, and something else chosen here and there."""
        search = self._searches[rung.order]
        search.choose(list(rung.choices))
        if not search.fill(limit_bytes):
            return []
        search.exchange(drops=self._rewrites, most=most)
        return [_rung(rung.order, search)]

    def _copying(self, best: Rung, limit_bytes: int, ration: int) -> list[Rung]:
        """Where next to nothing is lost, what is left may be what was made again: other plans that do less of it."""
        search = self._searches[best.order]
        found = [self._improved(best, limit_bytes, (_swaps(0.1),), ration)]
        mixed = Manner(drops=self._rewrites, lane_price=0.02, tried=4, together=16)
        for manner in _CAREFUL:
            if self._costs_nothing(found):
                break
            for rung in _lowered(best.order, search, limit_bytes, manner, ration):
                found.append(self._improved(rung, limit_bytes, (mixed, _swaps(0.1)), ration))
        return found

    def _once_more(self, limit_bytes: int, most: int) -> list[Rung]:
        found: list[Rung] = []
        for order, search in enumerate(self._searches):
            found += _lowered(order, search, limit_bytes, self._patient(), most)
        return found

    def _patient(self) -> Manner:
        return Manner(drops=self._rewrites, lane_price=0.1, tried=2)

    def _pressed(self, limit_bytes: int, ration: int) -> Rung:
        """Little memory: making things again needs some itself, so first everything that must is swapped.

        Then making things again instead is an exchange. The least memory is swapping everything.
        """
        near_bytes = limit_bytes + round(_NEAR * (self.top.peak_bytes - limit_bytes))
        found: list[Rung] = []
        for order, search in enumerate(self._searches):
            found += _squeezed(order, search, limit_bytes, _swaps(1.0), limit_bytes, ration)
            found += _squeezed(order, search, near_bytes, self._patient(), limit_bytes, ration)
        if not found:
            search = self._searches[-1]
            search.exhaust()
            search.prune(limit_bytes, ration)
            return _rung(len(self._searches) - 1, search)
        if self._thorough:
            found += [other for rung in tuple(found) for other in self._exchanged(rung, limit_bytes, ration)]
            found += self._exchanged(min(found, key=_speed), limit_bytes, ration)
        return min(found, key=_speed)

    def _costs_nothing(self, rungs: Sequence[Rung]) -> bool:
        return any(rung.iteration_ns <= self.top.iteration_ns for rung in rungs)

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
            self._searches = self._searching(self._away)

    def _searching(self, away: frozenset[TensorId]) -> tuple[StepSearch, ...]:
        return tuple(
            StepSearch(self.graph, self._latency_ns, self._link, executions=order, share=self._share, away=away)
            for order in self._orders
        )


def envelope(found: Iterable[_Ranked]) -> tuple[_Ranked, ...]:
    """Those that no other one is as good as in both, from the highest and fastest on; of equal ones the first."""
    kept: list[_Ranked] = []
    for one in sorted(found, key=lambda f: (f.peak_bytes, f.iteration_ns)):
        if not kept or one.iteration_ns < kept[-1].iteration_ns:
            kept.append(one)
    return tuple(reversed(kept))


def _lowered(order: int, search: StepSearch, limit_bytes: int, manner: Manner, most: int) -> list[Rung]:
    search.clear()
    if not search.lower(limit_bytes, manner, most=most):
        return []
    search.prune(limit_bytes, _PRUNED)
    return [_rung(order, search)]


def _swaps(lane_price: float) -> Manner:
    return Manner(drops=False, lane_price=lane_price, tried=1, together=16)


def _squeezed(
    order: int, search: StepSearch, near_bytes: int, manner: Manner, limit_bytes: int, most: int
) -> list[Rung]:
    """Lowered as far as that goes, and pressed below the limit from there."""
    search.clear()
    search.lower(near_bytes, manner, most=most)
    if not search.press(limit_bytes, most=most):
        return []
    search.prune(limit_bytes, _PRUNED)
    return [_rung(order, search)]


def _speed(rung: Rung) -> tuple[int, int, int]:
    return rung.iteration_ns, rung.lane_ns, rung.peak_bytes


def _rung(order: int, search: StepSearch) -> Rung:
    return Rung(
        order=order,
        peak_bytes=search.peak_bytes,
        iteration_ns=search.iteration_ns,
        lane_ns=search.lane_ns,
        choices=tuple(search.choices),
        room_bytes=search.room_bytes,
    )


def _orders(graph: StepGraph, *, rewrites: bool) -> tuple[tuple[Execution, ...], ...]:
    """In which orders the operators may run before anything is made again; the last one has the least floor."""
    if not rewrites:
        return ((),)
    order = rearranged(graph)
    whole = tuple(Execution(operator=k) for k in order)
    parts = with_parts(graph, order)
    if parts == whole:
        return (() if whole == captured_order(graph) else whole,)
    return (parts,) if len(graph.operators) >= _LARGE else (whole, parts)


def _ration(operators: int) -> int:
    """How many layouts a search for one limit may take."""
    return max(1, min(_WORK // operators, 100 + _WORK_PER_OPERATOR * operators))


def _manners(operators: int, *, drops: bool) -> tuple[Manner, ...]:
    """Ways to weigh lanes against waits, and to take many tensors at once or the best of a few."""
    heedless = Manner(drops=drops, lane_price=0.02, tried=1, together=64, surprise=1.0)
    if operators >= _LARGE:
        return (Manner(drops=drops, lane_price=0.02, tried=1, together=64, careful=True), heedless)
    return (
        Manner(drops=drops, lane_price=0.02, tried=4, together=16),
        heedless,
        Manner(drops=drops, lane_price=0.02, tried=1, together=64, careful=True),
        Manner(drops=drops, lane_price=0.1, tried=1, together=16),
        Manner(drops=drops, lane_price=0.02, tried=2),
        Manner(drops=drops, lane_price=0.0, tried=6),
    )


def _idle(graph: StepGraph) -> tuple[TensorId, ...]:
    """Persistent tensors that the graph never accesses, largest first."""
    found = [t for t, ops in zip(graph.tensors, accesses(graph), strict=True) if t.persistent and not ops]
    return tuple(t.id for t in sorted(found, key=lambda t: (-t.size_bytes, t.id)))
