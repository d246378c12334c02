"""One step graph under search: keep, swap or make again, gap by gap, judged by the exact load and time.

The search itself is native (native/planner), since a plan for ten thousand operators has to be there within a
second. This is its border: step graphs and links go in, plans come out. Which limits are searched, in what
manner, and which of the results is taken is a policy's business.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from indb_tensile._planner import Manner, Search
from indb_tensile.scheduler.graph import OpIndex, StepGraph, TensorId
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.plan import Execution, Plan, Swap
from indb_tensile.scheduler.search.search_arrays import Instances, Outline, lanes, latencies, outline

__all__ = ["DROPPED", "Manner", "StepSearch"]

DROPPED = -2  # what stands in a choice where its gap's tensor is made again, in place of operators to be covered


class StepSearch:
    """The choices for one graph, executed in a given order; nothing is chosen at first.

    `executions` is the order before anything is made again, empty for the captured one. `share` is the part of
    each lane that the job may count on. `away` are persistent tensors that the graph never accesses and that
    stay on the host.
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
    ) -> None:
        self.graph = graph
        self._executions = executions
        self._away = away
        self._link = link
        self._keys: tuple[tuple[int, int, int], ...] | None = None
        self.captured_ns = tuple(latency_ns)
        self._outline = outline(graph, executions)
        self._out_ns, self._in_ns = lanes(graph, executions, link, share)
        self._latency_ns = latencies(self._outline, latency_ns, link)
        self._search = _search(self._outline, self._out_ns, self._in_ns, self._latency_ns, away)

    @property
    def floor_bytes(self) -> int:
        """The largest operator's working set before anything is made again: no plan in this order goes below it."""
        return self._outline.floor_bytes

    @property
    def executions(self) -> tuple[Execution, ...]:
        """The order of execution with what is made again."""
        return self._order(self._search.order)

    @property
    def peak_bytes(self) -> int:
        """The most bytes on the device at once."""
        return self._search.peak_bytes

    @property
    def iteration_ns(self) -> int:
        """Nanoseconds of one iteration alone on its share of the lanes."""
        return self._search.iteration_ns

    @property
    def least_ns(self) -> int:
        """Nanoseconds of one iteration that waits for nothing and makes nothing again."""
        return int(self._latency_ns.sum())

    def clear(self) -> None:
        """Keep everything."""
        self._search.clear()

    @property
    def lane_ns(self) -> int:
        """How long both lanes together copy in one iteration."""
        return self._search.lane_ns

    @property
    def layouts(self) -> int:
        """How many sets of choices were laid out so far: the unit in which searching is rationed."""
        return self._search.layouts

    @property
    def operators(self) -> int:
        """How many operators run before anything is made again."""
        return len(self._outline.source)

    def exhaust(self) -> None:
        """Swap everything for as long as possible: the least memory that swapping gives, whatever it costs."""
        self._search.exhaust()

    def lower(self, limit_bytes: int, manner: Manner, *, most: int) -> bool:
        """Go on from what is chosen until the peak is within the limit.

        False where nothing lowers it further, or laying out `most` sets of choices did not suffice.
        """
        return self._search.lower(limit_bytes, manner, most)

    def sweep(self, limit_bytes: int, *, drops: bool, lane_price: float, rounds: int = 4) -> bool:
        """Choose anew in one scan along the iteration, laid into the limit: a few layouts whatever the size.

        `lane_price` is what a nanosecond on a lane counts as, besides the waits that it causes, where making again is
        weighed against copying. False where so many rounds do not come down to the limit.
        """
        return self._search.sweep(limit_bytes, drops=drops, lane_price=lane_price, again_price=1.0, rounds=rounds)

    def sweep_again(self, *, drops: bool, most: int, seed: int) -> int:
        """Undo what was laid into a limit around random places and sweep there again; keep what is faster.

        Nothing is done where nothing was laid into a limit. Returns how often it became faster.
        """
        return self._search.sweep_again(drops=drops, most=most, seed=seed)

    def press(self, limit_bytes: int, *, most: int) -> bool:
        """Go on from what is chosen, demanding that tensors are away wherever the load is over the limit.

        What `lower` cannot: several steps none of which helps alone. It costs more time than needed; prune then.
        False where swapping cannot meet the limit, or laying out `most` sets of choices did not suffice.
        """
        return self._search.press(limit_bytes, most)

    def prune(self, limit_bytes: int, most: int) -> None:
        """Try to take back that many choices, the most expensive first."""
        self._search.prune(limit_bytes, most)

    def improve(self, limit_bytes: int, manner: Manner, *, most: int, seed: int) -> int:
        """Large-neighbourhood search: undo around random places and lower again, keep what is faster."""
        return self._search.improve(limit_bytes, manner, most, seed)

    def fill(self, room_bytes: int) -> bool:
        """Lay what is chosen into this much memory, until something else is chosen; nothing has to be covered then.

        False, and nothing done, where that is not enough.
        """
        return self._search.fill(room_bytes)

    def advance(self, distances: Sequence[int]) -> bool:
        """Let swaps return up to so many operators earlier, and leave later, where there is room under the peak.

        The fastest of these, alone on the whole link whatever the job's share, is the plan until something else is
        chosen. Whether any is faster.
        """
        out_ns, in_ns = lanes(self.graph, self._executions, self._link, 1.0)
        return self._search.advance(list(distances), out_ns=out_ns, in_ns=in_ns)

    def exchange(self, *, drops: bool, most: int) -> None:
        """Make again what is swapped, or the other way round, or keep it, where that is faster within the room."""
        self._search.exchange(drops, most)

    def retime(self, latency_ns: Sequence[int]) -> None:
        """The same choices with other latencies."""
        self.captured_ns = tuple(latency_ns)
        self._latency_ns = latencies(self._outline, latency_ns, self._link)
        self._search.retime(latency_ns=self._latency_ns, out_ns=self._out_ns, in_ns=self._in_ns)

    def adopt(self, plan: Plan) -> tuple[int, int] | None:
        """Choose what leads to this plan: every swap is away at least where it is away in the plan.

        Returns the plan's own peak and nanoseconds of an iteration with the present latencies, or None, and
        nothing is chosen, where it is no plan of this graph in this order.
        """
        order = self._positions(plan.executions)
        left = np.array(sorted(self._away), dtype=np.int32)
        if order is None or plan.away != self._away or not plan.release or np.isin(left, self._outline.access).any():
            return None
        instances = Instances(self._outline, order)
        moves = [
            (instances.source(s.tensor), s.out_after, s.free_at, s.in_at, s.needed_by, s.copies) for s in plan.swaps
        ]
        return self._search.adopt(order=np.array(order, dtype=np.int32), moves=moves)

    def uncover(self) -> None:
        """Let every swap come and go as the lanes allow, whatever the peak is then."""
        self._search.uncover()

    @property
    def choices(self) -> list[tuple[int, int, int]]:
        """What is chosen, to be chosen again: gaps that are not kept, with what a swap has to cover."""
        return self._search.choices

    @property
    def between(self) -> tuple[tuple[int, int, int], ...]:
        """Each gap, in the order in which choices number them: its tensor, and the accesses that it lies between.

        An access is a number that is the same for the same run, or part of a run, in every order of the graph.
        """
        if self._keys is None:
            runs, count = self._outline.runs.tolist(), self.operators
            self._keys = tuple((t, runs[after], runs[need % count]) for t, after, need in self._search.gaps)
        return self._keys

    @property
    def room_bytes(self) -> int | None:
        """The memory that what is chosen is laid into; None where the lanes alone say when what moves."""
        return self._search.room_bytes

    def choose(self, choices: list[tuple[int, int, int]], room_bytes: int | None = None) -> None:
        """Take what was chosen before."""
        self._search.choose(choices, room_bytes)

    def plan(self, policy: str) -> Plan:
        """What is chosen, as a plan."""
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
        """Which of its operators this order runs, one after the other; None where it has others."""
        if not executions:
            return list(range(self.operators)) if not self._executions else None
        if not self._executions:
            return [e.operator for e in executions] if all(e.parts == 1 for e in executions) else None
        number = {(e.operator, e.part, e.parts): k for k, e in enumerate(self._executions)}
        found = [number.get((e.operator, e.part, e.parts), -1) for e in executions]
        return found if min(found) >= 0 else None


def _search(
    drawn: Outline,
    out_ns: npt.NDArray[np.int64],
    in_ns: npt.NDArray[np.int64],
    latency_ns: npt.NDArray[np.int64],
    away: frozenset[TensorId],
) -> Search:
    size_bytes = drawn.size_bytes
    if away:
        size_bytes = size_bytes.copy()
        size_bytes[list(away)] = 0
    return Search(
        size_bytes=size_bytes,
        persistent=drawn.persistent,
        out_ns=out_ns,
        in_ns=in_ns,
        latency_ns=latency_ns,
        workspace_bytes=drawn.workspace_bytes,
        upload=drawn.upload,
        repeatable=drawn.repeatable,
        offset=drawn.offset,
        access=drawn.access,
        writes=drawn.writes,
    )
