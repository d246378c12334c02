"""The simulator: computes the time and memory of a set of plans on one device with two copy lanes.

A discrete-event simulation of any number of jobs, each of which repeats its training step. At boundary k a job queues
the copies to the host of tensors that operator k - 1 accessed last, and waits for the copies whose memory is given
back at k. It then queues the copies back that start at k, waits for those that operator k needs, and runs operator k.
On each lane the copies of one job run in order, and the jobs share the lane equally (copy_flow.py). Between giving
memory back and taking it, a job waits at its gates if it has any (schedule.py).

Exchanges with other devices have a lane of their own, the network's, which no other job uses. An exchange begins when
the operator that starts it has ended, or the exchange before it has, and the job waits for its end at the operator
that needs it.

An upload occupies the in-lane, and its job waits for it. If the trainer uploads the next batch ahead and the plan has
room, the upload is queued in the iteration before, and the job waits for the rest of it. The batch is assumed to have
been collected by then. The room is that of the plan's loads; its placement may leave the room a little later.

Residency changes only at the plan's boundaries, so the peak follows from the plan (peak.py). The simulation computes
time, and attributes every nanosecond during which a job does not compute to its cause.
"""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from indb_tensile.errors import InvariantError
from indb_tensile.scheduler.graph import OpIndex, StepGraph, TensorId
from indb_tensile.scheduler.link import FREE_COPIES, CopyLoss, Link
from indb_tensile.scheduler.memory.next_batch import batch_tensors, uploads_ahead_from
from indb_tensile.scheduler.memory.peak import peak
from indb_tensile.scheduler.plan import Plan
from indb_tensile.scheduler.plan_cache import PlanCache
from indb_tensile.scheduler.rewrite import effective
from indb_tensile.scheduler.timing.copy_flow import Copy, Flow, Lane
from indb_tensile.scheduler.timing.gate_passing import ClosedGate, JobGates, gates_of, whole_rounds
from indb_tensile.scheduler.timing.iteration_stops import IterationStop, iterations_together, stops_of
from indb_tensile.scheduler.timing.schedule import Schedule

# iterations of the slowest job before the measurement starts, so that the lanes' backlog is that of steady state
_WARM_UP = 2
_MEASURED = 6  # iterations of the slowest job that are measured
# Iterations after which a job much faster than the others leaves the simulation. This bounds the running time.
_MOST_TOGETHER = 4096
# Iterations within which the backlog of a single job's lanes repeats. Otherwise the later half is averaged.
_MOST_ALONE = 24


class Compute(StrEnum):
    """The way in which jobs share the device's compute units."""

    OVERLAP = "overlap"  # Each job computes as if alone. Contention is part of the measured latencies.
    TURNS = "turns"  # one resource, given to one operator after the other


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRun:
    """One job that repeats one graph under one plan. The link gives the time of an upload, and not `latency_ns`.

    Graph and latencies are the captured ones. The plan determines the graph that runs. `batch` names the tensors that
    are uploaded ahead where the plan has room, or with `beside` to memory that the job has beside its plan. Operators
    take longer by `copy_loss` for each copy that is made beside them.
    """

    graph: StepGraph
    plan: Plan
    latency_ns: tuple[int, ...]
    batch: tuple[str, ...] = ()
    beside: bool = False
    copy_loss: CopyLoss = FREE_COPIES

    def __post_init__(self) -> None:
        if len(self.latency_ns) != len(self.graph.operators):
            raise InvariantError(
                f"job run: {len(self.latency_ns)} latencies for {len(self.graph.operators)} operators"
            )
        if min(self.latency_ns) < 0 or sum(self.latency_ns) == 0:
            raise InvariantError(f"job run: latencies must not be negative nor all 0: least {min(self.latency_ns)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The mean iteration of one job in steady state. The other times add up to `iteration_ns`, except
    for rounding.
    """

    iteration_ns: int
    compute_ns: int
    stall_out_ns: int  # waits for a late swap-out, whose memory could not be given back yet
    stall_in_ns: int  # waits for a late swap-in, whose tensor an operator needs
    upload_ns: int  # from the request of the batch until the batch is on the device
    peak_bytes: int
    out_bytes: int  # copied to the host for swaps
    in_bytes: int  # copied to the device for swaps
    turn_ns: int = 0  # waits for other jobs' operators (Compute.TURNS)
    gate_ns: int = 0  # waits at gates for other jobs
    exchange_ns: int = 0  # waits for the end of exchanges with other devices

    @property
    def operators_ns(self) -> int:
        """The time of the operators, with the waits of those that need an exchange."""
        return self.compute_ns + self.exchange_ns

    @property
    def copies_ns(self) -> int:
        """Waits for copies of swapped tensors and of the batch: the stalls that a trainer measures."""
        return self.stall_out_ns + self.stall_in_ns + self.upload_ns


class EventKind(StrEnum):
    """The kind of an event of the timeline."""

    COMPUTE = "compute"
    UPLOAD = "upload"
    SWAP_OUT = "swap out"
    SWAP_IN = "swap in"
    LATE_OUT = "late swap-out"
    LATE_IN = "late swap-in"
    TURN = "waiting for its turn"
    GATE = "waiting at a gate"
    EXCHANGE = "exchange"
    LATE_EXCHANGE = "late exchange"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One interval of one job's time: an operator, a copy of a tensor on its lane, or a wait before an operator."""

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
    cache: PlanCache | None = None,
) -> tuple[Forecast, ...]:
    """Run all jobs from their home states until the pattern repeats. Return each job's mean iteration.

    A single job runs until its lanes' backlog repeats at an iteration's start, which makes the figures exact. Several
    jobs never repeat exactly; they run until the slowest has been measured for some iterations. `schedules` refer to
    jobs by their position among the runs. Raises InvariantError if jobs wait for each other forever.
    """
    every = compute is Compute.TURNS and len(runs) > 1
    kept = PlanCache() if cache is None else cache
    stretches: tuple[int, ...] = ()
    if compute is Compute.OVERLAP and not schedules:
        jobs = [(run.latency_ns, run.plan, effective(run.graph, run.plan, kept)) for run in runs]
        stretches = iterations_together(jobs, link)
    engine = _Engine(runs, link, compute, every=every, schedules=schedules, cache=kept, stretches=stretches)
    if len(runs) == 1:
        engine.run_alone()
    else:
        engine.run_together(whole_rounds(schedules, _MEASURED))
    return tuple(_forecast(job, kept) for job in engine.jobs)


def timeline(
    runs: Sequence[JobRun],
    link: Link,
    *,
    compute: Compute = Compute.OVERLAP,
    schedules: Sequence[Schedule] = (),
    cache: PlanCache | None = None,
) -> tuple[Event, ...]:
    """Return the events after the warm-up, for one iteration of the slowest job or for one round."""
    kept = PlanCache() if cache is None else cache
    engine = _Engine(runs, link, compute, every=True, schedules=schedules, cache=kept)
    for job in engine.jobs:
        job.noted = []
    start_ns, end_ns = engine.run_together(whole_rounds(schedules, 1))
    engine.finish_copies()
    events = (event for job in engine.jobs for event in _events(job))
    shown = [e for e in events if e.end_ns > start_ns and e.start_ns < end_ns and e.end_ns > e.start_ns]
    return tuple(sorted(shown, key=lambda e: (e.start_ns, e.end_ns, e.job, e.kind, e.operator)))


# --- one job -----------------------------------------------------------------------------------------------------


_COMPUTE, _LATE_OUT, _LATE_IN, _UPLOAD, _TURN, _GATE, _LATE_EXCHANGE = range(7)
_KINDS = (
    *(EventKind.COMPUTE, EventKind.LATE_OUT, EventKind.LATE_IN, EventKind.UPLOAD),
    *(EventKind.TURN, EventKind.GATE, EventKind.LATE_EXCHANGE),
)


@dataclass(frozen=True, slots=True)
class _Noted:
    """An entry of the timeline: a copy, whose times are known when it is done, or an interval of the job's time."""

    kind: EventKind
    operator: int
    swap: int | None
    copy: Copy


class _Job:
    """The progress of one job, its counters, and its program: a generator that yields what the job waits for.

    The generator yields a moment, a copy that has to be done, or a closed gate. It is resumed when that has happened,
    with `now_ns` set to the time.
    """

    def __init__(
        self,
        run: JobRun,
        number: int,
        link: Link,
        gates: JobGates,
        *,
        every: bool,
        cache: PlanCache,
        stretch: int = 1,
    ) -> None:
        self.run = run
        self.stretch = stretch
        self.graph = effective(run.graph, run.plan, cache)
        self.number = number
        self.gates = gates
        self.reached = (-1, 0.0)  # the latest boundary that matters to gates, and when the job reached it
        batch = batch_tensors(run.graph, run.batch)
        self.stops = stops_of(
            self.graph,
            run.plan,
            run.latency_ns,
            link,
            gates.boundaries,
            every=every,
            stretch=stretch,
            copy_loss=run.copy_loss,
            batch=batch,
            ahead_from=(
                None if gates.boundaries else uploads_ahead_from(run.graph, run.plan, batch, cache, beside=run.beside)
            ),
        )
        self.now_ns = 0.0
        self.totals = [0.0] * len(_KINDS)
        self.marks: list[tuple[float, ...]] = []  # (time, *totals) at each iteration's start
        self.window = (0, 0)  # the job is measured between these two marks
        self.noted: list[_Noted] | None = None
        self.most = _MOST_TOGETHER
        self.outs: list[Copy | None] = [None] * len(run.plan.swaps)  # the latest copies of each swap
        self.ins: list[Copy | None] = [None] * len(run.plan.swaps)
        self.ahead: dict[int, Copy] = {}  # uploads for the next iteration, by operator
        self.exchanges: dict[int, float] = {}  # when each exchange of this iteration ends

    def backlog(self) -> tuple[float, ...]:
        """Return the rest of each copy. For a job alone nothing else of the past matters."""
        return tuple(0.0 if copy is None else copy.left_ns for copy in (*self.outs, *self.ins, *self.ahead.values()))

    def program(
        self, flow: Flow, turns: "_Turns | None", jobs: Sequence["_Job"]
    ) -> Iterator[Copy | ClosedGate | None]:
        """Yield None to be resumed at `now_ns`, or the copy or gate for which the job waits."""
        outs, ins = self.outs, self.ins
        while True:
            yield None
            self.marks.append((self.now_ns, *self.totals))
            yield None
            for stop in self.stops:
                if stop.shared:
                    yield None
                self._start_exchange(stop)
                for swap, duration_ns in stop.outs:
                    outs[swap] = self._queue(flow, Lane.OUT, stop, swap, duration_ns)
                if stop.frees or stop.gated:
                    yield from self._give_back(stop, jobs)
                self._queue_in(flow, stop)
                for swap in stop.needs:
                    yield from self._wait(ins[swap], _LATE_IN, stop, swap)
                if stop.upload_ns:
                    yield from self._wait(self._upload(flow, stop), _UPLOAD, stop, None)
                self._await_exchange(stop)
                if turns is not None and stop.compute_ns:
                    yield None
                    self._spend(_TURN, turns.take(self.now_ns, stop.compute_ns) - self.now_ns, stop, None)
                self._spend(_COMPUTE, stop.compute_ns, stop, None)

    def _start_exchange(self, stop: IterationStop) -> None:
        """Begin the exchange, if one starts here, now or when the one before it has ended."""
        if stop.starts is None:
            return
        number, duration_ns = stop.starts
        start_ns = max(self.now_ns, self.exchanges.get(number - 1, 0.0) if number else 0.0)
        self.exchanges[number] = start_ns + duration_ns
        if self.noted is not None:
            copy = Copy(0.0, start_ns, start_ns + duration_ns)
            self.noted.append(_Noted(EventKind.EXCHANGE, stop.operator - 1, None, copy))

    def _await_exchange(self, stop: IterationStop) -> None:
        if stop.awaits is not None and self.exchanges[stop.awaits] > self.now_ns:
            self._spend(_LATE_EXCHANGE, self.exchanges[stop.awaits] - self.now_ns, stop, None)

    def _upload(self, flow: Flow, stop: IterationStop) -> Copy:
        """Return the upload that the iteration before has queued, or queue it now."""
        copy = self.ahead.pop(stop.operator, None)
        return flow.queue(Lane.IN, self.number, stop.upload_ns) if copy is None else copy

    def _give_back(self, stop: IterationStop, jobs: Sequence["_Job"]) -> Iterator[Copy | ClosedGate]:
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

    def _queue_in(self, flow: Flow, stop: IterationStop) -> None:
        for swap, duration_ns in stop.ins:
            self.ins[swap] = self._queue(flow, Lane.IN, stop, swap, duration_ns)
        for operator, duration_ns in stop.ahead:
            self.ahead[operator] = flow.queue(Lane.IN, self.number, duration_ns)

    def _queue(self, flow: Flow, lane: Lane, stop: IterationStop, swap: int, duration_ns: int) -> Copy:
        copy = flow.queue(lane, self.number, duration_ns)
        if self.noted is not None:
            kind = EventKind.SWAP_OUT if lane is Lane.OUT else EventKind.SWAP_IN
            self.noted.append(_Noted(kind, stop.operator, swap, copy))
        return copy

    def _wait(self, copy: Copy | None, cause: int, stop: IterationStop, swap: int | None) -> Iterator[Copy]:
        if copy is None or copy.done_ns <= self.now_ns:
            return
        since_ns = self.now_ns
        yield copy
        self.now_ns = since_ns
        self._spend(cause, copy.done_ns - since_ns, stop, swap)

    def _spend(self, cause: int, duration_ns: float, stop: IterationStop, swap: int | None) -> None:
        start_ns = self.now_ns
        self.totals[cause] += duration_ns
        self.now_ns += duration_ns
        if self.noted is not None:
            self.noted.append(_Noted(_KINDS[cause], stop.operator, swap, Copy(0.0, start_ns, self.now_ns)))


@dataclass(slots=True)
class _Turns:
    """The device's compute units as one resource, given to operators in the order of request."""

    free_ns: float = 0.0

    def take(self, now_ns: float, duration_ns: int) -> float:
        """Return when an operator that is requested now starts."""
        start_ns = max(now_ns, self.free_ns)
        self.free_ns = start_ns + duration_ns
        return start_ns


# --- all jobs in the order of time -----------------------------------------------------------------------------


class _Engine:
    """The event loop: the jobs, the lanes that they share, and the queue of jobs that act next."""

    def __init__(
        self,
        runs: Sequence[JobRun],
        link: Link,
        compute: Compute,
        *,
        every: bool,
        schedules: Sequence[Schedule],
        cache: PlanCache,
        stretches: Sequence[int] = (),
    ) -> None:
        counts = [len(effective(run.graph, run.plan, cache).operators) for run in runs]
        gates = gates_of(counts, schedules)
        self.jobs = [
            _Job(run, number, link, gates[number], every=every, cache=cache, stretch=stretch)
            for number, (run, stretch) in enumerate(zip(runs, stretches or (1,) * len(runs), strict=True))
        ]
        self._flow = Flow(link.duplex)
        turns = _Turns() if compute is Compute.TURNS else None
        self._programs = [job.program(self._flow, turns, self.jobs) for job in self.jobs]
        self._shut: list[tuple[ClosedGate, int]] = []  # closed gates and the jobs that wait at them
        self._ready: list[tuple[float, int]] = [(0.0, number) for number in range(len(runs))]
        self._waiting: dict[Copy, int] = {}

    def run_alone(self) -> None:
        """Run until the lanes' backlog at an iteration's start equals that of an earlier iteration."""
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
        """Run until every job has been measured for this many iterations after its warm-up. Return the start and end
        of the measured time.
        """
        last = _WARM_UP + measured
        # Other jobs may wait for all rounds in which the slowest job is measured, and for a few more.
        for job in self.jobs:
            job.most = max(_MOST_TOGETHER, (last + len(self.jobs) + 1) * job.gates.iterations)
        for job in self.jobs:
            while len(job.marks) <= last:
                self._step()
        start_ns = max(job.marks[_WARM_UP][0] for job in self.jobs)
        for job in self.jobs:
            first = sum(mark[0] < start_ns for mark in job.marks)
            first, end = min(first, len(job.marks) - 2), len(job.marks) - 1
            # The iterations of a round differ, so whole rounds are measured.
            rounds = (end - first) // job.gates.iterations
            job.window = (first, first + rounds * job.gates.iterations if rounds else end)
        return start_ns, max(job.marks[last][0] for job in self.jobs)

    def finish_copies(self) -> None:
        """Complete all queued copies."""
        while (next_ns := self._flow.next_ns()) < float("inf"):
            self._flow.advance(next_ns)

    def _step(self) -> None:
        """Let the earliest job act, after all copies that are done before."""
        while self._waiting and (not self._ready or self._flow.next_ns() <= self._ready[0][0]):
            self._advance(self._flow.next_ns())
        if not self._ready:
            waiting = ", ".join(f"{number} for {closed.job}" for closed, number in self._shut)
            raise InvariantError(f"all jobs wait at gates for each other: {waiting}")
        time_ns, number = heapq.heappop(self._ready)
        self._advance(time_ns)  # also completes a copy that ends exactly at this time
        job = self.jobs[number]
        waited_for = next(self._programs[number])
        if isinstance(waited_for, ClosedGate):
            self._shut.append((waited_for, number))
        elif waited_for is not None:
            waited_for.awaited = True
            self._waiting[waited_for] = number
        elif len(job.marks) <= job.most:
            heapq.heappush(self._ready, (job.now_ns, number))
        if self._shut:
            self._open(job)

    def _advance(self, to_ns: float) -> None:
        """Advance the copies to this time, and make the jobs ready that waited for completed ones."""
        for copy in self._flow.advance(to_ns):
            heapq.heappush(self._ready, (copy.done_ns, self._waiting.pop(copy)))

    def _open(self, job: _Job) -> None:
        """Open the gates that waited for this job to reach its present boundary."""
        boundary, time_ns = job.reached
        opened = [(c, waiting_job) for c, waiting_job in self._shut if c.job == job.number and c.boundary <= boundary]
        for closed, waiting_job in opened:
            closed.opened_ns = time_ns
            heapq.heappush(self._ready, (time_ns, waiting_job))
            self._shut.remove((closed, waiting_job))


def _forecast(job: _Job, cache: PlanCache) -> Forecast:
    first, last = job.window
    iterations = (last - first) * job.stretch
    means = [round((b - a) / iterations) for a, b in zip(job.marks[first], job.marks[last], strict=True)]
    graph, swaps = job.graph, job.run.plan.swaps
    return Forecast(
        iteration_ns=means[0],
        compute_ns=means[1 + _COMPUTE],
        stall_out_ns=means[1 + _LATE_OUT],
        stall_in_ns=means[1 + _LATE_IN],
        upload_ns=means[1 + _UPLOAD],
        turn_ns=means[1 + _TURN],
        gate_ns=means[1 + _GATE],
        exchange_ns=means[1 + _LATE_EXCHANGE],
        peak_bytes=peak(job.run.graph, job.run.plan, cache),
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
