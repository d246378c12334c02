"""Decides which iterations are recorded and launched as one, and keeps what was recorded while its plan is followed.

A graph repeats what it recorded at the same addresses. So an iteration is recorded once it has run cleanly a few
times: every tensor at its planned address, nothing asked of the allocator that no plan foresaw, the state at home
before and after. Copies that a plan lets run on into the next iteration end with the graph: that may take time which
the plan does not know of, so such a graph has to prove itself by the clock. What cannot be recorded, or is slower so,
is followed as before, and the log says once why. Recording computes nothing, so nothing is lost where it fails: the
host's view of the memory is put back, and the iteration runs.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from indb_tensile.device.allocator_shim import Served
from indb_tensile.device.device import Clock, Device, Ticket
from indb_tensile.errors import ComputationError, DeviceLostError, InvariantError, TensileError
from indb_tensile.executor.capture.capture import Kind
from indb_tensile.executor.latency.calibrate import let_go
from indb_tensile.executor.run.cuda_graphs import Graph, Graphs
from indb_tensile.executor.run.host_results import Results
from indb_tensile.executor.run.pieces import Piece
from indb_tensile.executor.run.placer import Placer
from indb_tensile.executor.run.program import Program
from indb_tensile.executor.run.state import State
from indb_tensile.executor.run.trainer_lanes import Lanes

log = logging.getLogger("executor")

CLEAN_RUNS = 2  # before an iteration is recorded: kernels are loaded and libraries have their workspaces
ODD_RUNS = 4  # in a row: a plan that is not followed to the byte by then will not be

_TIMES_KEPT = 1024
TRIED_RUNS = 5  # of a graph that joins copies, before the fastest of them is compared with the fastest without it

_ODD = "its memory is not where the plan has it"
_JOINED = "copies that run on into the next iteration would end with it"


@dataclass(slots=True, kw_only=True)
class _Known:
    """What there is of one program. `passing_bytes` are what an iteration has on the device beyond its home."""

    subject: str
    refused: bool = False
    clean: int = 0  # iterations in a row that had everything where it was planned
    odd: int = 0  # and that had not
    alone_ns: int | None = None  # the fastest of those
    launched_ns: list[int] = field(default_factory=list)  # the first ones by the graph
    lately_ns: deque[int] = field(default_factory=lambda: deque(maxlen=_TIMES_KEPT))  # those since they were taken
    graph: Graph | None = None
    returned: Results = ()
    places: dict[Piece, int] = field(default_factory=dict)
    passing_bytes: int = 0


class Repeats:
    """One runner's graphs, at most one for each program that it follows."""

    def __init__(
        self, graphs: Graphs, device: Device, lanes: Lanes, state: State, placer: Placer, clock: Clock
    ) -> None:
        self._graphs = graphs
        self._clock = clock
        self._device = device
        self._lanes = lanes
        self._state = state
        self._placer = placer
        self._known: dict[int, _Known] = {}
        self._said: set[str] = set()
        self.launched = 0  # iterations, over all plans

    def forget(self) -> None:
        """Other plans come."""
        self._drop()
        self._known.clear()

    def _drop(self) -> None:
        """Record anew. All graphs go together: torch 2.13 ends a stream's workspaces with any graph of it."""
        for one in self._known.values():
            if one.graph is not None:
                one.graph.close()
            one.clean, one.graph, one.returned = 0, None, ()
            one.launched_ns.clear()
            one.lately_ns.clear()

    def enter(self, program: Program) -> None:
        """The state went home to this program, and where it lies is what was recorded, or all is recorded anew."""
        one = self._known.get(id(program))
        if one is None or one.graph is None:
            return
        if one.places != self._places() or not self._placer.places(program):
            self._drop()

    def launch(
        self,
        program: Program,
        carried: Sequence[Ticket | None],
        record: Callable[[Results], None],
        results: Callable[[], Results],
    ) -> Results | None:
        """One iteration by its graph, recorded now where it is time; None where it has to run as it is.

        `record` queues an iteration that returns into these `results`, which are then the same in every iteration.
        `carried` are copies of the last one that may run on.
        """
        one = self._of(program)
        if self._is_first(program) or one.refused:
            return None
        if one.graph is None and (one.clean < CLEAN_RUNS or not self._record(program, one, record, results())):
            return None
        assert one.graph is not None
        start_ns, returned = self._clock(), one.returned
        for ticket in carried:
            if ticket is not None:
                self._device.compute_after(ticket)
        self._device.move(0, one.passing_bytes)
        one.graph.launch()
        self._device.move(one.passing_bytes, 0)
        self.launched += 1
        taken_ns = self._clock() - start_ns
        one.lately_ns.append(taken_ns)
        if carried and len(one.launched_ns) < TRIED_RUNS:
            self._compare(one, taken_ns)
        return tuple(result.clone() for result in returned)

    def take_times(self, program: Program) -> tuple[int, ...]:
        """The durations of the latest iterations that ran as a graph. Each duration is returned once."""
        one = self._known.get(id(program))
        if one is None:
            return ()
        times = tuple(one.lately_ns)
        one.lately_ns.clear()
        return times

    def _compare(self, one: _Known, taken_ns: int) -> None:
        """Give a graph up that is slower than what it recorded, for all that the host is spared."""
        one.launched_ns.append(taken_ns)
        if len(one.launched_ns) == TRIED_RUNS and one.alone_ns is not None and min(one.launched_ns) > one.alone_ns:
            taken_ms, alone_ms = min(one.launched_ns) / 1e6, one.alone_ns / 1e6
            self._drop()
            self._refuse(one, f"{_JOINED}: {taken_ms:.3g} ms instead of {alone_ms:.3g}")

    def ran(self, program: Program, before: Served | None, start_ns: int) -> None:
        """The program ran by itself; `before` is what had been served until then."""
        taken_ns = self._clock() - start_ns
        one, after = self._of(program), self._placer.served
        if one.refused or before is None or after is None:
            return
        as_planned = after.as_planned_since(before)
        if as_planned:
            one.alone_ns = taken_ns if one.alone_ns is None else min(one.alone_ns, taken_ns)
        one.clean = one.clean + 1 if as_planned else 0
        one.odd = 0 if as_planned else one.odd + 1
        if one.odd == ODD_RUNS:
            self._refuse(one, _ODD)

    def _of(self, program: Program) -> _Known:
        if id(program) not in self._known:
            step = program.step
            one = _Known(subject=f"the {step.kind} step for {step.batch_size} rows")
            self._known[id(program)] = one
            obstacle = self._obstacle(program)
            if obstacle:
                self._refuse(one, obstacle)
        return self._known[id(program)]

    def _refuse(self, one: _Known, reason: str) -> None:
        one.refused = True
        self._say(f"{one.subject} runs operator by operator, not as a CUDA graph: {reason}")

    def _is_first(self, program: Program) -> bool:
        """Momentum starts as the first gradient: the one iteration that is not like the others."""
        return program.step.kind is Kind.TRAINING and self._state.steps == 0

    def _record(self, program: Program, one: _Known, record: Callable[[Results], None], returned: Results) -> bool:
        reason = self._try(program, one, record, returned)
        if reason:
            self._drop()
            self._refuse(one, reason)
        else:
            self._say(f"{one.subject} runs as a CUDA graph of {len(program.wiring.turns)} operators")
        return not reason

    def _obstacle(self, program: Program) -> str:
        """What stands against it from the start; empty where nothing does."""
        return "" if self._placer.places(program) else "its tensors are not at planned addresses"

    def _try(self, program: Program, one: _Known, record: Callable[[Results], None], returned: Results) -> str:
        """Record it; the reason why there is no graph, or nothing."""
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
            reason = _ODD
        if reason or places != self._places():
            if graph is not None:
                graph.close()  # before its memory is taken by others
            self._go_back(places, used_bytes)
            return reason or "the state does not end where it started"
        one.graph, one.returned, one.places = graph, returned, places
        one.passing_bytes = _passing_bytes(program)
        return ""

    def _places(self) -> dict[Piece, int]:
        return {piece: self._state.storage(piece).data_ptr() for piece in self._state.resident}

    def _go_back(self, places: dict[Piece, int], used_bytes: int) -> None:
        """Make every storage what it was. Nothing was computed, so the bytes are still there."""
        state = self._state
        pieces = [piece for some in state.pieces.values() for piece in some]
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

    def _say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            log.info("%s", text)


def _passing_bytes(program: Program) -> int:
    """The most that an iteration has on the device beyond what was there at its start."""
    held = most = 0
    for boundary in program.timeline.boundaries:
        held += boundary.taken_bytes - boundary.freed_bytes
        most = max(most, held)
    return most
