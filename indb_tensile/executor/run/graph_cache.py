"""Decides which iterations are recorded as a graph, and keeps the graphs while their plans are in use.

A graph repeats the recorded work at the same addresses. So an iteration is recorded only after a few clean runs. In a
clean run every tensor is at its planned address, nothing is allocated outside the plan, and the state is in its home
state before and after. Copies that the plan lets continue into the next iteration end with the graph, which may take
time that the plan does not include. Such a graph is therefore timed against the plain iteration. An iteration that
cannot be recorded, or is slower as a graph, runs operator by operator, and the log states the reason once. Recording
computes nothing, so a failure loses nothing: the host's view of the memory is restored, and the iteration runs.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from indb_tensile.device.allocator_shim import AllocationCounters
from indb_tensile.device.device import Clock, Device, HostBuffer, Ticket
from indb_tensile.errors import ComputationError, DeviceLostError, InvariantError, TensileError
from indb_tensile.executor.capture.step_capture import StepKind
from indb_tensile.executor.latency.operator_memory import let_go
from indb_tensile.executor.run.cuda_graphs import Graph, Graphs
from indb_tensile.executor.run.host_results import Results
from indb_tensile.executor.run.placer import Placer
from indb_tensile.executor.run.program import Program
from indb_tensile.executor.run.state import State
from indb_tensile.executor.run.trainer_lanes import Lanes
from indb_tensile.scheduler.pieces import Piece

log = logging.getLogger("executor")

CLEAN_RUNS = 2  # runs before recording, in which kernels are loaded and libraries allocate their workspaces
ODD_RUNS = 4  # runs in a row; if memory is not where the plan places it by then, it never will be

_TIMES_KEPT = 1024
# Runs of a graph that joins copies, before its fastest run is compared with the fastest run without it.
TRIED_RUNS = 5

_UNPLANNED = "its memory is not at planned addresses"
_ENDS_COPIES = "waiting for copies into the next iteration makes it slower"


_Key = tuple[int, tuple[tuple[str, HostBuffer], ...]]  # a program, and the buffers that its uploads read


@dataclass(slots=True, kw_only=True)
class _ProgramRecord:
    """The state of one program's recording.

    `passing_bytes` are the most bytes that an iteration has on the device beyond the home state.
    """

    subject: str
    refused: bool = False
    clean: int = 0  # consecutive iterations with everything at planned addresses
    odd: int = 0  # consecutive iterations without
    alone_ns: int | None = None  # the fastest clean iteration without the graph
    launched_ns: list[int] = field(default_factory=list)  # the first iterations that ran as the graph
    lately_ns: deque[int] = field(default_factory=lambda: deque(maxlen=_TIMES_KEPT))  # since the last `take_times`
    graph: Graph | None = None
    returned: Results = ()
    places: dict[Piece, int] = field(default_factory=dict)
    passing_bytes: int = 0


class GraphCache:
    """The graphs of one runner, at most one for each of its programs and each set of host buffers of a batch.

    A graph uploads its batch from the addresses that it was recorded with.
    """

    def __init__(
        self, graphs: Graphs, device: Device, lanes: Lanes, state: State, placer: Placer, clock: Clock
    ) -> None:
        self._graphs = graphs
        self._clock = clock
        self._device = device
        self._lanes = lanes
        self._state = state
        self._placer = placer
        self._known: dict[_Key, _ProgramRecord] = {}
        self._logged: set[str] = set()
        self.launched = 0  # iterations that ran as a graph, over all plans

    def forget(self) -> None:
        """Forget all programs, because other plans follow."""
        self._drop()
        self._known.clear()

    def _drop(self) -> None:
        """Drop all graphs, to record them again.

        All graphs are dropped together because torch 2.13 frees a stream's workspaces with any graph of the stream.
        """
        for entry in self._known.values():
            if entry.graph is not None:
                entry.graph.close()
            entry.clean, entry.graph, entry.returned = 0, None, ()
            entry.launched_ns.clear()
            entry.lately_ns.clear()

    def enter(self, program: Program) -> None:
        """Keep the program's graph if the state lies where the graph recorded it; else drop all graphs.

        Call this after the state has moved to the program's home.
        """
        entries = [entry for entry in self._records_of(program) if entry.graph is not None]
        if not entries:
            return
        places = self._places()
        if any(entry.places != places for entry in entries) or not self._placer.places(program):
            self._drop()

    def launch(
        self,
        program: Program,
        carried: Sequence[Ticket | None],
        record: Callable[[Results], None],
        results: Callable[[], Results],
    ) -> Results | None:
        """Run one iteration as a graph, which is recorded now if it is due; return None if it must run by itself.

        `record` queues an iteration that returns into the given `results`, which are then the same in every
        iteration. `carried` are copies of the last iteration that may still run.
        """
        entry = self._known_program(program)
        if self._is_first(program) or entry.refused:
            return None
        if entry.graph is None and (entry.clean < CLEAN_RUNS or not self._record(program, entry, record, results())):
            return None
        assert entry.graph is not None
        start_ns, returned = self._clock(), entry.returned
        for ticket in carried:
            if ticket is not None:
                self._device.compute_after(ticket)
        self._device.move(0, entry.passing_bytes)
        entry.graph.launch()
        self._device.move(entry.passing_bytes, 0)
        self.launched += 1
        taken_ns = self._clock() - start_ns
        entry.lately_ns.append(taken_ns)
        if carried and len(entry.launched_ns) < TRIED_RUNS:
            self._compare(entry, taken_ns)
        return tuple(result.clone() for result in returned)

    def is_refused(self, program: Program) -> bool:
        """Return whether the program never runs as a graph, from whichever buffers its batches come."""
        entries = self._records_of(program)
        return bool(entries) and all(entry.refused for entry in entries)

    def take_times(self, program: Program) -> tuple[int, ...]:
        """Return the durations of the latest iterations that ran as a graph, each once."""
        entries = self._records_of(program)
        times = tuple(taken_ns for entry in entries for taken_ns in entry.lately_ns)
        for entry in entries:
            entry.lately_ns.clear()
        return times

    def _records_of(self, program: Program) -> list[_ProgramRecord]:
        return [entry for (known, _), entry in self._known.items() if known == id(program)]

    def _compare(self, entry: _ProgramRecord, taken_ns: int) -> None:
        """Give up a graph that is slower than the iteration that it recorded."""
        entry.launched_ns.append(taken_ns)
        if (
            len(entry.launched_ns) == TRIED_RUNS
            and entry.alone_ns is not None
            and min(entry.launched_ns) > entry.alone_ns
        ):
            taken_ms, alone_ms = min(entry.launched_ns) / 1e6, entry.alone_ns / 1e6
            self._drop()
            self._refuse(entry, f"{_ENDS_COPIES}: {taken_ms:.3g} ms instead of {alone_ms:.3g}")

    def ran(self, program: Program, before: AllocationCounters | None, start_ns: int) -> None:
        """Note that the program ran by itself. `before` holds the counters of allocations from before the run."""
        taken_ns = self._clock() - start_ns
        entry, after = self._known_program(program), self._placer.served
        if entry.refused or before is None or after is None:
            return
        as_planned = after.as_planned_since(before)
        if as_planned:
            entry.alone_ns = taken_ns if entry.alone_ns is None else min(entry.alone_ns, taken_ns)
        entry.clean = entry.clean + 1 if as_planned else 0
        entry.odd = 0 if as_planned else entry.odd + 1
        if entry.odd == ODD_RUNS:
            self._refuse(entry, _UNPLANNED)

    def _known_program(self, program: Program) -> _ProgramRecord:
        key = (id(program), tuple(sorted(program.sources.items())))
        if key not in self._known:
            step = program.step
            entry = _ProgramRecord(subject=f"the {step.kind} step for {step.batch_size} rows")
            self._known[key] = entry
            obstacle = self._obstacle(program)
            if obstacle:
                self._refuse(entry, obstacle)
        return self._known[key]

    def _refuse(self, entry: _ProgramRecord, reason: str) -> None:
        entry.refused = True
        self._log_once(f"{entry.subject} runs operator by operator, not as a CUDA graph: {reason}")

    def _is_first(self, program: Program) -> bool:
        """Return whether this is the first training iteration.

        It differs from all others, because momentum starts as the first gradient.
        """
        return program.step.kind is StepKind.TRAINING and self._state.steps == 0

    def _record(
        self, program: Program, entry: _ProgramRecord, record: Callable[[Results], None], returned: Results
    ) -> bool:
        reason = self._try_record(program, entry, record, returned)
        if reason:
            self._drop()
            self._refuse(entry, reason)
        else:
            self._log_once(f"{entry.subject} runs as a CUDA graph of {len(program.wiring.turns)} operators")
        return not reason

    def _obstacle(self, program: Program) -> str:
        """Return why the program can never be recorded, or an empty text."""
        return "" if self._placer.places(program) else "its tensors are not at planned addresses"

    def _try_record(
        self, program: Program, entry: _ProgramRecord, record: Callable[[Results], None], returned: Results
    ) -> str:
        """Record the iteration. Return the reason why there is no graph, or an empty text."""
        self._lanes.drain()
        before, places, used_bytes = self._placer.served, self._places(), self._device.usage().used_bytes
        graph, reason = None, ""
        try:
            graph = self._graphs.record(lambda: record(returned))
        except (DeviceLostError, ComputationError):
            raise
        except (TensileError, RuntimeError) as error:
            reason = str(error).partition("\n")[0]
            let_go(error)
        after = self._placer.served
        if not reason and before is not None and after is not None and not after.as_planned_since(before):
            reason = _UNPLANNED
        if reason or places != self._places():
            if graph is not None:
                graph.close()  # before others take its memory
            self._restore(places, used_bytes)
            return reason or "the state does not end where it started"
        entry.graph, entry.returned, entry.places = graph, returned, places
        entry.passing_bytes = _passing_bytes(program)
        return ""

    def _places(self) -> dict[Piece, int]:
        return {piece: self._state.storage(piece).data_ptr() for piece in self._state.resident}

    def _restore(self, places: dict[Piece, int], used_bytes: int) -> None:
        """Restore every storage as it was. Nothing was computed, so the bytes are still there."""
        state = self._state
        pieces = [piece for cut in state.pieces.values() for piece in cut]
        for piece in pieces:
            storage = state.storage(piece)
            if storage.nbytes() and storage.data_ptr() != places.get(piece):
                storage.resize_(0)
        for piece, address in places.items():
            storage = state.storage(piece)
            if not storage.nbytes():
                self._placer.take(piece, storage)
            if storage.data_ptr() != address:
                raise InvariantError(f"{piece} was at {address:#x} and is at {storage.data_ptr():#x} after recording")
        now_bytes = self._device.usage().used_bytes
        self._device.move(max(0, now_bytes - used_bytes), max(0, used_bytes - now_bytes))

    def _log_once(self, text: str) -> None:
        if text not in self._logged:
            self._logged.add(text)
            log.info("%s", text)


def _passing_bytes(program: Program) -> int:
    """Return the most bytes that an iteration has on the device beyond those at its start."""
    current_bytes = most_bytes = 0
    for boundary in program.timeline.boundaries:
        current_bytes += boundary.taken_bytes - boundary.freed_bytes
        most_bytes = max(most_bytes, current_bytes)
    return most_bytes
