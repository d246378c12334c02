"""Swap events of one graph: TENSILE's peak analysis (Algorithm 1) and its swap scheduling (Algorithm 2).

A swap-out starts as early as the channel is free after the access that generates the tensor, or after a later access
if the swap-in would find no free interval. It has to be done before the peak. Its swap-in starts as late as the
channel allows before the next use. No operator may wait: without both intervals there is no swap. Once a tensor has
left, it is also released after each further use if it can be swapped in before the next (its host copy is still
valid).

Line numbers are those that the paper's prose uses, which do not count the ends of blocks. The paper is incomplete or
contradictory in the following points. Our decisions:

- Algorithm 1 walks the time axis. Here the footprint is stored for each operator, so that an event is one addition to
  a range instead of another walk. A TGA counts from the start of its operator, because memory is taken then.
- Section IV-B (3) counts a swap-in when it *ends*, though its memory is in use from the start of the copy. We count
  it from the boundary at which the copy may start, as our checker does, so that the computed peak is the real one.
  `Rules.counts_at_end` counts as the paper does.
- After a failed swap-in, line 19 moves the swap-out's *latest* time, section IV-C its *earliest* one. Only the second
  makes the loop of lines 32-33 continue to the next access, so we do that.
- The paper bounds the swap-out by the peak and the swap-in only by its use. A tensor may therefore be back before the
  peak; then its further uses (line 34) may lower the peak.
- A tensor that is written anew is another tensor to the paper: see sequence.py.
- A swap that frees its memory for no whole operator is not made.
- The batch's upload occupies the channel as well.
- The paper's Swap Executor starts a copy when it is planned. Ours queues a copy as soon as its tensor may leave or
  its memory is taken, on the lane of its direction. If a copy would then be late behind another copy, it gives its
  memory back later, if the peak allows that, or the tensor is not swapped: no operator may wait.
"""

from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from indb_tensile.scheduler.graph import OpIndex, Stage, StepGraph, TensorId
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import LIVENESS, Load, plan_load
from indb_tensile.scheduler.plan import Swap
from indb_tensile.scheduler.tensile.channel import Channel
from indb_tensile.scheduler.tensile.lane_calendar import Axis, Entries, Ints, Queue
from indb_tensile.scheduler.tensile.sequence import AccessSequence, sequences, writers

_NEVER = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Switches for the paper's heuristics. All are on, unless a test examines one of them."""

    counts_at_end: bool = False  # section IV-B (3): a swap-in counts from its end
    # Algorithm 2, lines 8-9 and 27: updated parameters are away until the next iteration
    across_iterations: bool = True
    further_uses: bool = True  # Algorithm 2, line 34: swap the rest of a tensor's uses, greedily
    stands_still: bool = True  # Algorithm 3, line 4: stop if the last rounds changed little
    recomputes: bool = True  # section IV-D


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPeak:
    """The result of Algorithm 1: the most bytes, the first operator that has them, and the start of that operator."""

    size_bytes: int
    operator: OpIndex
    time_ns: int


@dataclass(slots=True)
class _Event:
    """One gap in which a tensor is away. Boundaries are counted from the start of the iteration in which the tensor
    leaves.
    """

    tensor: TensorId
    after: int
    need: int
    free: int
    back: int
    counts_from: int
    out_start_ns: int | None  # None: the host copy is still valid and nothing is copied
    in_start_ns: int


class SwapEvents:
    """The swap events of one graph, which are added one by one, with the footprint and the channel."""

    def __init__(self, graph: StepGraph, latency_ns: tuple[int, ...], link: Link, rules: Rules) -> None:
        self.graph = graph
        self.away: set[TensorId] = set()
        self.swapped = 0  # number of swapped tensors, the paper's SON
        self._rules = rules
        self._link = link
        self._load = plan_load(graph, LIVENESS)  # activity analysis: Algorithm 3, line 2
        self._written = writers(graph)
        self._events: dict[TensorId, dict[int, _Event]] = {}
        self.count = len(graph.operators)
        self._lay_channel(latency_ns)
        self._lay_sequences()

    # --- questions ---------------------------------------------------------------------------------------------

    @property
    def peak(self) -> MemoryPeak:
        """The peak according to Algorithm 1."""
        operator = OpIndex(self._load.argmax())
        return MemoryPeak(size_bytes=self._load.at(operator), operator=operator, time_ns=self._begin(operator))

    @property
    def footprint(self) -> Load:
        """The bytes at each operator. Callers must not change the object."""
        return self._load

    @property
    def swaps(self) -> tuple[Swap, ...]:
        """The events so far, as a plan's swaps."""
        planned = [
            Swap(
                tensor=tensor,
                out_after=OpIndex(event.after),
                free_at=OpIndex(event.free % self.count),
                in_at=OpIndex(event.back % self.count),
                needed_by=OpIndex(event.need % self.count),
                copies=event.out_start_ns is not None,
            )
            for tensor, events in self._events.items()
            for event in events.values()
        ]
        return tuple(sorted(planned, key=lambda swap: (swap.tensor, swap.out_after)))

    def candidates(self, operator: OpIndex, *, limited: bool) -> Ints:
        """Return the sequences of tensors on the device at this operator that may still be scheduled, largest tensor
        first.

        If the job is `limited` by its maximum swapping rate, return only updated ones: the rate is in line 28 of
        Algorithm 2 and not in line 26.
        """
        allowed = (self._at(operator) > self._failed) & ~self._done
        return np.flatnonzero(allowed & ~self._rated if limited else allowed)

    def tensor_of(self, number: int) -> TensorId:
        """Return the tensor of this sequence."""
        return self._sequences[number].tensor

    def size_of(self, number: int) -> int:
        """Return the bytes of this sequence's tensor."""
        return self._size(self.tensor_of(number))

    # --- changes -----------------------------------------------------------------------------------------------

    def schedule(self, number: int, operator: OpIndex) -> bool:
        """Swap this sequence's tensor out before the peak at this operator, and in again. Return False
        if that fails.
        """
        sequence = self._sequences[number]
        at = int(self._at(operator)[number])
        succeeded = self._leave_idle(sequence) or self._schedule(sequence, at)
        if succeeded:
            self._done[number] = True
        else:
            # the number of free intervals only falls, so the sequence fails at earlier peaks as well
            self._failed[number] = at
        return succeeded

    def _leave_idle(self, sequence: AccessSequence) -> bool:
        """Keep a tensor on the host that this graph never accesses. It is in no access sequence, so in the paper it
        has no memory.
        """
        if sequence.accesses:
            return False
        self.away.add(sequence.tensor)
        self._load.add(0, self.count, -self.graph.tensors[sequence.tensor].size_bytes)
        return True

    def _schedule(self, sequence: AccessSequence, at: int) -> bool:
        """Schedule the first gap before the peak in which the tensor can leave, then the further ones (Algorithm 2,
        lines 25-34).
        """
        tensor = sequence.tensor
        for number, (after, need) in enumerate(pairwise(sequence.accesses)):
            if after >= at:
                return False
            if self._swap(tensor, after, need, at):
                self.swapped += 1
                for further in list(pairwise(sequence.accesses))[number + 1 :] if self._rules.further_uses else ():
                    self._swap(tensor, *further, further[1])
                self._keep_host_copies(tensor)
                return True
        return False

    def _swap(self, tensor: TensorId, after: int, need: int, by: int) -> bool:
        """Swap out after one access, at the latest by a boundary, and in before the next access (lines 1-21)."""
        cap_bytes = self._load.maximum()
        out = self._swap_out(tensor, after, min(need, by))
        if out is None:
            return False
        event = self._swap_in(tensor, after, need, *out)
        if event is None:
            self._give_back(out[1], tensor)
            return False
        self._events.setdefault(tensor, {})[after] = event
        self._load.add(event.free, event.counts_from, -self._size(tensor))
        if self._in_time(event, by, cap_bytes):
            return True
        del self._events[tensor][after]
        self._load.add(event.free, event.counts_from, self._size(tensor))
        self._give_back(event.out_start_ns, tensor)
        self.channel.give_back(event.in_start_ns, self._link.in_ns(self._size(tensor)))
        return False

    def _swap_out(self, tensor: TensorId, after: int, by: int) -> tuple[int, int | None] | None:
        """Return the boundary that gives memory back, as early as possible, and the start of the copy if there is
        one.
        """
        if self._host_copy_valid(tensor, after):
            return after + 1, None
        out_ns = self._link.out_ns(self._size(tensor))
        start_ns = self.channel.earliest(self._end(after), self._begin(by), out_ns)
        if start_ns is None:
            return None
        self.channel.take(start_ns, out_ns)
        return max(after + 1, self.axis.first_boundary_from(start_ns + out_ns)), start_ns

    def _swap_in(self, tensor: TensorId, after: int, need: int, free: int, out_start_ns: int | None) -> _Event | None:
        """Return the whole event, with the swap-in as late as possible."""
        in_ns = self._link.in_ns(self._size(tensor))
        out_ns = self._link.out_ns(self._size(tensor))
        left_ns = self._end(after) if out_start_ns is None else out_start_ns + out_ns
        start_ns = self.channel.latest(left_ns, self._begin(need), in_ns)
        if start_ns is None:
            return None
        back = self._last_boundary_by(start_ns)
        if back <= free:
            return None
        self.channel.take(start_ns, in_ns)
        ends_at = min(need, self._last_boundary_by(start_ns + in_ns))
        counts_from = ends_at if self._rules.counts_at_end else back
        return _Event(tensor, after, need, free, back, counts_from, out_start_ns, start_ns)

    def _give_back(self, out_start_ns: int | None, tensor: TensorId) -> None:
        if out_start_ns is not None:
            self.channel.give_back(out_start_ns, self._link.out_ns(self._size(tensor)))

    # --- the device's lanes --------------------------------------------------------------------------------------

    def _in_time(self, new: _Event, by: int, cap_bytes: int) -> bool:
        """Return whether all copies are in time on first-in, first-out lanes. If not, change nothing.

        A late copy to the host may give its memory back later: the new event before the peak, the others if the
        footprint stays below the previous peak.
        """
        events = [event for of_tensor in self._events.values() for event in of_tensor.values()]
        moved: list[tuple[_Event, int]] = []
        outs = [event for event in events if event.out_start_ns is not None]
        for event, done_ns in self._late(self._out_entries(outs), outs):
            free, later = event.free, self.axis.first_boundary_from(done_ns)
            most = min(by, event.back - 1) if event is new else event.back - 1
            if later > most or self._load.maximum_of(free, later) + self._size(event.tensor) > cap_bytes:
                break
            moved.append((event, free))
            self._load.add(free, later, self._size(event.tensor))
            event.free = later
        else:
            if not self._late(self._in_entries(events), events):
                return True
        for event, free in moved:
            self._load.add(free, event.free, -self._size(event.tensor))
            event.free = free
        return False

    def _late(self, entries: Entries, events: list[_Event]) -> list[tuple[_Event, int]]:
        """Return the events whose copy is late on its lane, each with the time at which it is done. Owner -1 marks
        uploads.
        """
        queue = Queue(self.axis, entries, self._ties)
        late = np.flatnonzero((queue.late_ns > 0) & (queue.owner >= 0)).tolist()
        return [(events[int(queue.owner[k])], int(queue.done_ns[k])) for k in late]

    def _out_entries(self, events: list[_Event]) -> Entries:
        after = np.array([event.after for event in events], dtype=np.int64)
        return Entries(
            owner=np.arange(len(events)),
            key=(after + 1) * self._ties + self._tensors(events),
            ready_ns=self.axis.end(after),
            duration_ns=self._out_ns[self._tensors(events)],
            due_ns=self.axis.boundary(np.array([event.free for event in events], dtype=np.int64)),
        )

    def _in_entries(self, events: list[_Event]) -> Entries:
        back = np.array([event.back for event in events], dtype=np.int64)
        need = np.array([event.need for event in events], dtype=np.int64)
        period = back // self.count
        back, need, uploads = back - period * self.count, need - period * self.count, self._uploads
        return Entries(
            owner=np.concatenate((np.arange(len(events)), np.full(len(uploads), -1))),
            key=np.concatenate((back * self._ties + self._tensors(events), (uploads + 1) * self._ties - 1)),
            ready_ns=np.concatenate((self.axis.boundary(back), self.axis.begin(uploads))),
            duration_ns=np.concatenate((self._in_ns[self._tensors(events)], self._upload_ns)),
            due_ns=np.concatenate((self.axis.begin(need), self.axis.begin(uploads + 1))),
        )

    def _tensors(self, events: list[_Event]) -> Ints:
        return np.array([event.tensor for event in events], dtype=np.int64)

    # --- host copies ---------------------------------------------------------------------------------------------

    def _host_copy_valid(self, tensor: TensorId, after: int) -> bool:
        """Return whether the tensor left before this access and was not written since: its copy stays on the host
        (III-C).
        """
        written = self._written[tensor]
        behind = bisect_right(written, after)
        since = written[behind - 1] if behind else _NEVER
        events = self._events.get(tensor, {})
        if any(since <= other < after for other in events):
            return True
        return since == _NEVER and self._away_at_start(tensor)

    def _away_at_start(self, tensor: TensorId) -> bool:
        """Return whether the value that the last iteration left has a host copy in the next iteration.

        The first iteration under a plan starts with host copies only of tensors that are away or leaving.
        """
        count = self.count
        around = [event for event in self._events.get(tensor, {}).values() if event.need >= count]
        leaving = any(event.free > count and event.out_start_ns is not None for event in around)
        return leaving or any(event.free <= count < event.back for event in around)

    def _keep_host_copies(self, tensor: TensorId) -> None:
        """Remove copies out of values of which an event that was added later, but is earlier in time, leaves a host
        copy.
        """
        for event in self._events[tensor].values():
            start_ns = event.out_start_ns
            if start_ns is None or not self._host_copy_valid(tensor, event.after):
                continue
            self._give_back(start_ns, tensor)
            self._load.add(event.after + 1, event.free, -self._size(tensor))
            event.free, event.out_start_ns = event.after + 1, None
            self._failed[:] = _NEVER  # there is one more free interval

    # --- state -------------------------------------------------------------------------------------------------

    def _lay_channel(self, latency_ns: tuple[int, ...]) -> None:
        run_ns = list(latency_ns)
        uploads = [k for k, op in enumerate(self.graph.operators) if op.stage is Stage.UPLOAD]
        for index in uploads:
            written = {*self.graph.operators[index].writes}
            run_ns[index] = self._link.in_ns(sum(self.graph.tensors[t].size_bytes for t in written))
        # if there is nothing but an upload of no bytes, no operator takes time, and the period would be 0
        run_ns[0] += not any(run_ns)
        self.axis = Axis(np.array(run_ns, dtype=np.int64))
        self.channel = Channel(self.axis.period_ns)
        for index in uploads:
            if run_ns[index]:
                self.channel.take(self._begin(index), run_ns[index])
        sizes = [tensor.size_bytes for tensor in self.graph.tensors]
        self._uploads = np.array(uploads, dtype=np.int64)
        self._upload_ns = np.array([run_ns[k] for k in uploads], dtype=np.int64)
        self._out_ns = np.array([self._link.out_ns(size) for size in sizes], dtype=np.int64)
        self._in_ns = np.array([self._link.in_ns(size) for size in sizes], dtype=np.int64)
        self._ties = len(sizes) + 1

    def _begin(self, index: int) -> int:
        return int(self.axis.begin(index))

    def _end(self, index: int) -> int:
        return int(self.axis.end(index))

    def _last_boundary_by(self, time_ns: int) -> int:
        return int(self.axis.last_boundary_by(np.array(time_ns, dtype=np.int64)))

    def _size(self, tensor: TensorId) -> int:
        return self.graph.tensors[tensor].size_bytes

    def _lay_sequences(self) -> None:
        ordered = [s for s in sequences(self.graph) if self._rules.across_iterations or not s.updated]
        sizes = [self.graph.tensors[s.tensor].size_bytes for s in ordered]
        order = sorted(range(len(ordered)), key=lambda k: (-sizes[k], k))  # sequences are sorted by tensor and time
        self._sequences = [ordered[k] for k in order]
        last = self.count - 1
        # The tensor is on the device between the accesses around the end, except at these: the update counts at its
        # start.
        first = [s.accesses[0] + s.updated if s.accesses else 0 for s in self._sequences]
        final = [s.accesses[-1] - s.updated if s.accesses else last for s in self._sequences]
        self._first = np.array(first, dtype=np.int64)
        self._final = np.array(final, dtype=np.int64)
        self._rated = np.array([bool(s.accesses) and not s.updated for s in self._sequences], dtype=np.bool_)
        self._done = np.zeros(len(ordered), dtype=np.bool_)
        self._failed = np.full(len(ordered), _NEVER, dtype=np.int64)  # the latest peak at which each sequence failed

    def _at(self, operator: OpIndex) -> Ints:
        """Return for each sequence the operator, counted on from the sequence's start; -1 if the tensor does not have
        that value.
        """
        now = (self._first <= operator) & (operator <= self._final)
        later = (self._first <= operator + self.count) & (operator + self.count <= self._final)
        return np.where(now, operator, np.where(later, operator + self.count, _NEVER))
