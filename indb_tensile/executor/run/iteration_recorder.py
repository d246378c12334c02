"""Records the events of single iterations for a trace: operators, copies, and waits with their causes.

A recorded iteration runs the timed variant of the step program in a scope of its own, in which the functions that
copy and wait also note what they do. The program that other iterations run is untouched, so recording costs nothing
while it is off. The end of a copy is the first moment at which the host saw it done: when it waited for it, or at the
next operator. On a GPU operators are timed by the device, and copies and waits by the host.
"""

from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from time import perf_counter_ns, time_ns
from typing import Any

from indb_tensile.device.device import Clock, Device, HostBuffer, Ticket
from indb_tensile.executor.capture.exchange_operator import last_spans
from indb_tensile.executor.latency.gpu_clock import EventClock
from indb_tensile.executor.run.program import Iterate, Program, variant_of
from indb_tensile.scheduler.graph import Operator, OpIndex, Stage, TensorId
from indb_tensile.scheduler.timing.job_runs import Event, EventKind
from indb_tensile.scheduler.timing.recorded_iterations import (
    MOST_EVENTS,
    Pause,
    PauseKind,
    RecordedIterations,
    Recording,
)

_LATE = {EventKind.SWAP_OUT: EventKind.LATE_OUT, EventKind.SWAP_IN: EventKind.LATE_IN}


class IterationRecorder:
    """Records iterations until there are `most_iterations`, or one ends at `until_ns` or later."""

    def __init__(
        self,
        device: Device,
        *,
        most_iterations: int,
        until_ns: int,
        most_events: int = MOST_EVENTS,
        clock: Clock = perf_counter_ns,
    ) -> None:
        self._device = device
        self._clock = clock
        self._most_iterations = most_iterations
        self._until_ns = until_ns
        self._most_events = most_events
        self._iterate: Iterate | None = None
        self._recorded: Iterate | None = None  # the timed variant from which `_iterate` was made
        self._marks: list[int] = []  # readings of the operators' clock in this iteration
        self._seen_ns: list[int] = []  # the host's time of each mark
        self._waits: list[Event] = []
        self._used: list[tuple[int, int]] = []
        self._copies: dict[Ticket, tuple[EventKind, TensorId | None]] = {}  # that nobody has waited for yet
        self._pending: dict[EventKind, deque[tuple[Ticket, OpIndex, TensorId | None, int]]] = {
            kind: deque() for kind in _LATE
        }
        self._lane_ns = dict.fromkeys(_LATE, 0)  # the end of the last copy of each lane
        self._moved: list[Event] = []
        self._parts: list[RecordedIterations] = []
        self._pauses: list[Pause] = []
        self._events = 0
        self._ended_ns = 0

    @property
    def iterations(self) -> int:
        """The number of recorded iterations."""
        return sum(len(part.iterations) for part in self._parts)

    @property
    def is_full(self) -> bool:
        """True once the recording has all iterations that it may have."""
        ended = self.iterations > 0 and self._ended_ns >= self._until_ns
        return ended or self.iterations >= self._most_iterations or self._events >= self._most_events

    def pause(self, kind: PauseKind, start_ns: int, end_ns: int) -> None:
        """Record that the job did not train meanwhile."""
        if end_ns > start_ns:
            self._pauses.append(Pause(kind=kind, start_ns=start_ns, end_ns=end_ns))

    def run(
        self,
        program: Program,
        generation: int,
        operator_clock: EventClock | None,
        call: Callable[[Iterate, list[int], list[int]], int],
    ) -> None:
        """Run and record one iteration. `call` runs a variant with lists for its times and stalls."""
        if self._iterate is None or self._recorded is not program.timed:
            self._recorded = program.timed
            self._iterate = variant_of(program, "recorded", self._scope(program))
        self._marks, self._seen_ns, self._waits, self._moved, self._used = [], [], [], [], []
        count = len(program.wiring.turns)
        call(self._iterate, [0] * (count + 1), [0] * (count + 1))
        self._moved += _exchanges(program)
        marks = self._marks
        if operator_clock is not None:
            begun_ns = self._seen_ns[0]
            marks = [begun_ns + moment_ns for moment_ns in operator_clock.read(marks)]
        self._ended_ns = marks[-1]
        self._add(generation, (marks[0], marks[-1]), [*self._operators(program, marks), *self._waits, *self._moved])

    def recording(self) -> Recording:
        """Return what was recorded."""
        epoch_ns = time_ns() - self._clock()
        return Recording(epoch_ns=epoch_ns, parts=tuple(self._parts), pauses=tuple(self._pauses))

    def _add(self, generation: int, iteration: tuple[int, int], events: list[Event]) -> None:
        events.sort(key=lambda event: (event.start_ns, event.end_ns, event.kind))
        self._events += len(events)
        last = self._parts.pop() if self._parts and self._parts[-1].generation == generation else None
        self._parts.append(
            RecordedIterations(
                generation=generation,
                iterations=(*(last.iterations if last else ()), iteration),
                events=(*(last.events if last else ()), *events),
                used_bytes=(*(last.used_bytes if last else ()), *self._used),
            )
        )

    def _operators(self, program: Program, marks: list[int]) -> list[Event]:
        """Return an event for each operator: from its last wait to the next mark.

        The program reads the clock before each boundary and before and after the last one, so there is one mark more
        than there are boundaries.
        """
        ready_ns = list(marks)
        for wait in self._waits:
            if wait.operator < len(ready_ns):
                ready_ns[wait.operator] = max(ready_ns[wait.operator], wait.end_ns)
        operators = program.wiring.graph.operators
        return [
            Event(
                job=0,
                kind=_kind(operator),
                operator=OpIndex(k),
                tensor=operator.writes[0] if operator.stage is Stage.UPLOAD and operator.writes else None,
                start_ns=min(ready_ns[k], marks[k + 1]),
                end_ns=marks[k + 1],
            )
            for k, operator in enumerate(operators)
        ]

    # What the recorded variant calls -------------------------------------------------------------------------------

    def _scope(self, program: Program) -> dict[str, Any]:
        """Return the functions that take the place of the timed variant's."""
        assert program.timed is not None
        scope: Mapping[str, Any] = program.timed.__globals__
        tensors = {
            value: TensorId(int(name[1:])) for name, value in scope.items() if name[:1] == "h" and name[1:].isdigit()
        }
        functions: dict[str, Any] = {
            "clock": partial(self._mark, scope["clock"]),
            "ended": partial(self._mark, scope["clock"]),
            "wait": partial(self._wait, scope["wait"]),
            "copy_out": partial(self._copy_out, scope["copy_out"], tensors),
            "copy_in": partial(self._copy_in, scope["copy_in"], tensors),
            "upload": partial(self._upload, scope["upload"]),
        }
        if scope["gate"] is not None:
            functions["gate"] = partial(self._gate, scope["gate"])
        return functions

    def _mark(self, clock: Clock) -> int:
        moment, now_ns = clock(), self._clock()
        for kind, copies in self._pending.items():
            while copies and self._device.done(copies[0][0]):
                self._end_copy(kind, now_ns)
        self._marks.append(moment)
        self._seen_ns.append(now_ns)
        self._used.append((now_ns, self._device.usage().used_bytes))
        return moment

    @property
    def _position(self) -> OpIndex:
        return OpIndex(max(0, len(self._marks) - 1))

    def _copy_out(
        self,
        copy: Callable[..., Ticket],
        tensors: Mapping[HostBuffer, TensorId],
        host: HostBuffer,
        address: int,
        size_bytes: int,
    ) -> Ticket:
        ticket = copy(host, address, size_bytes)
        self._begin_copy(EventKind.SWAP_OUT, ticket, tensors.get(host))
        return ticket

    def _copy_in(
        self,
        copy: Callable[..., Ticket],
        tensors: Mapping[HostBuffer, TensorId],
        address: int,
        host: HostBuffer,
        size_bytes: int,
    ) -> Ticket:
        ticket = copy(address, host, size_bytes)
        self._begin_copy(EventKind.SWAP_IN, ticket, tensors.get(host))
        return ticket

    def _begin_copy(self, kind: EventKind, ticket: Ticket, tensor: TensorId | None) -> None:
        self._copies[ticket] = (kind, tensor)
        self._pending[kind].append((ticket, self._position, tensor, self._clock()))

    def _end_copy(self, kind: EventKind, now_ns: int) -> None:
        """Record the oldest copy of a lane, which copies one tensor after the other."""
        _, operator, tensor, start_ns = self._pending[kind].popleft()
        start_ns = min(max(start_ns, self._lane_ns[kind]), now_ns)
        self._lane_ns[kind] = now_ns
        copied = Event(job=0, kind=kind, operator=operator, tensor=tensor, start_ns=start_ns, end_ns=now_ns)
        self._moved.append(copied)

    def _upload(self, upload: Callable[..., Ticket], address: int, name: str, size_bytes: int) -> Ticket:
        ticket = upload(address, name, size_bytes)
        self._copies[ticket] = (EventKind.UPLOAD, None)
        return ticket

    def _wait(self, wait: Callable[[Ticket], int], ticket: Ticket) -> int:
        start_ns = self._clock()
        waited_ns = wait(ticket)
        end_ns = self._clock()
        kind, tensor = self._copies.pop(ticket, (EventKind.SWAP_IN, None))
        if kind not in _LATE:
            return waited_ns  # the batch's upload: part of the operator's event
        copies = self._pending[kind]
        while copies and copies[0][0] <= ticket and self._device.done(copies[0][0]):
            self._end_copy(kind, end_ns)
        if waited_ns:
            self._note_wait(_LATE[kind], tensor, start_ns, end_ns)
        return waited_ns

    def _gate(self, gate: Callable[[int], int], boundary: int) -> int:
        start_ns = self._clock()
        waited_ns = gate(boundary)
        self._note_wait(EventKind.GATE, None, start_ns, self._clock())
        return waited_ns

    def _note_wait(self, kind: EventKind, tensor: TensorId | None, start_ns: int, end_ns: int) -> None:
        self._waits.append(
            Event(job=0, kind=kind, operator=self._position, tensor=tensor, start_ns=start_ns, end_ns=end_ns)
        )


def _kind(operator: Operator) -> EventKind:
    """Return what the time of an operator is: the one that waits for an exchange does nothing else."""
    if operator.awaits is not None:
        return EventKind.LATE_EXCHANGE
    return EventKind.UPLOAD if operator.stage is Stage.UPLOAD else EventKind.COMPUTE


def _exchanges(program: Program) -> list[Event]:
    """Return an event for each exchange of the iteration that has just run, with the operator that started it."""
    starts = [OpIndex(k) for k, op in enumerate(program.wiring.graph.operators) if op.starts is not None]
    return [
        Event(job=0, kind=EventKind.EXCHANGE, operator=start, tensor=None, start_ns=began_ns, end_ns=ended_ns)
        for start, (began_ns, ended_ns) in zip(starts, last_spans(len(starts)), strict=True)
    ]
