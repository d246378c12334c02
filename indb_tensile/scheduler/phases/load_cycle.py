"""A job's iteration as a load over time, and the sum of the loads of several jobs.

Zico (Lim et al., section 5) schedules jobs by their memory over time, and so does phase_offsets.py. Operators,
tensors and copies do not matter there, only how many bytes a job occupies during each operator and how long that
takes.
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
from indb_tensile.scheduler.plan_cache import PlanCache
from indb_tensile.scheduler.rewrite import effective, effective_latency
from indb_tensile.scheduler.timing.job_runs import EventKind, JobRun
from indb_tensile.scheduler.timing.simulate import timeline
from indb_tensile.scheduler.workload import Workload

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cycle:
    """One job's iteration in segments: the load and duration of each segment, and the load between iterations.

    The load between iterations is the least load, so that a job that has not begun yet is never in another job's way.
    `stops` says before which operator each segment ends. Without `stops` each segment is one operator.
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
        """The nanoseconds of an iteration that runs alone."""
        return sum(self.duration_ns)

    @property
    def peak_bytes(self) -> int:
        """The most bytes that the job occupies."""
        return max(self.load_bytes)


def cycle(run: JobRun, link: Link, cache: PlanCache | None = None) -> Cycle:
    """Return a job's iteration under its plan, with the waits that it has alone on the link."""
    graph = effective(run.graph, run.plan, cache)
    duration = list(effective_latency(run.latency_ns, run.plan))
    events = timeline((run,), link, cache=cache)
    for event in events:
        if event.kind is EventKind.UPLOAD:
            duration[event.operator] = 0
    for event in events:
        if event.kind in (EventKind.UPLOAD, EventKind.LATE_OUT, EventKind.LATE_IN):
            duration[event.operator] += event.end_ns - event.start_ns
    load_by_operator = load(run.graph, run.plan, cache)
    home = sum(graph.tensors[t].size_bytes for t in resident_at_start(run.graph, run.plan, cache))
    # a tensor that returns with the first operator is not resident before it
    idle_bytes = min(home, load_by_operator[-1])
    return Cycle(
        load_bytes=tuple(max(idle_bytes, load_bytes) for load_bytes in load_by_operator),
        duration_ns=tuple(max(1, ns) for ns in duration),
        idle_bytes=idle_bytes,
    )


def cycle_of(workload: Workload, plans: Sequence[Plan], link: Link, cache: PlanCache | None = None) -> Cycle:
    """Return the cycle of a job's training step under its plans.

    The job's other graphs run between iterations and pass no gates, so their peak counts at any time.
    """
    run = JobRun(graph=workload.graphs[0], plan=plans[0], latency_ns=workload.latency_ns[0])
    own = cycle(run, link, cache)
    others = [peak(graph, plan, cache) for graph, plan in zip(workload.graphs[1:], plans[1:], strict=True)]
    least = max((own.idle_bytes, *others))
    load_bytes_list = tuple(max(least, operator_bytes) for operator_bytes in own.load_bytes)
    return Cycle(load_bytes=load_bytes_list, duration_ns=own.duration_ns, idle_bytes=least)


def merge_segments(own: Cycle, most: int) -> Cycle:
    """Return the iteration in at most `most` segments. In each segment the job counts with its largest load there.

    Neighbouring segments are merged where that adds the least bytes times nanoseconds, so that jobs wait at few gates
    and hardly longer. Neighbours with the same load are merged in any case, because that adds nothing.
    """
    load_bytes, length, stops = [*own.load_bytes], [*own.duration_ns], [*own.stops]
    after = [*range(1, len(load_bytes)), -1]
    before = [-1, *range(len(load_bytes) - 1)]

    def added(left: int) -> tuple[int, int, int]:
        right = after[left]
        lower = left if load_bytes[left] < load_bytes[right] else right
        return abs(load_bytes[left] - load_bytes[right]) * length[lower], left, right

    heap = [added(left) for left in range(len(load_bytes) - 1)]
    heapify(heap)
    count = len(load_bytes)
    while heap and (count > most or not heap[0][0]):
        cost, left, right = heappop(heap)
        # one of the two has been merged into another segment, or has grown
        if after[left] != right or added(left)[0] != cost:
            continue
        load_bytes[left], stops[left] = max(load_bytes[left], load_bytes[right]), stops[right]
        length[left] += length[right]
        after[left], after[right] = after[right], right  # a segment that points at itself has been merged
        count -= 1
        if after[left] >= 0:
            before[after[left]] = left
            heappush(heap, added(left))
        if before[left] >= 0:
            heappush(heap, added(before[left]))
    remaining = [number for number in range(len(load_bytes)) if after[number] != number]
    return Cycle(
        load_bytes=tuple(load_bytes[number] for number in remaining),
        duration_ns=tuple(length[number] for number in remaining),
        idle_bytes=own.idle_bytes,
        stops=tuple(stops[number] for number in remaining),
    )


@dataclass(frozen=True, slots=True)
class LoadCurve:
    """Bytes over time: `bytes[k]` from `times_ns[k]` on. The first time is before all events."""

    times_ns: Ints
    bytes: Ints

    def at(self, times_ns: Ints) -> Ints:
        """Return the bytes at these times."""
        return np.asarray(self.bytes[np.searchsorted(self.times_ns, times_ns, side="right") - 1], dtype=np.int64)


def curve(cycles: Sequence[Cycle], started: Sequence[tuple[int, int]]) -> LoadCurve:
    """Return the sum of the loads of all jobs. `started` are the (start, job) of iterations; jobs are idle the rest
    of the time.
    """
    times, changes = [np.array([-(2**62)])], [np.array([sum(c.idle_bytes for c in cycles)])]
    for start_ns, job in started:
        load_bytes = np.array(
            [cycles[job].idle_bytes, *cycles[job].load_bytes, cycles[job].idle_bytes], dtype=np.int64
        )
        times.append(start_ns + np.array([0, *accumulate(cycles[job].duration_ns)], dtype=np.int64))
        changes.append(np.diff(load_bytes))
    at, change = np.concatenate(times), np.concatenate(changes)
    order = np.argsort(at, kind="stable")
    at, total = at[order], np.cumsum(change[order])
    last = np.append(at[1:] != at[:-1], True)  # of several changes at one time only the sum counts
    return LoadCurve(at[last], total[last])
