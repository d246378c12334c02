"""Search one step graph: keep, swap or recompute the tensor of each gap, evaluated by exact load and time.

A *gap* is the interval between two successive accesses of a tensor. The *load* is the bytes on the device at each
operator. A *lane* is one copy direction. To *lay out* choices is to compute the order of execution, the residency of
each tensor, and the time of an iteration that follow from them.

The search itself is native (native/planner), because a plan for ten thousand operators has to be ready within a
second. This module is its interface: step graphs and links go in, plans come out. The caller (first_plan.py,
local_search.py) decides the limits, the parameters, and which result is taken.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from indb_tensile._planner import GreedyOptions, Search
from indb_tensile.scheduler.exchange_times import blocking_ns
from indb_tensile.scheduler.graph import OpIndex, StepGraph, TensorId
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.plan import Execution, Plan, Swap
from indb_tensile.scheduler.plan_cache import PlanCache
from indb_tensile.scheduler.search.search_arrays import Instances, Outline, lanes, latencies, outline

__all__ = ["DROPPED", "GreedyOptions", "StepSearch"]

# Value in a choice row that marks recomputation; otherwise the value is the first operator during which the swapped
# tensor must be away.
DROPPED = -2


class StepSearch:
    """The choices for one graph that is executed in a given order. At first nothing is chosen.

    `executions` is the order before anything is recomputed, empty for the captured order. `share` is the part of each
    lane on which the job may count. `away` are persistent tensors that the graph never accesses and that stay on the
    host. With `hold` recomputations read some tensors after their last use (`hold_sources` in
    native/planner/step.cpp).
    """

    def __init__(
        self,
        graph: StepGraph,
        latency_ns: Sequence[int],
        link: Link,
        *,
        executions: tuple[Execution, ...] = (),
        share: float = 1.0,
        away: frozenset[TensorId] = frozenset(),
        hold: bool = False,
        cache: PlanCache | None = None,
    ) -> None:
        self.graph = graph
        self.cache = PlanCache() if cache is None else cache
        self._executions = executions
        self._away = away
        self._link = link
        self._gap_keys: tuple[tuple[int, int, int], ...] | None = None
        self.captured_ns = tuple(latency_ns)
        self._outline = outline(graph, executions, self.cache)
        self._out_ns, self._in_ns = lanes(graph, executions, link, share, self.cache)
        self._latency_ns = latencies(self._outline, blocking_ns(graph, latency_ns), link)
        self._search = _search(self._outline, self._out_ns, self._in_ns, self._latency_ns, away, hold=hold)

    @property
    def floor_bytes(self) -> int:
        """The working set of the largest operator: the lower bound of every plan's peak in this order."""
        return self._outline.floor_bytes

    @property
    def holds(self) -> bool:
        """Whether any tensor is held for recomputations after its last use."""
        return self._search.holds

    @property
    def executions(self) -> tuple[Execution, ...]:
        """The order of execution including the re-runs."""
        return self._order(self._search.order)

    @property
    def peak_bytes(self) -> int:
        """The most bytes on the device at once."""
        return self._search.peak_bytes

    @property
    def iteration_ns(self) -> int:
        """The nanoseconds of one iteration alone on its share of the lanes."""
        return self._search.iteration_ns

    @property
    def least_ns(self) -> int:
        """The nanoseconds of one iteration without waits and without recomputation."""
        return int(self._latency_ns.sum())

    def clear(self) -> None:
        """Discard all choices, so that every tensor is kept."""
        self._search.clear()

    @property
    def lane_ns(self) -> int:
        """The sum of both lanes' copying times in one iteration."""
        return self._search.lane_ns

    @property
    def layouts(self) -> int:
        """The number of sets of choices that were laid out so far: the unit in which search effort is limited."""
        return self._search.layouts

    @property
    def operators(self) -> int:
        """The number of operators that run before anything is recomputed."""
        return len(self._outline.source)

    def exhaust(self) -> None:
        """Swap every tensor in every gap for as long as possible.

        This gives the least memory that swapping can reach, at any cost in time.
        """
        self._search.exhaust()

    def lower(self, limit_bytes: int, options: GreedyOptions, *, most: int) -> bool:
        """Add choices until the peak is within the limit.

        Return False if nothing lowers the peak further, or if laying out `most` sets of choices did not suffice.
        """
        return self._search.lower(limit_bytes, options, most)

    def sweep(self, limit_bytes: int, *, drops: bool, lane_price: float, rounds: int = 4) -> bool:
        """Replace all choices by those of one scan along the iteration, laid out into the limit. Takes a few layouts
        for any size.

        `lane_price` is the cost of a nanosecond on a lane, besides the waits that it causes, when recomputation is
        compared with copying. Return False if `rounds` rounds do not reach the limit.
        """
        return self._search.sweep(limit_bytes, drops=drops, lane_price=lane_price, again_price=1.0, rounds=rounds)

    def sweep_again(self, *, drops: bool, most: int, seed: int) -> int:
        """Undo choices around random operators and choose there again by `sweep`. Keep faster results.

        This does nothing unless the choices are laid out into a limit. Return the number of improvements.
        """
        return self._search.sweep_again(drops=drops, most=most, seed=seed)

    def swap_idle(self, *, most: int) -> bool:
        """Swap tensors while the lanes are idle, so that tensors which are recomputed can be kept.

        This does nothing unless the choices are laid out into a limit. Return whether the result is faster.
        """
        return self._search.swap_idle(most)

    def press(self, limit_bytes: int, *, most: int) -> bool:
        """Require tensors to be on the host where the load exceeds the limit.

        This finds choices that help only together, which `lower` cannot find. The result takes more time
        than needed; call `prune` afterwards. Return False if swapping cannot meet the limit, or if laying out `most`
        sets of choices did not suffice.
        """
        return self._search.press(limit_bytes, most)

    def prune(self, limit_bytes: int, most: int) -> None:
        """Try to undo up to `most` choices, the most expensive first."""
        self._search.prune(limit_bytes, most)

    def improve(self, limit_bytes: int, options: GreedyOptions, *, most: int, seed: int) -> int:
        """Run a large-neighbourhood search: undo choices around random operators, call `lower`, and keep faster
        results.
        """
        return self._search.improve(limit_bytes, options, most, seed)

    def fill(self, room_bytes: int) -> bool:
        """Lay the choices out into this much memory, until the choices change.

        This removes all requirements on when swaps are away. Return False, and change nothing, if the memory does not
        suffice.
        """
        return self._search.fill(room_bytes)

    def advance(self, distances: Sequence[int]) -> bool:
        """Let swaps return earlier and leave later, by up to each of these numbers of operators, where there is room
        below the peak.

        The fastest result, timed with the whole link and not the job's share, is kept until the choices change.
        Return whether any result is faster than before.
        """
        out_ns, in_ns = lanes(self.graph, self._executions, self._link, 1.0, self.cache)
        return self._search.advance(list(distances), out_ns=out_ns, in_ns=in_ns)

    def exchange(self, *, drops: bool, most: int) -> None:
        """Replace single choices (swap, recompute, keep) by others if that is faster within the memory into which
        they are laid out.
        """
        self._search.exchange(drops, most)

    def adopt(self, plan: Plan) -> tuple[int, int] | None:
        """Make the choices of this plan. Every swapped tensor is away at least where it is away in the plan.

        Return the plan's own peak and the nanoseconds of its iteration with the present latencies. If the plan is not
        a plan of this graph in this order, return None and make no choice. If the plan's recomputations read tensors
        after their last use, this search's recomputations do so from now on.
        """
        order = self._positions(plan.executions)
        left = np.array(sorted(self._away), dtype=np.int32)
        if order is None or plan.away != self._away or not plan.release or np.isin(left, self._outline.access).any():
            return None
        instances = Instances(self._outline, order)
        moves = [
            (instances.source(s.tensor), s.out_after, s.free_at, s.in_at, s.needed_by, s.copies) for s in plan.swaps
        ]
        run = np.array(order, dtype=np.int32)
        standing = self._search.adopt(order=run, moves=moves)
        if standing is None and not self.holds and len(order) > self.operators:
            other = _search(self._outline, self._out_ns, self._in_ns, self._latency_ns, self._away, hold=True)
            standing = other.adopt(order=run, moves=moves) if other.holds else None
            self._search = self._search if standing is None else other
        return standing

    def uncover(self) -> None:
        """Remove all requirements on when swaps are away, so that only the lanes decide. The peak may rise."""
        self._search.uncover()

    @property
    def choices(self) -> list[tuple[int, int, int]]:
        """The choices, in the form that `choose` takes: one row for each gap whose tensor is not kept.

        A row has the gap's number and the first and last operator during which the swapped tensor must be away.
        """
        return self._search.choices

    @property
    def gap_keys(self) -> tuple[tuple[int, int, int], ...]:
        """The tensor of each gap and the accesses between which the gap lies, by the gap's number in a choice row.

        An access is a number that is the same for the same run, or part of a run, in every order of the graph.
        """
        if self._gap_keys is None:
            runs, count = self._outline.runs.tolist(), self.operators
            self._gap_keys = tuple((t, runs[after], runs[need % count]) for t, after, need in self._search.gaps)
        return self._gap_keys

    @property
    def room_bytes(self) -> int | None:
        """The memory into which the choices are laid out. None if the lanes alone determine when tensors move."""
        return self._search.room_bytes

    def choose(self, choices: list[tuple[int, int, int]], room_bytes: int | None = None) -> None:
        """Make choices that were read from `choices` before."""
        self._search.choose(choices, room_bytes)

    def plan(self, policy: str) -> Plan:
        """Return the choices as a plan."""
        order = self._search.order
        instances = Instances(self._outline, order)
        count = len(order)
        swaps = [
            Swap(
                tensor=instances.at(tensor, after),
                out_after=OpIndex(after),
                free_at=OpIndex(free % count),
                in_at=OpIndex(back % count),
                needed_by=OpIndex(need % count),
                copies=copies,
            )
            for tensor, after, free, back, need, copies in self._search.moves
        ]
        swaps.sort(key=lambda s: (s.tensor, s.out_after))
        return Plan(policy=policy, executions=self._order(order), swaps=tuple(swaps), away=self._away)

    def _order(self, order: list[int]) -> tuple[Execution, ...]:
        unchanged = order == list(range(self.operators))
        if self._executions:
            return self._executions if unchanged else tuple(self._executions[k] for k in order)
        return () if unchanged else tuple(Execution(operator=OpIndex(k)) for k in order)

    def _positions(self, executions: tuple[Execution, ...]) -> list[int] | None:
        """Return the positions of these executions among the search's operators.

        None if an execution is not among them.
        """
        if not executions:
            return list(range(self.operators)) if not self._executions else None
        if not self._executions:
            return [e.operator for e in executions] if all(e.parts == 1 for e in executions) else None
        number = {(e.operator, e.part, e.parts): k for k, e in enumerate(self._executions)}
        positions = [number.get((e.operator, e.part, e.parts), -1) for e in executions]
        return positions if min(positions) >= 0 else None


def _search(
    outline: Outline,
    out_ns: npt.NDArray[np.int64],
    in_ns: npt.NDArray[np.int64],
    latency_ns: npt.NDArray[np.int64],
    away: frozenset[TensorId],
    *,
    hold: bool,
) -> Search:
    size_bytes = outline.size_bytes
    if away:
        size_bytes = size_bytes.copy()
        size_bytes[list(away)] = 0
    return Search(
        size_bytes=size_bytes,
        persistent=outline.persistent,
        out_ns=out_ns,
        in_ns=in_ns,
        latency_ns=latency_ns,
        workspace_bytes=outline.workspace_bytes,
        upload=outline.upload,
        repeatable=outline.repeatable,
        offset=outline.offset,
        access=outline.access,
        writes=outline.writes,
        stays=outline.stays,
        hold=hold,
    )
