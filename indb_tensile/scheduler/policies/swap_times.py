"""Schedule the chosen swaps of a policy, so that the load keeps to a limit.

AutoSwap section IV-E. Copies to the host are queued right after the access before the gap and run one after the
other. Copies back are scheduled as late as possible: each ends at its access or when the next one has to start. If
that would exceed the limit, an operator is delayed until enough of the leaving memory is free (delayed allocation),
and a copy back starts only when memory for it is free, at worst right before its access.

The paper's run time decides both at run time, but a plan has to name the boundaries beforehand. The iteration is
therefore simulated as that run time would execute it, with the resulting delays, until it repeats, and the boundaries
of these events become the plan. A tensor that has not left by the time at which it would return stays, and is not
copied.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from indb_tensile.scheduler.exchange_times import blocking_ns
from indb_tensile.scheduler.graph import OpIndex, Stage, StepGraph, TensorId
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import Gap, load, need_index
from indb_tensile.scheduler.plan import Plan, Swap

Ints = npt.NDArray[np.int64]

# one to fill the lanes as in steady state, one to observe, one in which the observed iteration's copies end
_ROUNDS = 3


def schedule(
    graph: StepGraph,
    latency_ns: Sequence[int],
    link: Link,
    chosen: Sequence[Gap],
    *,
    limit_bytes: int,
    policy: str,
    away: frozenset[TensorId] = frozenset(),
) -> Plan:
    """Return the plan that swaps in these gaps. Its peak is within the limit if the load with all gaps empty is."""
    calendar = _Calendar(graph, latency_ns, link, chosen, limit_bytes, away)
    calendar.lay_ins()
    while late := calendar.walk():
        calendar.keep(late)
    calendar.close()
    return Plan(policy=policy, swaps=calendar.swaps(), away=away)


def empty_load(graph: StepGraph, chosen: Sequence[Gap], away: frozenset[TensorId] = frozenset()) -> Ints:
    """Return the bytes at each operator with liveness if these gaps' tensors were away throughout, at no cost of
    time.
    """
    load_bytes = np.array(load(graph, Plan(policy="liveness", away=away)), dtype=np.int64)
    for gap in chosen:
        load_bytes[inside(gap, len(graph.operators))] -= graph.tensors[gap.tensor].size_bytes
    return load_bytes


def inside(gap: Gap, count: int) -> Ints:
    """Return the operators within a gap, in order of time."""
    return np.arange(gap.out_after + 1, need_index(gap, count), dtype=np.int64) % count


def run_ns(graph: StepGraph, latency_ns: Sequence[int], link: Link) -> Ints:
    """Return how long each operator runs. An upload takes its copy's time on the link."""
    durations_ns = np.array(blocking_ns(graph, latency_ns), dtype=np.int64)
    for index, operator in enumerate(graph.operators):
        if operator.stage is Stage.UPLOAD:
            durations_ns[index] = link.in_ns(sum(graph.tensors[t].size_bytes for t in {*operator.writes}))
    return durations_ns


@dataclass(slots=True)
class _Copy:
    """One chosen gap and its copies. Indices count on from `after`, so they may pass the end of the iteration."""

    gap: Gap
    size_bytes: int
    need: int
    out_ns: int
    in_ns: int
    free: int = 0
    back: int = 0
    queued_at: int = -1  # the step of the walk in which its copy to the host was last queued


@dataclass(slots=True)
class _Walk:
    """The run time's state: its time, the copies on their way out, and the copies that came too late."""

    now_ns: int = 0
    out_free_ns: int = 0
    in_free_ns: int = 0
    held_bytes: int = 0
    leaving: deque[tuple[int, _Copy]] = field(default_factory=deque)  # (time of completion, copy)
    in_done_ns: dict[int, int] = field(default_factory=dict)
    late: list[_Copy] = field(default_factory=list)


class _Calendar:
    """The schedule of one graph's copies, which is built up step by step."""

    def __init__(
        self,
        graph: StepGraph,
        latency_ns: Sequence[int],
        link: Link,
        chosen: Sequence[Gap],
        limit_bytes: int,
        away: frozenset[TensorId],
    ) -> None:
        self._count = len(graph.operators)
        self._limit = limit_bytes
        self._run_ns = run_ns(graph, latency_ns, link)
        self._uploads = [k for k, op in enumerate(graph.operators) if op.stage is Stage.UPLOAD]
        self._load = empty_load(graph, chosen, away)
        self._copies = [self._copy(gap, graph.tensors[gap.tensor].size_bytes, link) for gap in chosen]

    def _copy(self, gap: Gap, size_bytes: int, link: Link) -> _Copy:
        need = need_index(gap, self._count)
        return _Copy(gap, size_bytes, need, link.out_ns(size_bytes), link.in_ns(size_bytes))

    def swaps(self) -> tuple[Swap, ...]:
        """Return the swaps that remain."""
        result = [
            Swap(
                tensor=copy.gap.tensor,
                out_after=copy.gap.out_after,
                free_at=OpIndex(copy.free % self._count),
                in_at=OpIndex(copy.back % self._count),
                needed_by=copy.gap.needed_by,
            )
            for copy in self._copies
        ]
        return tuple(sorted(result, key=lambda s: (s.tensor, s.out_after)))

    # --- the way back ------------------------------------------------------------------------------------------

    def lay_ins(self) -> None:
        """Set the boundary at which each tensor takes its memory again: as late as without waits, and not before
        there is room.
        """
        latest = self._latest_starts()
        for copy in sorted(self._copies, key=lambda c: (c.gap.needed_by, c.gap.tensor)):
            first = max(latest[id(copy)], copy.gap.out_after + 2)
            operators = np.arange(first, copy.need, dtype=np.int64) % self._count
            over = np.flatnonzero(self._load[operators] + copy.size_bytes > self._limit)
            copy.back = first if len(over) == 0 else first + int(over[-1]) + 1
            self._load[operators[copy.back - first :]] += copy.size_bytes

    def _latest_starts(self) -> dict[int, int]:
        """Return for each copy the last boundary from which there is no wait, without a limit; counted
        as `need` is.
        """
        end = np.cumsum(self._run_ns)
        begin, period_ns = end - self._run_ns, int(end[-1])
        items: list[tuple[int, int, _Copy | None]] = [(k, -1, None) for k in self._uploads]
        items += [(copy.gap.needed_by, copy.gap.tensor, copy) for copy in self._copies]
        items.sort(key=lambda item: item[:2], reverse=True)
        boundary_of = {}
        free_ns = 2 * period_ns  # from here on the lane is taken by later copies
        for start_ns in (period_ns, 0):  # the next iteration first, because its copies may start in this one
            for operator, _, copy in items:
                free_ns = min(free_ns, start_ns + int(begin[operator]))
                if copy is None:
                    continue
                free_ns -= copy.in_ns
                periods, rest_ns = divmod(free_ns, period_ns)
                boundary = periods * self._count + int(np.searchsorted(begin, rest_ns, side="right")) - 1
                ahead = operator + (start_ns > 0) * self._count - boundary
                boundary_of[id(copy)] = copy.need - ahead
        return boundary_of

    # --- the way out -------------------------------------------------------------------------------------------

    def walk(self) -> list[_Copy]:
        """Go through the iteration and set the boundary at which each copy's memory is free. Return the copies that
        return too early.
        """
        leave, back, need = self._by_boundary()
        walk = _Walk()
        run_ns = self._run_ns.tolist()
        load_bytes = self._load.tolist()
        for step in range(_ROUNDS * self._count):
            operator = step % self._count
            returning = [c for c in back.get(operator, ()) if self._is_gone(walk, c, watched=step >= self._count)]
            self._give_back(walk, step, load_bytes[operator])
            for copy in returning:
                walk.in_free_ns = max(walk.in_free_ns, walk.now_ns) + copy.in_ns
                walk.in_done_ns[id(copy)] = walk.in_free_ns
            for copy in need.get(operator, ()):
                walk.now_ns = max(walk.now_ns, walk.in_done_ns.get(id(copy), 0))
            if operator in self._uploads:
                walk.now_ns = walk.in_free_ns = max(walk.now_ns, walk.in_free_ns) + run_ns[operator]
            else:
                walk.now_ns += run_ns[operator]
            for copy in leave.get(operator, ()):
                walk.out_free_ns = max(walk.out_free_ns, walk.now_ns) + copy.out_ns
                walk.leaving.append((walk.out_free_ns, copy))
                walk.held_bytes += copy.size_bytes
                copy.queued_at = step
        return list({id(copy): copy for copy in walk.late}.values())

    def _give_back(self, walk: _Walk, step: int, load_bytes: int) -> None:
        """Complete the finished copies. If the operator does not fit beside the others, wait for them too."""
        while walk.leaving:
            done_ns, copy = walk.leaving[0]
            if done_ns > walk.now_ns and load_bytes + walk.held_bytes <= self._limit:
                return
            walk.leaving.popleft()
            walk.now_ns = max(walk.now_ns, done_ns)
            walk.held_bytes -= copy.size_bytes
            if self._count <= copy.queued_at < 2 * self._count:
                copy.free = copy.gap.out_after + step - copy.queued_at

    def _is_gone(self, walk: _Walk, copy: _Copy, *, watched: bool) -> bool:
        """Return whether the returning tensor has left at all. If it has not, it stays in the memory that it has."""
        for entry in walk.leaving:
            if entry[1] is copy:
                walk.leaving.remove(entry)
                walk.held_bytes -= copy.size_bytes
                if watched:
                    walk.late.append(copy)
                return False
        return True

    def keep(self, late: Sequence[_Copy]) -> None:
        """Drop these swaps: their copies to the host would not be done in time."""
        gone = {id(copy) for copy in late}
        for copy in late:
            self._load[np.arange(copy.gap.out_after + 1, copy.back, dtype=np.int64) % self._count] += copy.size_bytes
        self._copies = [copy for copy in self._copies if id(copy) not in gone]

    def close(self) -> None:
        """Keep the limit where two iterations of the walk differed: wait for the copies that were queued first."""
        for copy in sorted(self._copies, key=lambda c: (c.gap.out_after, c.gap.tensor), reverse=True):
            first = copy.gap.out_after + 1
            operators = np.arange(first, copy.free, dtype=np.int64) % self._count
            over = np.flatnonzero(self._load[operators] + copy.size_bytes > self._limit)
            if len(over):
                copy.free = max(first, first + int(over[0]))
            self._load[operators[: copy.free - first]] += copy.size_bytes

    def _by_boundary(self) -> tuple[dict[int, list[_Copy]], ...]:
        """Return the copies by the operator after which they leave, and by the boundaries at which they return and
        are needed.
        """
        leave: dict[int, list[_Copy]] = {}
        back: dict[int, list[_Copy]] = {}
        need: dict[int, list[_Copy]] = {}
        for copy in sorted(self._copies, key=lambda c: (c.gap.tensor, c.gap.out_after)):
            leave.setdefault(copy.gap.out_after, []).append(copy)
            back.setdefault(copy.back % self._count, []).append(copy)
            need.setdefault(copy.gap.needed_by, []).append(copy)
        return leave, back, need
