"""The orders in which one graph's operators may run, without recomputations, each with its search.

The first orders are searched from an empty set of choices. Each further order belongs to a plan: in it, running
statistics are updated as early as that plan allows. The search for tensors to recompute needs an order in which all
such updates wait for the iteration's end (reorder.py). Once the recomputed tensors are known, most updates need not
wait. The order in which only the others wait leaves the lanes more time before the peak.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from indb_tensile.scheduler.graph import OpIndex, StepGraph, TensorId
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.plan import Execution
from indb_tensile.scheduler.plan_cache import PlanCache
from indb_tensile.scheduler.rewrite import captured_order, own_state
from indb_tensile.scheduler.search.candidate import CandidatePlan
from indb_tensile.scheduler.search.reorder import blocking_updates, delayed, rearranged, with_parts
from indb_tensile.scheduler.search.step_search import DROPPED, StepSearch

# The most orders of a small graph. Plans seldom need more than three of their own, so this limit is hardly ever
# reached. A lower limit may miss faster orders; each further order costs a search and an outline.
MOST = 12
_UNCOVERED = -1  # a swap's bounds if it has no operators that it must cover
Choices = list[tuple[int, int, int]]


@dataclass(frozen=True, slots=True)
class _SearchedOrder:
    """One execution of each operator, or nothing for the captured order."""

    executions: tuple[Execution, ...]
    hold: bool = False  # whether recomputations hold what they read


class ExecutionOrders:
    """The orders of one graph by number: at most `most` orders, and as many again in which recomputations hold
    tensors.

    With `early` and `rewrites`, further orders are made that belong to single plans.
    """

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
        cache: PlanCache | None = None,
    ) -> None:
        self._cache = PlanCache() if cache is None else cache
        self._graph, self._latency_ns, self._link, self._share = graph, tuple(latency_ns), link, share
        self._most = most
        self._settles = rewrites and early  # whether orders may be made that belong to single plans
        late = _late_orders(graph, most, self._cache) if rewrites else [()]
        has_room = self._settles and len(late) < most
        first = [self._run(rearranged(graph, frozenset(), cache=self._cache))] if has_room else []
        self._orders = [_SearchedOrder(executions) for executions in dict.fromkeys((*first, *late))]
        self._first = range(len(self._orders))
        self.loose = self._first[-len(late) :]  # the orders in which most tensors may be recomputed
        self._away: frozenset[TensorId] = frozenset()
        self._made: dict[int, StepSearch] = {}
        self._holds = True  # False once an order was made in which recomputations hold no tensor

    @property
    def first(self) -> tuple[StepSearch, ...]:
        """The searches of those orders that start from an empty set of choices. The last one has the least floor."""
        return tuple(map(self.search, self._first))

    def search(self, order: int) -> StepSearch:
        """Return the search in this order, with its most recent choices."""
        if order not in self._made:
            self._made[order] = StepSearch(
                self._graph,
                self._latency_ns,
                self._link,
                executions=self._orders[order].executions,
                share=self._share,
                away=self._away,
                hold=self._orders[order].hold,
                cache=self._cache,
            )
        return self._made[order]

    @property
    def layouts(self) -> int:
        """The number of sets of choices that were laid out so far, in all orders."""
        return sum(search.layouts for search in self._made.values())

    def chosen(self, candidate: CandidatePlan) -> StepSearch:
        """Return the search in this candidate's order, with the candidate's choices."""
        search = self.search(candidate.order)
        search.choose(list(candidate.choices), candidate.room_bytes)
        return search

    def leave(self, away: frozenset[TensorId]) -> None:
        """Keep these tensors on the host from now on, and no others."""
        if away != self._away:
            self._away = away
            self._made.clear()

    def settled(self, candidate: CandidatePlan) -> int:
        """Return the number of this plan's order: only the updates that would prevent its recomputations wait for the
        iteration's end.
        """
        if not self._settles or self._full(hold=self._orders[candidate.order].hold):
            return candidate.order
        late = blocking_updates(self._graph, self.chosen(candidate).executions, self._cache)
        whole = rearranged(self._graph, late, cache=self._cache)
        order = self._run(whole)
        present = self._orders[candidate.order]
        if any(execution.parts > 1 for execution in present.executions):
            order = _unless_captured(self._graph, with_parts(self._graph, whole, self._cache), self._cache)
        return self._number(_SearchedOrder(order, present.hold))

    def holding(self, order: int) -> int | None:
        """Return the number of the same order in which recomputations hold what they read.

        Return None if they would hold nothing, or if there are too many orders.
        """
        held = replace(self._orders[order], hold=True)
        if held in self._orders:
            return self._orders.index(held) if self._holds else None
        if not self._settles or self._full(hold=True) or not self._holds:
            return None
        number = self._number(held)
        self._holds = self.search(number).holds
        return number if self._holds else None

    def delayed(self, share: float, least_bytes: int) -> int | None:
        """Return the number of the order in which the largest update runs later by this share of the backward pass
        that follows its gradient. Return None if its own state is smaller than `least_bytes`, if it cannot run later,
        or if there are too many orders.
        """
        if not self._settles or self._full(hold=False):
            return None
        state_bytes = {
            update: sum(self._graph.tensors[t].size_bytes for t in state)
            for update, state in own_state(self._graph, self._cache).items()
        }
        update = max(state_bytes, key=lambda k: (state_bytes[k], -k), default=None)
        if update is None or state_bytes[update] < least_bytes:
            return None
        whole = rearranged(self._graph, cache=self._cache)
        order = delayed(self._graph, whole, update, share, self._latency_ns)
        if order == whole:
            return None
        parts = _unless_captured(self._graph, with_parts(self._graph, order, self._cache), self._cache)
        return self._number(_SearchedOrder(parts))

    def _full(self, *, hold: bool) -> bool:
        return sum(order.hold == hold for order in self._orders) >= self._most

    def _number(self, order: "_SearchedOrder") -> int:
        if order not in self._orders:
            self._orders.append(order)
        return self._orders.index(order)

    def _run(self, order: Sequence[OpIndex]) -> tuple[Execution, ...]:
        """Return one execution of each operator in this order, or nothing for the captured order."""
        return _unless_captured(self._graph, _once(self._graph, order, self._cache), self._cache)


def translate_choices(search: StepSearch, other: StepSearch) -> Choices:
    """Translate the choices of one order into choices of another order. No swap has to cover any operator.

    Both orders have the same gaps, except for gaps of tensors that moved operators access. A choice is identified by
    its tensor and by the two operators between which its gap lies.
    """
    number = {key: k for k, key in enumerate(other.gap_keys)}
    choices = []
    for gap, lo, _ in search.choices:
        other_gap = number.get(search.gap_keys[gap])
        if other_gap is not None:
            cover = DROPPED if lo == DROPPED else _UNCOVERED
            choices.append((other_gap, cover, cover))
    return sorted(choices)


def _late_orders(graph: StepGraph, most: int, cache: PlanCache) -> list[tuple[Execution, ...]]:
    """Return the orders in which all deferrable updates wait: with large updates in parts, and also whole if `most`
    allows.
    """
    order = rearranged(graph, cache=cache)
    parts = with_parts(graph, order, cache)
    both = most >= 3  # updates early, late and whole, late and in parts
    orders = dict.fromkeys((_once(graph, order, cache), parts)) if both else [parts]
    return [_unless_captured(graph, order, cache) for order in orders]


def _once(graph: StepGraph, order: Sequence[OpIndex], cache: PlanCache) -> tuple[Execution, ...]:
    runs = captured_order(graph, cache)  # the same objects in every order, so that comparing orders takes no time
    return tuple(runs[k] for k in order)


def _unless_captured(graph: StepGraph, order: tuple[Execution, ...], cache: PlanCache) -> tuple[Execution, ...]:
    return () if order == captured_order(graph, cache) else order
