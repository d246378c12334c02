"""One job in the simulation: what it waits for, boundary by boundary, and the time that it spends on each cause."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from indb_tensile.scheduler.graph import OpIndex
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.next_batch import batch_tensors, uploads_ahead_from
from indb_tensile.scheduler.memory.peak import peak
from indb_tensile.scheduler.plan_cache import PlanCache
from indb_tensile.scheduler.rewrite import effective
from indb_tensile.scheduler.timing.copy_flow import Copy, Flow, Lane
from indb_tensile.scheduler.timing.gate_passing import ClosedGate, JobGates
from indb_tensile.scheduler.timing.iteration_stops import IterationStop, stops_of
from indb_tensile.scheduler.timing.job_runs import Event, EventKind, Forecast, JobRun

# Iterations after which a job much faster than the others leaves the simulation. This bounds the running time.
MOST_TOGETHER = 4096

_COMPUTE, _LATE_OUT, _LATE_IN, _UPLOAD, _TURN, _GATE, _LATE_EXCHANGE = range(7)
_KINDS = (
    *(EventKind.COMPUTE, EventKind.LATE_OUT, EventKind.LATE_IN, EventKind.UPLOAD),
    *(EventKind.TURN, EventKind.GATE, EventKind.LATE_EXCHANGE),
)


@dataclass(frozen=True, slots=True)
class Noted:
    """An entry of the timeline: a copy, whose times are known when it is done, or an interval of the job's time."""

    kind: EventKind
    operator: int
    swap: int | None
    copy: Copy


@dataclass(slots=True)
class Turns:
    """The device's compute units as one resource, given to operators in the order of request."""

    free_ns: float = 0.0

    def take(self, now_ns: float, duration_ns: int) -> float:
        """Return when an operator that is requested now starts."""
        start_ns = max(now_ns, self.free_ns)
        self.free_ns = start_ns + duration_ns
        return start_ns


class SimulatedJob:
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
        self.noted: list[Noted] | None = None
        self.most = MOST_TOGETHER
        self.outs: list[Copy | None] = [None] * len(run.plan.swaps)  # the latest copies of each swap
        self.ins: list[Copy | None] = [None] * len(run.plan.swaps)
        self.ahead: dict[int, Copy] = {}  # uploads for the next iteration, by operator
        self.exchanges: dict[int, float] = {}  # when each exchange of this iteration ends

    def backlog(self) -> tuple[float, ...]:
        """Return the rest of each copy. For a job alone nothing else of the past matters."""
        return tuple(0.0 if copy is None else copy.left_ns for copy in (*self.outs, *self.ins, *self.ahead.values()))

    def forecast(self, cache: PlanCache) -> Forecast:
        """Return the mean iteration of the measured window."""
        first, last = self.window
        iterations = (last - first) * self.stretch
        means = [round((b - a) / iterations) for a, b in zip(self.marks[first], self.marks[last], strict=True)]
        graph, swaps = self.graph, self.run.plan.swaps
        return Forecast(
            iteration_ns=means[0],
            compute_ns=means[1 + _COMPUTE],
            stall_out_ns=means[1 + _LATE_OUT],
            stall_in_ns=means[1 + _LATE_IN],
            upload_ns=means[1 + _UPLOAD],
            turn_ns=means[1 + _TURN],
            gate_ns=means[1 + _GATE],
            exchange_ns=means[1 + _LATE_EXCHANGE],
            peak_bytes=peak(self.run.graph, self.run.plan, cache),
            out_bytes=sum(graph.tensors[s.tensor].size_bytes for s in swaps if s.copies),
            in_bytes=sum(graph.tensors[s.tensor].size_bytes for s in swaps),
        )

    def events(self) -> Iterator[Event]:
        """Yield what was noted for the timeline, without copies that have not ended."""
        for noted in self.noted or ():
            if noted.copy.done_ns == float("inf"):
                continue
            yield Event(
                job=self.number,
                kind=noted.kind,
                operator=OpIndex(noted.operator),
                tensor=None if noted.swap is None else self.run.plan.swaps[noted.swap].tensor,
                start_ns=round(noted.copy.started_ns),
                end_ns=round(noted.copy.done_ns),
            )

    def program(
        self, flow: Flow, turns: Turns | None, jobs: Sequence["SimulatedJob"]
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
            self.noted.append(Noted(EventKind.EXCHANGE, stop.operator - 1, None, copy))

    def _await_exchange(self, stop: IterationStop) -> None:
        if stop.awaits is not None and self.exchanges[stop.awaits] > self.now_ns:
            self._spend(_LATE_EXCHANGE, self.exchanges[stop.awaits] - self.now_ns, stop, None)

    def _upload(self, flow: Flow, stop: IterationStop) -> Copy:
        """Return the upload that the iteration before has queued, or queue it now."""
        copy = self.ahead.pop(stop.operator, None)
        return flow.queue(Lane.IN, self.number, stop.upload_ns) if copy is None else copy

    def _give_back(self, stop: IterationStop, jobs: Sequence["SimulatedJob"]) -> Iterator[Copy | ClosedGate]:
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
            self.noted.append(Noted(kind, stop.operator, swap, copy))
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
            self.noted.append(Noted(_KINDS[cause], stop.operator, swap, Copy(0.0, start_ns, self.now_ns)))
