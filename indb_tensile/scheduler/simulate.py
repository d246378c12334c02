"""The one cost model: what a set of plans does to time and memory on one device with two copy lanes.

A discrete-event simulation of any number of jobs, each repeating its training step. At boundary k a job
queues the copies to the host of what operator k - 1 accessed last, waits for the copies whose memory is
given back at k, queues the copies back that start at k, waits for those that operator k needs, and runs
operator k. The two lanes are first in, first out, and shared by all jobs in the order of request. An upload
occupies the in-lane and its job waits for it.

Residency changes only at the plan's boundaries, so the peak follows from the plan (peak.py); what is
simulated is time, and every nanosecond a job does not compute is attributed to its cause.
"""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from indb_tensile.errors import InvariantError
from indb_tensile.scheduler.graph import OpIndex, Stage, StepGraph, TensorId
from indb_tensile.scheduler.peak import peak
from indb_tensile.scheduler.plan import Plan

_NS_PER_S = 1_000_000_000
_WARM_UP = 2  # iterations of the slowest job before anything is measured
_MEASURED = 3  # iterations of the slowest job that are measured
_MOST_TOGETHER = 4096  # iterations after which a job much faster than the others leaves the simulation
_MOST_ALONE = 24  # iterations within which a single job's lanes repeat, or are averaged


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """The two copy lanes between device and host, shared by all jobs; `per_copy_ns` is each copy's start-up."""

    out_bytes_per_s: int
    in_bytes_per_s: int
    per_copy_ns: int = 0

    def __post_init__(self) -> None:
        if self.out_bytes_per_s <= 0 or self.in_bytes_per_s <= 0 or self.per_copy_ns < 0:
            raise InvariantError(f"link: rates must be positive and per_copy_ns not negative: {self}")

    def out_ns(self, size_bytes: int) -> int:
        """How long one copy to the host takes on a free lane."""
        return self.per_copy_ns - (-size_bytes * _NS_PER_S // self.out_bytes_per_s)

    def in_ns(self, size_bytes: int) -> int:
        """How long one copy to the device takes on a free lane."""
        return self.per_copy_ns - (-size_bytes * _NS_PER_S // self.in_bytes_per_s)


class Compute(StrEnum):
    """How jobs share the device's arithmetic."""

    OVERLAP = "overlap"  # each job computes as if alone: contention is within the measured latencies
    TURNS = "turns"  # one resource, handed round by operator


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRun:
    """One job repeating one graph under one plan. An upload's latency is the link's, whatever stands here."""

    graph: StepGraph
    plan: Plan
    latency_ns: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.latency_ns) != len(self.graph.operators):
            raise InvariantError(
                f"job run: {len(self.latency_ns)} latencies for {len(self.graph.operators)} operators"
            )
        if min(self.latency_ns) < 0 or sum(self.latency_ns) == 0:
            raise InvariantError(f"job run: latencies must not be negative nor all 0: least {min(self.latency_ns)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """One job's mean iteration in steady state. The times but `iteration_ns` add up to it, save for rounding."""

    iteration_ns: int
    compute_ns: int
    stall_out_ns: int  # memory could not be given back yet: a late swap-out
    stall_in_ns: int  # an operator's tensor was not back yet: a late swap-in
    upload_ns: int  # from asking for the batch to having it
    peak_bytes: int
    out_bytes: int  # copied to the host for swaps
    in_bytes: int  # copied to the device for swaps
    turn_ns: int = 0  # waiting for other jobs' operators (Compute.TURNS)


class EventKind(StrEnum):
    """What a stretch of the timeline is."""

    COMPUTE = "compute"
    UPLOAD = "upload"
    SWAP_OUT = "swap out"
    SWAP_IN = "swap in"
    LATE_OUT = "late swap-out"
    LATE_IN = "late swap-in"
    TURN = "waiting for its turn"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One stretch of one job's time: an operator, a copy of a tensor on its lane, or a wait before an operator."""

    job: int  # position among the runs
    kind: EventKind
    operator: OpIndex
    tensor: TensorId | None
    start_ns: int
    end_ns: int


def simulate(runs: Sequence[JobRun], link: Link, *, compute: Compute = Compute.OVERLAP) -> tuple[Forecast, ...]:
    """Run all jobs from their home states until the pattern repeats; report each job's mean iteration.

    A single job is run until its lanes' backlog repeats at an iteration's start, which makes the figures exact.
    Several jobs never repeat exactly; they run until the slowest has been measured for three iterations.
    """
    lanes = _Lanes(link)
    jobs = [_Job(run, number, lanes, _stops(run, every=compute is Compute.TURNS)) for number, run in enumerate(runs)]
    if len(jobs) == 1:
        _alone(jobs[0], compute)
    else:
        _together(jobs, compute)
    return tuple(_forecast(job) for job in jobs)


def timeline(runs: Sequence[JobRun], link: Link, *, compute: Compute = Compute.OVERLAP) -> tuple[Event, ...]:
    """What happens from the end of the warm-up on, for one iteration of the slowest job."""
    lanes = _Lanes(link)
    jobs = [_Job(run, number, lanes, _stops(run, every=True)) for number, run in enumerate(runs)]
    events: list[Event] = []
    for job in jobs:
        job.events = events
    start_ns, end_ns = _together(jobs, compute, measured=1)
    shown = [e for e in events if e.end_ns > start_ns and e.start_ns < end_ns and e.end_ns > e.start_ns]
    return tuple(sorted(shown, key=lambda e: (e.start_ns, e.end_ns, e.job, e.kind, e.operator)))


# --- jobs in steps ---------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Lanes:
    """When each shared resource is free again."""

    link: Link
    out_free_ns: int = 0
    in_free_ns: int = 0
    compute_free_ns: int = 0


@dataclass(slots=True)
class _Stop:
    """A boundary at which something other than computing happens, in the order of the fields."""

    operator: int
    outs: list[tuple[int, int]] = field(default_factory=list)  # (swap, duration) queued
    frees: list[int] = field(default_factory=list)  # swaps whose copy out is waited for
    ins: list[tuple[int, int]] = field(default_factory=list)  # (swap, duration) queued
    needs: list[int] = field(default_factory=list)  # swaps whose copy in is waited for
    upload_ns: int = 0  # on the in-lane, 0 where the operator is no upload
    compute_ns: int = 0  # from here to the next stop


def _stops(run: JobRun, *, every: bool) -> tuple[_Stop, ...]:
    """The boundaries of one iteration where the job does more than compute; boundary 0 is always one."""
    count = len(run.graph.operators)
    uploads = {k for k, op in enumerate(run.graph.operators) if op.stage is Stage.UPLOAD}
    wanted = set(range(count)) if every else {0, *uploads}
    for swap in run.plan.swaps:
        wanted |= {(swap.out_after + 1) % count, swap.free_at, swap.in_at, swap.needed_by}
    stops = {k: _Stop(k) for k in sorted(wanted)}
    ends = [*list(stops)[1:], count]
    for stop, end in zip(stops.values(), ends, strict=True):
        stop.compute_ns = sum(run.latency_ns[k] for k in range(stop.operator, end) if k not in uploads)
    return tuple(stops.values())


def _fill(job: "_Job", link: Link) -> None:
    """Attach swaps and uploads to the stops."""
    graph, count = job.run.graph, len(job.run.graph.operators)
    stops = {stop.operator: stop for stop in job.stops}
    for number, swap in enumerate(job.run.plan.swaps):
        size_bytes = graph.tensors[swap.tensor].size_bytes
        if swap.copies:
            stops[(swap.out_after + 1) % count].outs.append((number, link.out_ns(size_bytes)))
            job.out_bytes += size_bytes
        stops[swap.free_at].frees.append(number)
        stops[swap.in_at].ins.append((number, link.in_ns(size_bytes)))
        stops[swap.needed_by].needs.append(number)
        job.in_bytes += size_bytes
    for index, operator in enumerate(graph.operators):
        if operator.stage is Stage.UPLOAD:
            stops[index].upload_ns = link.in_ns(sum(graph.tensors[t].size_bytes for t in {*operator.writes}))


class _Job:
    """One job's progress, its counters, and its program as a generator of the times at which it acts."""

    def __init__(self, run: JobRun, number: int, lanes: _Lanes, stops: tuple[_Stop, ...]) -> None:
        self.run = run
        self.number = number
        self.lanes = lanes
        self.stops = stops
        self.out_bytes = 0
        self.in_bytes = 0
        self.out_done = [0] * len(run.plan.swaps)
        self.in_done = [0] * len(run.plan.swaps)
        self.now_ns = 0
        self.totals = [0] * 5  # compute, late out, late in, upload, turns
        self.marks: list[tuple[int, ...]] = []  # (time, *totals) at each iteration's start
        self.window = (0, 0)  # the marks between which the job is measured
        self.events: list[Event] | None = None
        _fill(self, lanes.link)

    def iterations(self, compute: Compute) -> Iterator[int]:
        """Yields the time of its next action on a shared resource, and acts when resumed."""
        while True:
            self.marks.append((self.now_ns, *self.totals))
            yield self.now_ns
            for stop in self.stops:
                if stop.outs:
                    yield self.now_ns
                    self._queue_outs(stop)
                if stop.frees:
                    self._wait(stop, stop.frees, self.out_done, 1)
                if stop.ins:
                    yield self.now_ns
                    self._queue_ins(stop)
                if stop.needs:
                    self._wait(stop, stop.needs, self.in_done, 2)
                if stop.upload_ns:
                    yield self.now_ns
                    self._upload(stop)
                if compute is Compute.TURNS and stop.compute_ns:
                    yield self.now_ns
                    self._take_turn(stop)
                self._compute(stop)

    def _queue_outs(self, stop: _Stop) -> None:
        for swap, duration_ns in stop.outs:
            start_ns = max(self.now_ns, self.lanes.out_free_ns)
            self.out_done[swap] = self.lanes.out_free_ns = start_ns + duration_ns
            self._note(EventKind.SWAP_OUT, stop, start_ns, self.lanes.out_free_ns, swap)

    def _queue_ins(self, stop: _Stop) -> None:
        for swap, duration_ns in stop.ins:
            start_ns = max(self.now_ns, self.lanes.in_free_ns)
            self.in_done[swap] = self.lanes.in_free_ns = start_ns + duration_ns
            self._note(EventKind.SWAP_IN, stop, start_ns, self.lanes.in_free_ns, swap)

    def _wait(self, stop: _Stop, swaps: list[int], done: list[int], cause: int) -> None:
        for swap in swaps:
            if done[swap] > self.now_ns:
                self.totals[cause] += done[swap] - self.now_ns
                kind = EventKind.LATE_OUT if cause == 1 else EventKind.LATE_IN
                self._note(kind, stop, self.now_ns, done[swap], swap)
                self.now_ns = done[swap]

    def _upload(self, stop: _Stop) -> None:
        start_ns = max(self.now_ns, self.lanes.in_free_ns)
        self.lanes.in_free_ns = start_ns + stop.upload_ns
        self.totals[3] += self.lanes.in_free_ns - self.now_ns
        self._note(EventKind.UPLOAD, stop, start_ns, self.lanes.in_free_ns)
        self.now_ns = self.lanes.in_free_ns

    def _take_turn(self, stop: _Stop) -> None:
        start_ns = max(self.now_ns, self.lanes.compute_free_ns)
        self.lanes.compute_free_ns = start_ns + stop.compute_ns
        self.totals[4] += start_ns - self.now_ns
        self._note(EventKind.TURN, stop, self.now_ns, start_ns)
        self.now_ns = start_ns

    def _compute(self, stop: _Stop) -> None:
        self._note(EventKind.COMPUTE, stop, self.now_ns, self.now_ns + stop.compute_ns)
        self.totals[0] += stop.compute_ns
        self.now_ns += stop.compute_ns

    def _note(self, kind: EventKind, stop: _Stop, start_ns: int, end_ns: int, swap: int | None = None) -> None:
        if self.events is None:
            return
        tensor = None if swap is None else self.run.plan.swaps[swap].tensor
        self.events.append(
            Event(
                job=self.number,
                kind=kind,
                operator=OpIndex(stop.operator),
                tensor=tensor,
                start_ns=start_ns,
                end_ns=end_ns,
            )
        )

    def backlog(self) -> tuple[int, ...]:
        """What of the past still matters to the future, relative to now."""
        ends = (self.lanes.out_free_ns, self.lanes.in_free_ns, *self.out_done, *self.in_done)
        return tuple(max(0, end - self.now_ns) for end in ends)


def _alone(job: _Job, compute: Compute) -> None:
    seen: dict[tuple[int, ...], int] = {}
    program = job.iterations(compute)
    while len(job.marks) <= _MOST_ALONE:
        before = len(job.marks)
        next(program)
        if len(job.marks) == before:
            continue
        state = job.backlog()
        if state in seen:
            job.window = (seen[state], len(job.marks) - 1)
            return
        seen[state] = len(job.marks) - 1
    job.window = (_MOST_ALONE // 2, _MOST_ALONE)


def _together(jobs: Sequence[_Job], compute: Compute, measured: int = _MEASURED) -> tuple[int, int]:
    """Advance the job whose next action is the earliest, until all are measured. Returns the measured time."""
    programs = [job.iterations(compute) for job in jobs]
    queue = [(0, number) for number in range(len(jobs))]
    while any(len(job.marks) <= _WARM_UP + measured for job in jobs):
        _, number = heapq.heappop(queue)
        if len(jobs[number].marks) <= _MOST_TOGETHER:
            heapq.heappush(queue, (next(programs[number]), number))
    start_ns = max(job.marks[_WARM_UP][0] for job in jobs)
    for job in jobs:
        first = sum(mark[0] < start_ns for mark in job.marks)
        job.window = (min(first, len(job.marks) - 2), len(job.marks) - 1)
    return start_ns, max(job.marks[_WARM_UP + measured][0] for job in jobs)


def _forecast(job: _Job) -> Forecast:
    first, last = job.window
    means = [(b - a) // (last - first) for a, b in zip(job.marks[first], job.marks[last], strict=True)]
    return Forecast(
        iteration_ns=means[0],
        compute_ns=means[1],
        stall_out_ns=means[2],
        stall_in_ns=means[3],
        upload_ns=means[4],
        turn_ns=means[5],
        peak_bytes=peak(job.run.graph, job.run.plan),
        out_bytes=job.out_bytes,
        in_bytes=job.in_bytes,
    )
