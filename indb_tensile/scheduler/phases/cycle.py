"""A job's iteration as a load over time, and the loads of several jobs together.

Zico (Lim et al., section 5) schedules jobs by what they hold over time, and so does offsets.py: operators, tensors
and copies no longer matter there, only how many bytes a job holds during each operator and how long that takes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from indb_tensile.errors import InvariantError
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import load, peak, resident_at_start
from indb_tensile.scheduler.plan import Plan
from indb_tensile.scheduler.rewrite import effective, effective_latency
from indb_tensile.scheduler.timing.simulate import EventKind, JobRun, timeline
from indb_tensile.scheduler.workload import Workload

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cycle:
    """One job's iteration in stretches: what it holds and how long each takes, and what it holds between iterations.

    That is the least that it holds: a job that has not begun yet is then nowhere in others' way. `stops` says before
    which operator each stretch ends; without it each is one operator.
    """

    load_bytes: tuple[int, ...]
    duration_ns: tuple[int, ...]
    idle_bytes: int
    stops: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.load_bytes or len(self.load_bytes) != len(self.duration_ns) or min(self.duration_ns) <= 0:
            raise InvariantError(f"cycle: {len(self.load_bytes)} loads, {len(self.duration_ns)} positive durations")
        if self.idle_bytes > min(self.load_bytes):
            raise InvariantError(f"cycle: {self.idle_bytes} bytes between iterations, {min(self.load_bytes)} within")
        if not self.stops:
            object.__setattr__(self, "stops", tuple(range(1, len(self.load_bytes) + 1)))
        if len(self.stops) != len(self.load_bytes):
            raise InvariantError(f"cycle: {len(self.load_bytes)} loads in {len(self.stops)} stretches")

    @property
    def period_ns(self) -> int:
        """How long an iteration takes alone."""
        return sum(self.duration_ns)

    @property
    def peak_bytes(self) -> int:
        """The most that the job holds."""
        return max(self.load_bytes)


def cycle(run: JobRun, link: Link) -> Cycle:
    """A job's iteration under its plan, with the waits that it has alone on the link."""
    graph = effective(run.graph, run.plan)
    duration = list(effective_latency(run.latency_ns, run.plan))
    events = timeline((run,), link)
    for event in events:
        if event.kind is EventKind.UPLOAD:
            duration[event.operator] = 0
    for event in events:
        if event.kind in (EventKind.UPLOAD, EventKind.LATE_OUT, EventKind.LATE_IN):
            duration[event.operator] += event.end_ns - event.start_ns
    held = load(run.graph, run.plan)
    home = sum(graph.tensors[t].size_bytes for t in resident_at_start(run.graph, run.plan))
    idle_bytes = min(home, held[-1])  # what comes back with the first operator is not there before it
    return Cycle(
        load_bytes=tuple(max(idle_bytes, load_bytes) for load_bytes in held),
        duration_ns=tuple(max(1, ns) for ns in duration),
        idle_bytes=idle_bytes,
    )


def cycle_of(workload: Workload, plans: Sequence[Plan], link: Link) -> Cycle:
    """A job's training step under its plans.

    Its other graphs run between iterations, and pass no gates; what they need may be held at any time.
    """
    own = cycle(JobRun(graph=workload.graphs[0], plan=plans[0], latency_ns=workload.latency_ns[0]), link)
    others = [peak(graph, plan) for graph, plan in zip(workload.graphs[1:], plans[1:], strict=True)]
    least = max((own.idle_bytes, *others))
    held = tuple(max(least, load_bytes) for load_bytes in own.load_bytes)
    return Cycle(load_bytes=held, duration_ns=own.duration_ns, idle_bytes=least)


def coarse(own: Cycle, most: int) -> Cycle:
    """The iteration in at most so many stretches, through each of which the job counts at the most that it holds.

    Of neighbours those become one for which that adds least bytes times nanoseconds, so that jobs wait at few gates
    and hardly longer. Nothing is added where neighbours hold the same: those are one in any case.
    """
    held, length, stops = [*own.load_bytes], [*own.duration_ns], [*own.stops]
    after = [*range(1, len(held)), -1]
    before = [-1, *range(len(held) - 1)]

    def added(left: int) -> tuple[int, int, int]:
        right = after[left]
        lower = left if held[left] < held[right] else right
        return abs(held[left] - held[right]) * length[lower], left, right

    heap = [added(left) for left in range(len(held) - 1)]
    heapify(heap)
    count = len(held)
    while heap and (count > most or not heap[0][0]):
        cost, left, right = heappop(heap)
        if after[left] != right or added(left)[0] != cost:  # either has become part of another, or grown
            continue
        held[left], stops[left] = max(held[left], held[right]), stops[right]
        length[left] += length[right]
        after[left], after[right] = after[right], right  # what points at itself is gone
        count -= 1
        if after[left] >= 0:
            before[after[left]] = left
            heappush(heap, added(left))
        if before[left] >= 0:
            heappush(heap, added(before[left]))
    kept = [number for number in range(len(held)) if after[number] != number]
    return Cycle(
        load_bytes=tuple(held[number] for number in kept),
        duration_ns=tuple(length[number] for number in kept),
        idle_bytes=own.idle_bytes,
        stops=tuple(stops[number] for number in kept),
    )


@dataclass(frozen=True, slots=True)
class Curve:
    """Bytes over time: `bytes[k]` from `times_ns[k]` on; the first time is before everything."""

    times_ns: Ints
    bytes: Ints

    def at(self, times_ns: Ints) -> Ints:
        """Bytes at these times."""
        return np.asarray(self.bytes[np.searchsorted(self.times_ns, times_ns, side="right") - 1], dtype=np.int64)


def curve(cycles: Sequence[Cycle], started: Sequence[tuple[int, int]]) -> Curve:
    """The loads of all these jobs together, of which those (start, job) run and the rest of the time is idle."""
    times, changes = [np.array([-(2**62)])], [np.array([sum(c.idle_bytes for c in cycles)])]
    for start_ns, job in started:
        held = np.array([cycles[job].idle_bytes, *cycles[job].load_bytes, cycles[job].idle_bytes], dtype=np.int64)
        times.append(start_ns + np.array([0, *accumulate(cycles[job].duration_ns)], dtype=np.int64))
        changes.append(np.diff(held))
    at, change = np.concatenate(times), np.concatenate(changes)
    order = np.argsort(at, kind="stable")
    at, total = at[order], np.cumsum(change[order])
    last = np.append(at[1:] != at[:-1], True)  # of what changes at one time only the sum counts
    return Curve(at[last], total[last])
