"""The orders in which one graph's operators may run before anything is made again, each with its search.

The first of them are searched from nothing. The others are plans' own: running statistics are then updated as early
as the plan lets them. The search for what to make again needs an order in which all of them wait for the iteration's
end (reorder.py). Once it is known what is made again, most are in nobody's way, and the order in which only the
others wait gives the lanes more time before the peak.
"""

from collections.abc import Sequence

from indb_tensile.scheduler.graph import OpIndex, StepGraph, TensorId
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.plan import Execution
from indb_tensile.scheduler.rewrite import captured_order
from indb_tensile.scheduler.search.reorder import in_the_way, rearranged, with_parts
from indb_tensile.scheduler.search.rung import Rung
from indb_tensile.scheduler.search.step_search import DROPPED, StepSearch

MOST = 12  # orders of a small graph; a plan's own are seldom more than three
_UNCOVERED = -1
Choices = list[tuple[int, int, int]]


class Orders:
    """The orders of one graph by number, at most so many. Without `early` none is a plan's own."""

    def __init__(
        self,
        graph: StepGraph,
        latency_ns: Sequence[int],
        link: Link,
        *,
        share: float,
        rewrites: bool,
        early: bool,
        most: int = MOST,
    ) -> None:
        self._graph, self._latency_ns, self._link, self._share = graph, tuple(latency_ns), link, share
        self._most, self._settles = most, rewrites and early
        late = _late_orders(graph, most) if rewrites else [()]
        early = self._settles and len(late) < most
        first = [_unless_captured(graph, _once(graph, rearranged(graph, frozenset())))] if early else []
        self._orders = list(dict.fromkeys((*first, *late)))
        self._first = range(len(self._orders))
        self.loose = self._first[-len(late) :]  # in which most may be made again
        self._away: frozenset[TensorId] = frozenset()
        self._made: dict[int, StepSearch] = {}

    @property
    def first(self) -> tuple[StepSearch, ...]:
        """The searches of those orders that are searched from nothing; the last one has the least floor."""
        return tuple(map(self.search, self._first))

    def search(self, order: int) -> StepSearch:
        """The search in this order, with whatever was chosen last."""
        if order not in self._made:
            self._made[order] = StepSearch(
                self._graph,
                self._latency_ns,
                self._link,
                executions=self._orders[order],
                share=self._share,
                away=self._away,
            )
        return self._made[order]

    @property
    def layouts(self) -> int:
        """How many sets of choices were laid out so far, in all orders."""
        return sum(search.layouts for search in self._made.values())

    def chosen(self, rung: Rung) -> StepSearch:
        """The search in this rung's order, with what the rung chose."""
        search = self.search(rung.order)
        search.choose(list(rung.choices), rung.room_bytes)
        return search

    def leave(self, away: frozenset[TensorId]) -> None:
        """Let these stay on the host from now on, and no others."""
        if away != self._away:
            self._away = away
            self._made.clear()

    def settled(self, rung: Rung) -> int:
        """The order in which nothing waits for the iteration's end that does not have to for this plan."""
        if not self._settles or len(self._orders) >= self._most:
            return rung.order
        late = in_the_way(self._graph, self.chosen(rung).executions)
        order = _once(self._graph, rearranged(self._graph, late))
        if any(execution.parts > 1 for execution in self._orders[rung.order]):
            order = with_parts(self._graph, rearranged(self._graph, late))
        order = _unless_captured(self._graph, order)
        if order not in self._orders:
            self._orders.append(order)
        return self._orders.index(order)


def carried_over(search: StepSearch, other: StepSearch) -> Choices:
    """What is chosen in one order as choices in the other; no swap has to cover anything.

    Both have the same gaps but for those of what operators access that moved. A choice is carried over by the tensor
    and the two operators that its gap lies between.
    """
    number = {between: k for k, between in enumerate(other.between)}
    between = search.between
    found = []
    for gap, lo, _ in search.choices:
        there = number.get(between[gap])
        if there is not None:
            cover = DROPPED if lo == DROPPED else _UNCOVERED
            found.append((there, cover, cover))
    return sorted(found)


def _late_orders(graph: StepGraph, most: int) -> list[tuple[Execution, ...]]:
    """Those in which all updates wait that may: with the large ones in parts, and whole where there may be more."""
    order = rearranged(graph)
    parts = with_parts(graph, order)
    found = [parts] if most < len(("early", "whole", "in parts")) else dict.fromkeys((_once(graph, order), parts))
    return [_unless_captured(graph, one) for one in found]


def _once(graph: StepGraph, order: Sequence[OpIndex]) -> tuple[Execution, ...]:
    runs = captured_order(graph)  # the same objects in every order, so that comparing orders takes no time
    return tuple(runs[k] for k in order)


def _unless_captured(graph: StepGraph, order: tuple[Execution, ...]) -> tuple[Execution, ...]:
    return () if order == captured_order(graph) else order
