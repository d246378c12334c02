"""Swapping the tensors of one graph: TENSILE Algorithm 2 over cyclic gaps.

A swap-out starts as early as possible, right after the access before the gap; a swap-in as late as possible
before the access that ends it. Both have to cover the operator at the peak, or the peak would not fall. The
differences from the paper: gaps are cyclic, which makes across-iteration scheduling no special case; memory
is counted from the boundary where a copy starts (in) and up to the boundary where it is done (out); a host
copy stays valid until its tensor is written again, so leaving once more costs no copy; and a copy that would
be late is not only refused but, in the planner's second phase, priced.
"""

import math
from dataclasses import dataclass

import numpy as np

from indb_tensile.scheduler.graph import OpIndex, Stage, StepGraph, TensorId
from indb_tensile.scheduler.lanes import Axis, Entries, Ints, Queue
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.peak import LIVENESS, accesses, gaps, need_index, plan_load, working_sets
from indb_tensile.scheduler.plan import Plan, Swap

_NO = -1
_SETTLING_PASSES = 8  # a stall moves what comes after it; the rest is left to the simulator


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """Gaps that hold the peak and whose tensor is on the device there."""

    gap: Ints
    size_bytes: Ints
    stall_ns: Ints  # estimated


class SwapPlan:
    """One graph's plan in the making: which gaps are swapped, the load, and its copies on the two lanes.

    `share` is the part of each lane that this job may count on: its copies are planned as if they took
    1 / share times as long.
    """

    def __init__(self, graph: StepGraph, latency_ns: tuple[int, ...], link: Link, share: float) -> None:
        self.graph = graph
        self.count = len(graph.operators)
        self.load = plan_load(graph, LIVENESS)
        self.least = working_sets(graph)
        self.away: set[TensorId] = set()
        self.idle = _idle(graph)
        self._ties = len(graph.tensors) + 1
        self._lay_gaps(graph, link, share)
        self._lay_uploads(graph, latency_ns, link)
        self._out: Queue | None = None
        self._in: Queue | None = None

    # --- questions ---------------------------------------------------------------------------------------------

    @property
    def peak_bytes(self) -> int:
        """The most bytes on the device at once."""
        return self.load.maximum()

    @property
    def swap_count(self) -> int:
        """How many gaps are swapped."""
        return int(np.count_nonzero(self._free >= 0))

    def holding(self, operator: int) -> Ints:
        """Gaps around the operator whose tensor never leaves in them, largest tensor first."""
        found = np.flatnonzero((self._covering(operator) != _NO) & (self._free < 0))
        return found[np.lexsort((found, -self._size[found]))]

    def tensor_of(self, gap: int) -> int:
        """The tensor of this gap."""
        return int(self._tensor[gap])

    def size_of(self, gap: int) -> int:
        """Bytes that leave in this gap."""
        return int(self._size[gap])

    def further_gaps(self, tensor: int, level_bytes: int) -> list[int]:
        """The tensor's other gaps, in order of time, in which the load passes a level."""
        mine = np.flatnonzero((self._tensor == tensor) & (self._free < 0))
        return [
            g
            for g in mine.tolist()
            if self.load.maximum_of(int(self._after[g]) + 1, int(self._need[g])) > level_bytes
        ]

    def candidates(self, operator: int) -> Candidates:
        """All ways to lower the load at this operator, each with the stall it is estimated to cost.

        The copy to the host is taken as queued after the access, the copy back either right after the
        operator or as late as it could be on a free lane, whichever makes less late.
        """
        at = self._covering(operator)
        resident = (at != _NO) & ~((self._free >= 0) & (self._free <= at) & (at < self._back))
        found = np.flatnonzero(resident)
        at = at[found]
        out_ns = self._out_estimate(found, at)
        in_ns = self._in_estimate(found, at)
        return Candidates(gap=found, size_bytes=self._size[found], stall_ns=out_ns + in_ns)

    def plan(self, policy: str) -> Plan:
        """What has been decided, as a plan."""
        chosen = np.flatnonzero(self._free >= 0).tolist()
        swaps = [self._swap(gap) for gap in chosen]
        return Plan(
            policy=policy,
            swaps=tuple(sorted(swaps, key=lambda s: (s.tensor, s.out_after))),
            away=frozenset(self.away),
        )

    # --- changes -----------------------------------------------------------------------------------------------

    def put_away(self, tensor: TensorId) -> None:
        """Leave a persistent tensor that the graph never accesses on the host."""
        self.away.add(tensor)
        self.idle.remove(tensor)
        self.load.add(0, self.count, -self.graph.tensors[tensor].size_bytes)

    def swap(self, gap: int, operator: int | None, *, stalls: bool) -> bool:
        """Swap the tensor in this gap so that it is away at the operator; False, and no change, if that fails.

        Without `stalls` nothing may become late; other copies' memory may be given back later where the
        load stays below the present peak. With `stalls` whatever is late is accepted as a wait.
        """
        saved = self._save()
        cap = self.load.maximum() - 1
        at = None if operator is None else int(self._covering(operator)[gap])
        if self._place(gap, at, stalls) and self._settle(cap, stalls):
            return True
        self._restore(saved)
        return False

    def prune(self, cap_bytes: int) -> None:
        """Undo swaps without which the load stays within the cap: later ones made them needless.

        Those without a copy come first, since the others' copies may serve them; then the largest.
        """
        chosen = np.flatnonzero(self._free >= 0)
        for gap in chosen[np.lexsort((chosen, -self._size[chosen], self._copies[chosen]))].tolist():
            size, free, back = self.size_of(gap), int(self._free[gap]), int(self._back[gap])
            if self.load.maximum_of(free, back) + size > cap_bytes:
                continue
            copies = self._copies.copy()
            self._free[gap] = self._back[gap] = _NO
            self._derive_copies(self.tensor_of(gap))
            copies[gap] = False
            if bool(np.any(self._copies & ~copies)):  # another swap relies on this one's copy
                self._free[gap], self._back[gap] = free, back
                self._derive_copies(self.tensor_of(gap))
            else:
                self.load.add(free, back, size)
        self._out = self._in = None

    # --- one gap -----------------------------------------------------------------------------------------------

    def _place(self, gap: int, at: int | None, stalls: bool) -> bool:
        """Choose the boundaries of one swap. `at` is the operator to cover, unrolled from the gap."""
        after, need, size = int(self._after[gap]), int(self._need[gap]), self.size_of(gap)
        free = self._earliest_free(gap)
        if stalls and at is not None:
            free = min(free, at)
        first = max(free, at if at is not None else free) + 1
        if self._free[gap] >= 0:  # stretch what is there
            free, first = min(free, int(self._free[gap])), max(first, int(self._back[gap]))
        if free >= need or first > need or (at is not None and free > at):
            return False
        due_ns = int(self.axis.begin(need))
        self._clear(gap)
        place = self._in_queue().latest(self.tensor_of(gap), int(self._in_ns[gap]), first, need, due_ns)
        if place.late_ns and not stalls:
            return False
        assert after < free < place.boundary <= need
        self._free[gap], self._back[gap] = free, place.boundary
        self.load.add(free, place.boundary, -size)
        self._derive_copies(self.tensor_of(gap))
        self._out = self._in = None
        return True

    def _earliest_free(self, gap: int) -> int:
        """The first boundary by which the copy to the host can be done."""
        after = int(self._after[gap])
        if self._valid[gap]:
            return after + 1
        key = np.array([(after + 1) * self._ties + self._tensor[gap]], dtype=np.int64)
        ready_ns = self.axis.end(self._after[gap : gap + 1])
        done, _ = self._out_queue().append(key, ready_ns, self._out_ns[gap : gap + 1])
        return max(after + 1, self.axis.first_boundary_from(int(done[0])))

    def _clear(self, gap: int) -> None:
        if self._free[gap] >= 0:
            self.load.add(int(self._free[gap]), int(self._back[gap]), self.size_of(gap))
            self._free[gap] = self._back[gap] = _NO
            self._in = None

    def _swap(self, gap: int) -> Swap:
        return Swap(
            tensor=TensorId(self.tensor_of(gap)),
            out_after=OpIndex(int(self._after[gap])),
            free_at=OpIndex(int(self._free[gap]) % self.count),
            in_at=OpIndex(int(self._back[gap]) % self.count),
            needed_by=OpIndex(int(self._need[gap]) % self.count),
            copies=bool(self._copies[gap]),
        )

    # --- estimates -----------------------------------------------------------------------------------------------

    def _out_estimate(self, gap: Ints, at: Ints) -> Ints:
        after = self._after[gap]
        keys = (after + 1) * self._ties + self._tensor[gap]
        done, behind = self._out_queue().append(keys, self.axis.end(after), self._out_ns[gap])
        late = np.maximum(0, done - self.axis.boundary(at)) + behind
        planned = self._free[gap] >= 0
        room = np.maximum(0, self.axis.boundary(self._free[gap]) - self.axis.boundary(at))
        late = np.where(planned, np.minimum(room, self._out_ns[gap]), late)
        return np.where(self._valid[gap], 0, late)

    def _in_estimate(self, gap: Ints, at: Ints) -> Ints:
        need, duration = self._need[gap], self._in_ns[gap]
        due = self.axis.begin(need)
        latest = np.clip(self.axis.last_boundary_by(due - duration), at + 1, need)
        late = np.full(len(gap), np.iinfo(np.int64).max)
        for boundary in (at + 1, latest):
            keys = boundary * self._ties + self._tensor[gap]
            done, behind = self._in_queue().append(keys, self.axis.boundary(boundary), duration)
            late = np.minimum(late, np.maximum(np.maximum(0, done - due), behind))
        return np.where((self._free[gap] >= 0) & (self._back[gap] > at), 0, late)

    # --- both lanes ----------------------------------------------------------------------------------------------

    def _settle(self, cap_bytes: int, stalls: bool) -> bool:
        """Give what has become late a later boundary, or a wait; False where neither is allowed."""
        for _ in range(_SETTLING_PASSES):
            queue = self._out_queue()
            waits = []
            for position in np.flatnonzero(queue.late_ns > 0).tolist():
                gap, done_ns = int(queue.owner[position]), int(queue.done_ns[position])
                if not self._slip(gap, done_ns, cap_bytes):
                    late_ns = int(queue.late_ns[position])
                    waits.append((done_ns - late_ns, late_ns, int(self._free[gap]), True))
            queue = self._in_queue()
            for position in np.flatnonzero(queue.late_ns > 0).tolist():
                late_ns = int(queue.late_ns[position])
                gap = int(queue.owner[position])
                boundary = int(self._need[gap]) if gap >= 0 else -gap  # after upload -1 - gap
                waits.append((int(queue.done_ns[position]) - late_ns, late_ns, boundary, gap < 0))
            if not waits and not np.any(self._out_queue().late_ns > 0):
                return True
            if waits and not stalls:
                return False
            self._wait(sorted(waits))
        return stalls

    def _slip(self, gap: int, done_ns: int, cap_bytes: int) -> bool:
        """Give this gap's memory back only when its copy is done, if the load allows it."""
        free, later = int(self._free[gap]), self.axis.first_boundary_from(done_ns)
        later = later if later > free else free + 1
        swapped = sum(bool(self._free[g] >= 0) for g in self._of_tensor[self.tensor_of(gap)])
        relied_on = free <= self.count < later and swapped > 1
        if later >= self._back[gap] or relied_on:
            return False
        if self.load.maximum_of(free, later) + self.size_of(gap) > cap_bytes:
            return False
        self.load.add(free, later, self.size_of(gap))
        self._free[gap] = later
        self._out = None
        return True

    def _wait(self, waits: list[tuple[int, int, int, bool]]) -> None:
        """Accept waits in order of time; each one moves the deadlines after it."""
        shift_ns = 0
        for _, late_ns, boundary, out in waits:
            more_ns = late_ns - shift_ns
            if more_ns > 0:
                self.axis.stall(boundary, **({"out_ns": more_ns} if out else {"in_ns": more_ns}))
                shift_ns += more_ns
        self._out = self._in = None

    def _out_queue(self) -> Queue:
        if self._out is None:
            gap = np.flatnonzero((self._free >= 0) & self._copies)
            entries = Entries(
                owner=gap,
                key=(self._after[gap] + 1) * self._ties + self._tensor[gap],
                ready_ns=self.axis.end(self._after[gap]),
                duration_ns=self._out_ns[gap],
                due_ns=self.axis.boundary(self._free[gap]),
            )
            self._out = Queue(self.axis, entries, self._ties)
        return self._out

    def _in_queue(self) -> Queue:
        if self._in is None:
            gap = np.flatnonzero(self._free >= 0)
            period = self._back[gap] // self.count
            boundary = self._back[gap] - period * self.count
            uploads = self._uploads
            entries = Entries(
                owner=np.concatenate((gap, -1 - uploads)),
                key=np.concatenate((boundary * self._ties + self._tensor[gap], (uploads + 1) * self._ties - 1)),
                ready_ns=np.concatenate((self.axis.boundary(boundary), self.axis.begin(uploads))),
                duration_ns=np.concatenate((self._in_ns[gap], self._upload_ns)),
                due_ns=np.concatenate(
                    (self.axis.begin(self._need[gap] - period * self.count), self.axis.boundary(uploads + 1))
                ),
            )
            self._in = Queue(self.axis, entries, self._ties)
        return self._in

    # --- state -------------------------------------------------------------------------------------------------

    def _lay_gaps(self, graph: StepGraph, link: Link, share: float) -> None:
        found = gaps(graph)
        sizes = [graph.tensors[g.tensor].size_bytes for g in found]
        self._tensor = np.array([g.tensor for g in found], dtype=np.int64)
        self._after = np.array([g.out_after for g in found], dtype=np.int64)
        self._need = np.array([need_index(g, self.count) for g in found], dtype=np.int64)
        self._size = np.array(sizes, dtype=np.int64)
        self._out_ns = np.array([math.ceil(link.out_ns(s) / share) for s in sizes], dtype=np.int64)
        self._in_ns = np.array([math.ceil(link.in_ns(s) / share) for s in sizes], dtype=np.int64)
        self._dirty = _dirty(graph, self._tensor.tolist(), self._after.tolist())
        self._of_tensor: dict[int, list[int]] = {}
        for gap, tensor in enumerate(self._tensor.tolist()):
            self._of_tensor.setdefault(tensor, []).append(gap)
        self._free = np.full(len(found), _NO, dtype=np.int64)
        self._back = np.full(len(found), _NO, dtype=np.int64)
        self._copies = np.zeros(len(found), dtype=np.bool_)
        self._valid = np.zeros(len(found), dtype=np.bool_)

    def _lay_uploads(self, graph: StepGraph, latency_ns: tuple[int, ...], link: Link) -> None:
        run_ns = np.array(latency_ns, dtype=np.int64)
        uploads = [k for k, op in enumerate(graph.operators) if op.stage is Stage.UPLOAD]
        for index in uploads:
            run_ns[index] = link.in_ns(sum(graph.tensors[t].size_bytes for t in {*graph.operators[index].writes}))
        self._uploads = np.array(uploads, dtype=np.int64)
        self._upload_ns = run_ns[self._uploads]
        self.axis = Axis(run_ns)

    def _covering(self, operator: int) -> Ints:
        """For each gap the operator's index counted on from the gap's start, -1 where it is not inside."""
        now = (self._after < operator) & (operator < self._need)
        later = (self._after < operator + self.count) & (operator + self.count < self._need)
        return np.where(now, operator, np.where(later, operator + self.count, _NO))

    def _derive_copies(self, tensor: int) -> None:
        """Which of a tensor's swaps have to copy; one that has not gives its memory back at once.

        That may make the tensor be away at the start, which may make further host copies valid.
        """
        while self._walk_copies(tensor):
            pass

    def _walk_copies(self, tensor: int) -> bool:
        """Walk the tensor's gaps from the home state; True if any memory is now given back earlier.

        At operator 0 the host copy is known to be valid only where the tensor is away then.
        """
        mine = self._of_tensor[tensor]
        last = mine[-1]
        valid = bool(0 <= self._free[last] <= self.count < self._back[last])
        moved = False
        for gap in mine:
            swapped = bool(self._free[gap] >= 0)
            valid = valid and not self._dirty[gap]
            self._valid[gap] = valid
            self._copies[gap] = swapped and not valid
            at_once = int(self._after[gap]) + 1
            if swapped and valid and self._free[gap] > at_once:
                self.load.add(at_once, int(self._free[gap]), -self.size_of(gap))
                self._free[gap] = at_once
                moved = True
            valid = valid or swapped
        return moved

    def _save(self) -> tuple[object, ...]:
        parts = (self._free, self._back, self._copies, self._valid)
        return (*(part.copy() for part in parts), self.load.copy(), self._out, self._in)

    def _restore(self, saved: tuple[object, ...]) -> None:
        self._free, self._back, self._copies, self._valid, self.load, self._out, self._in = saved  # type: ignore[assignment]


def _idle(graph: StepGraph) -> list[TensorId]:
    """Persistent tensors that the graph never accesses, smallest first."""
    found = [t for t, ops in zip(graph.tensors, accesses(graph), strict=True) if t.persistent and not ops]
    return [t.id for t in sorted(found, key=lambda t: (t.size_bytes, -t.id))]


def _dirty(graph: StepGraph, tensors: list[int], after: list[int]) -> list[bool]:
    """For each gap whether its tensor is written after its previous gap began (or the iteration) and before it."""
    writes: list[list[int]] = [[] for _ in graph.tensors]
    for index, operator in enumerate(graph.operators):
        for written in {*operator.writes}:
            writes[written].append(index)
    found = []
    for gap, tensor in enumerate(tensors):
        previous = after[gap - 1] if gap and tensors[gap - 1] == tensor else -1
        found.append(any(previous < k <= after[gap] for k in writes[tensor]))
    return found
