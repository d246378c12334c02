"""The one cost model: what a set of plans does to time and memory on one device with two copy lanes.

A discrete-event simulation of any number of jobs, each repeating its training step. At boundary k a job
queues the copies to the host of what operator k - 1 accessed last, waits for the copies whose memory is
given back at k, queues the copies back that start at k, waits for those that operator k needs, and runs
operator k. The two lanes are first in, first out, and shared by all jobs in the order of request. An upload
occupies the in-lane and its job waits for it. Between giving memory back and taking it, a job waits at its gates,
where it has any (schedule.py).

Residency changes only at the plan's boundaries, so the peak follows from the plan (peak.py); what is
simulated is time, and every nanosecond a job does not compute is attributed to its cause.
"""

import heapq
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import accumulate

from indb_tensile.errors import InvariantError
from indb_tensile.scheduler.graph import OpIndex, Stage, StepGraph, TensorId
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import peak
from indb_tensile.scheduler.plan import Plan
from indb_tensile.scheduler.rewrite import effective, effective_latency
from indb_tensile.scheduler.timing.copy_flow import Copy, Flow, Lane
from indb_tensile.scheduler.timing.gate_passing import Closed, Gates, gates_of, whole_rounds
from indb_tensile.scheduler.timing.schedule import Schedule

_WARM_UP = 2  # iterations of the slowest job before anything is measured
_MEASURED = 6  # iterations of the slowest job that are measured
_MOST_TOGETHER = 4096  # iterations after which a job much faster than the others leaves the simulation
_MOST_ALONE = 24  # iterations within which a single job's lanes repeat, or are averaged


class Compute(StrEnum):
    """How jobs share the device's arithmetic."""

    OVERLAP = "overlap"  # each job computes as if alone: contention is within the measured latencies
    TURNS = "turns"  # one resource, handed round by operator


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRun:
    """One job repeating one graph under one plan. An upload's latency is the link's, whatever stands here.

    Graph and latencies are the captured ones; what runs is what the plan makes of them.
    """

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
    gate_ns: int = 0  # waiting at gates for other jobs to have come far enough

    @property
    def copies_ns(self) -> int:
        """Waiting for copies, of swapped tensors and of the batch: what a trainer measures as its stalls."""
        return self.stall_out_ns + self.stall_in_ns + self.upload_ns


class EventKind(StrEnum):
    """What a stretch of the timeline is."""

    COMPUTE = "compute"
    UPLOAD = "upload"
    SWAP_OUT = "swap out"
    SWAP_IN = "swap in"
    LATE_OUT = "late swap-out"
    LATE_IN = "late swap-in"
    TURN = "waiting for its turn"
    GATE = "waiting at a gate"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One stretch of one job's time: an operator, a copy of a tensor on its lane, or a wait before an operator."""

    job: int  # position among the runs
    kind: EventKind
    operator: OpIndex
    tensor: TensorId | None
    start_ns: int
    end_ns: int


def simulate(
    runs: Sequence[JobRun],
    link: Link,
    *,
    compute: Compute = Compute.OVERLAP,
    schedules: Sequence[Schedule] = (),
) -> tuple[Forecast, ...]:
    """Run all jobs from their home states until the pattern repeats; report each job's mean iteration.

    A single job is run until its lanes' backlog repeats at an iteration's start, which makes the figures exact.
    Several jobs never repeat exactly; they run until the slowest has been measured for some iterations. The jobs of
    `schedules` are positions among the runs. Raises InvariantError where they wait for each other for ever.
    """
    every = compute is Compute.TURNS and len(runs) > 1
    engine = _Engine(runs, link, compute, every=every, schedules=schedules)
    if len(runs) == 1:
        engine.run_alone()
    else:
        engine.run_together(whole_rounds(schedules, _MEASURED))
    return tuple(_forecast(job) for job in engine.jobs)


def timeline(
    runs: Sequence[JobRun],
    link: Link,
    *,
    compute: Compute = Compute.OVERLAP,
    schedules: Sequence[Schedule] = (),
) -> tuple[Event, ...]:
    """What happens from the end of the warm-up on, for one iteration of the slowest job, or one round."""
    engine = _Engine(runs, link, compute, every=True, schedules=schedules)
    for job in engine.jobs:
        job.noted = []
    start_ns, end_ns = engine.run_together(whole_rounds(schedules, 1))
    engine.finish_copies()
    events = (event for job in engine.jobs for event in _events(job))
    shown = [e for e in events if e.end_ns > start_ns and e.start_ns < end_ns and e.end_ns > e.start_ns]
    return tuple(sorted(shown, key=lambda e: (e.start_ns, e.end_ns, e.job, e.kind, e.operator)))


# --- what a job does in an iteration ---------------------------------------------------------------------------


@dataclass(slots=True)
class _Stop:
    """A boundary at which something other than computing happens, in the order of the fields."""

    operator: int
    outs: list[tuple[int, int]] = field(default_factory=list)  # (swap, duration) queued
    frees: list[int] = field(default_factory=list)  # swaps whose copy out is waited for
    ins: list[tuple[int, int]] = field(default_factory=list)  # (swap, duration) queued
    needs: list[int] = field(default_factory=list)  # swaps whose copy in is waited for
    upload_ns: int = 0  # on the in-lane, 0 where the operator is no upload
    gated: bool = False  # other jobs are waited for, or wait for this boundary
    compute_ns: int = 0  # from here to the next stop

    @property
    def shared(self) -> bool:
        """Whether what happens here depends on other jobs, or they on it."""
        return bool(self.outs or self.ins or self.frees or self.needs or self.upload_ns or self.gated)


def _stops(graph: StepGraph, run: JobRun, link: Link, gated: Set[int], *, every: bool) -> tuple[_Stop, ...]:
    """The boundaries of one iteration where the job does more than compute; boundary 0 is always one."""
    count = len(graph.operators)
    uploads = {k for k, op in enumerate(graph.operators) if op.stage is Stage.UPLOAD}
    latency_ns = effective_latency(run.latency_ns, run.plan)
    wanted = set(range(count)) if every else {0, *uploads, *gated}
    for swap in run.plan.swaps:
        wanted |= {(swap.out_after + 1) % count, swap.free_at, swap.in_at, swap.needed_by}
    stops = {k: _Stop(k, gated=k in gated) for k in sorted(wanted)}
    before = (0, *accumulate(0 if k in uploads else ns for k, ns in enumerate(latency_ns)))
    for stop, end in zip(stops.values(), (*list(stops)[1:], count), strict=True):
        stop.compute_ns = before[end] - before[stop.operator]
    for number, swap in enumerate(run.plan.swaps):
        size_bytes = graph.tensors[swap.tensor].size_bytes
        if swap.copies:
            stops[(swap.out_after + 1) % count].outs.append((number, link.out_ns(size_bytes)))
        stops[swap.free_at].frees.append(number)
        stops[swap.in_at].ins.append((number, link.in_ns(size_bytes)))
        stops[swap.needed_by].needs.append(number)
    for index in uploads:
        written = {*graph.operators[index].writes}
        stops[index].upload_ns = link.in_ns(sum(graph.tensors[t].size_bytes for t in written))
    return tuple(stops.values())


_COMPUTE, _LATE_OUT, _LATE_IN, _UPLOAD, _TURN, _GATE = range(6)
_KINDS = (
    *(EventKind.COMPUTE, EventKind.LATE_OUT, EventKind.LATE_IN, EventKind.UPLOAD),
    *(EventKind.TURN, EventKind.GATE),
)


@dataclass(frozen=True, slots=True)
class _Noted:
    """Something for the timeline: a copy, whose times are known when it is done, or a stretch of the job's time."""

    kind: EventKind
    operator: int
    swap: int | None
    copy: Copy


class _Job:
    """One job's progress, its counters, and its program: a generator of what it waits for.

    It yields a moment, or a copy that has to be done or a gate that is closed, and is resumed when that has come and
    `now_ns` says when.
    """

    def __init__(self, run: JobRun, number: int, link: Link, gates: Gates, *, every: bool) -> None:
        self.run = run
        self.graph = effective(run.graph, run.plan)
        self.number = number
        self.gates = gates
        self.reached = (-1, 0.0)  # the latest boundary of those that matter to gates, and when
        self.stops = _stops(self.graph, run, link, gates.boundaries, every=every)
        self.now_ns = 0.0
        self.totals = [0.0] * len(_KINDS)
        self.marks: list[tuple[float, ...]] = []  # (time, *totals) at each iteration's start
        self.window = (0, 0)  # the marks between which the job is measured
        self.noted: list[_Noted] | None = None
        self.most = _MOST_TOGETHER
        self.outs: list[Copy | None] = [None] * len(run.plan.swaps)  # the latest copies of each swap
        self.ins: list[Copy | None] = [None] * len(run.plan.swaps)

    def backlog(self) -> tuple[float, ...]:
        """What is left of each swap's copies: all of the past that still matters to a job alone."""
        return tuple(0.0 if copy is None else copy.left_ns for copy in (*self.outs, *self.ins))

    def program(self, flow: Flow, turns: "_Turns | None", jobs: Sequence["_Job"]) -> Iterator[Copy | Closed | None]:
        """Yields None to be resumed at `now_ns`, or the copy or gate it waits for."""
        outs, ins = self.outs, self.ins
        while True:
            yield None
            self.marks.append((self.now_ns, *self.totals))
            yield None
            for stop in self.stops:
                if stop.shared:
                    yield None
                for swap, duration_ns in stop.outs:
                    outs[swap] = self._queue(flow, Lane.OUT, stop, swap, duration_ns)
                if stop.frees or stop.gated:
                    yield from self._give_back(stop, jobs)
                for swap, duration_ns in stop.ins:
                    ins[swap] = self._queue(flow, Lane.IN, stop, swap, duration_ns)
                for swap in stop.needs:
                    yield from self._wait(ins[swap], _LATE_IN, stop, swap)
                if stop.upload_ns:
                    copy = flow.queue(Lane.IN, self.number, stop.upload_ns)
                    yield from self._wait(copy, _UPLOAD, stop, None)
                if turns is not None and stop.compute_ns:
                    yield None
                    self._spend(_TURN, turns.take(self.now_ns, stop.compute_ns) - self.now_ns, stop, None)
                self._spend(_COMPUTE, stop.compute_ns, stop, None)

    def _give_back(self, stop: _Stop, jobs: Sequence["_Job"]) -> Iterator[Copy | Closed]:
        """Wait for this boundary's copies out, then at its gates."""
        for swap in stop.frees:
            yield from self._wait(self.outs[swap], _LATE_OUT, stop, swap)
        if not stop.gated:
            return
        iteration = len(self.marks) - 1
        self.reached = (iteration * len(self.graph.operators) + stop.operator, self.now_ns)
        for closed in self.gates.before(iteration, stop.operator):
            if jobs[closed.job].reached[0] < closed.boundary:
                since_ns = self.now_ns
                yield closed
                self.now_ns = since_ns
                self._spend(_GATE, closed.opened_ns - since_ns, stop, None)

    def _queue(self, flow: Flow, lane: Lane, stop: _Stop, swap: int, duration_ns: int) -> Copy:
        copy = flow.queue(lane, self.number, duration_ns)
        if self.noted is not None:
            kind = EventKind.SWAP_OUT if lane is Lane.OUT else EventKind.SWAP_IN
            self.noted.append(_Noted(kind, stop.operator, swap, copy))
        return copy

    def _wait(self, copy: Copy | None, cause: int, stop: _Stop, swap: int | None) -> Iterator[Copy]:
        if copy is None or copy.done_ns <= self.now_ns:
            return
        since_ns = self.now_ns
        yield copy
        self.now_ns = since_ns
        self._spend(cause, copy.done_ns - since_ns, stop, swap)

    def _spend(self, cause: int, duration_ns: float, stop: _Stop, swap: int | None) -> None:
        start_ns = self.now_ns
        self.totals[cause] += duration_ns
        self.now_ns += duration_ns
        if self.noted is not None:
            self.noted.append(_Noted(_KINDS[cause], stop.operator, swap, Copy(0.0, start_ns, self.now_ns)))


@dataclass(slots=True)
class _Turns:
    """The device's arithmetic as one resource, given to operators in the order of request."""

    free_ns: float = 0.0

    def take(self, now_ns: float, duration_ns: int) -> float:
        """When an operator asked for now starts."""
        start_ns = max(now_ns, self.free_ns)
        self.free_ns = start_ns + duration_ns
        return start_ns


# --- all jobs in the order of time -----------------------------------------------------------------------------


class _Engine:
    """The jobs, the lanes they share, and who acts next."""

    def __init__(
        self,
        runs: Sequence[JobRun],
        link: Link,
        compute: Compute,
        *,
        every: bool,
        schedules: Sequence[Schedule] = (),
    ) -> None:
        counts = [len(effective(run.graph, run.plan).operators) for run in runs]
        gates = gates_of(counts, schedules)
        self.jobs = [_Job(run, number, link, gates[number], every=every) for number, run in enumerate(runs)]
        self._flow = Flow(link.duplex)
        turns = _Turns() if compute is Compute.TURNS else None
        self._programs = [job.program(self._flow, turns, self.jobs) for job in self.jobs]
        self._shut: list[tuple[Closed, int]] = []  # the gates at which jobs wait, and who
        self._ready: list[tuple[float, int]] = [(0.0, number) for number in range(len(runs))]
        self._waiting: dict[Copy, int] = {}

    def run_alone(self) -> None:
        """Until the lanes look at an iteration's start as they did at an earlier one's."""
        (job,) = self.jobs
        seen: dict[tuple[float, ...], int] = {}
        while len(job.marks) <= _MOST_ALONE:
            before = len(job.marks)
            self._step()
            if len(job.marks) > before:
                state = job.backlog()
                if state in seen:
                    job.window = (seen[state], before)
                    return
                seen[state] = before
        job.window = (_MOST_ALONE // 2, _MOST_ALONE)

    def run_together(self, measured: int) -> tuple[float, float]:
        """Until every job has been measured so often after its warm-up. Returns the measured time."""
        last = _WARM_UP + measured
        for job in self.jobs:  # others may wait for all the rounds that the slowest is measured in, and a few more
            job.most = max(_MOST_TOGETHER, (last + len(self.jobs) + 1) * job.gates.iterations)
        for job in self.jobs:
            while len(job.marks) <= last:
                self._step()
        start_ns = max(job.marks[_WARM_UP][0] for job in self.jobs)
        for job in self.jobs:
            first = sum(mark[0] < start_ns for mark in job.marks)
            first, end = min(first, len(job.marks) - 2), len(job.marks) - 1
            rounds = (end - first) // job.gates.iterations  # of which the iterations differ
            job.window = (first, first + rounds * job.gates.iterations if rounds else end)
        return start_ns, max(job.marks[last][0] for job in self.jobs)

    def finish_copies(self) -> None:
        """Let everything that is queued be copied."""
        while (next_ns := self._flow.next_ns()) < float("inf"):
            self._flow.advance(next_ns)

    def _step(self) -> None:
        """Let the job act whose turn is next, after whatever copies are done before."""
        while self._waiting and (not self._ready or self._flow.next_ns() <= self._ready[0][0]):
            self._advance(self._flow.next_ns())
        if not self._ready:
            waiting = ", ".join(f"{number} for {closed.job}" for closed, number in self._shut)
            raise InvariantError(f"all jobs wait at gates for each other: {waiting}")
        time_ns, number = heapq.heappop(self._ready)
        self._advance(time_ns)  # a copy that is next to done by then is done
        job = self.jobs[number]
        wanted = next(self._programs[number])
        if isinstance(wanted, Closed):
            self._shut.append((wanted, number))
        elif wanted is not None:
            wanted.awaited = True
            self._waiting[wanted] = number
        elif len(job.marks) <= job.most:
            heapq.heappush(self._ready, (job.now_ns, number))
        if self._shut:
            self._open(job)

    def _advance(self, to_ns: float) -> None:
        """Let copies go on, and whoever waited for them."""
        for copy in self._flow.advance(to_ns):
            heapq.heappush(self._ready, (copy.done_ns, self._waiting.pop(copy)))

    def _open(self, job: _Job) -> None:
        """Let those through who waited for this job to come as far as it has."""
        boundary, time_ns = job.reached
        opened = [(c, who) for c, who in self._shut if c.job == job.number and c.boundary <= boundary]
        for closed, who in opened:
            closed.opened_ns = time_ns
            heapq.heappush(self._ready, (time_ns, who))
            self._shut.remove((closed, who))


def _forecast(job: _Job) -> Forecast:
    first, last = job.window
    means = [round((b - a) / (last - first)) for a, b in zip(job.marks[first], job.marks[last], strict=True)]
    graph, swaps = job.graph, job.run.plan.swaps
    return Forecast(
        iteration_ns=means[0],
        compute_ns=means[1 + _COMPUTE],
        stall_out_ns=means[1 + _LATE_OUT],
        stall_in_ns=means[1 + _LATE_IN],
        upload_ns=means[1 + _UPLOAD],
        turn_ns=means[1 + _TURN],
        gate_ns=means[1 + _GATE],
        peak_bytes=peak(job.run.graph, job.run.plan),
        out_bytes=sum(graph.tensors[s.tensor].size_bytes for s in swaps if s.copies),
        in_bytes=sum(graph.tensors[s.tensor].size_bytes for s in swaps),
    )


def _events(job: _Job) -> Iterator[Event]:
    for noted in job.noted or ():
        if noted.copy.done_ns == float("inf"):
            continue
        yield Event(
            job=job.number,
            kind=noted.kind,
            operator=OpIndex(noted.operator),
            tensor=None if noted.swap is None else job.run.plan.swaps[noted.swap].tensor,
            start_ns=round(noted.copy.started_ns),
            end_ns=round(noted.copy.done_ns),
        )
