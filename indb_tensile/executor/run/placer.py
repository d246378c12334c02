"""Puts a runner's tensors where its plans say: serves its programs, each by the addresses planned for it.

All programs of one adoption share one block of the arena, so a persistent tensor that two of them keep at one offset
stays there when the runner goes from one to the other. What lies elsewhere is moved while nothing runs.
"""

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch

from indb_tensile import _native
from indb_tensile.device.allocator_shim import Served, Serving
from indb_tensile.device.device import REGION_BYTES
from indb_tensile.executor.run.pieces import Piece
from indb_tensile.executor.run.program import Program
from indb_tensile.executor.run.program_offsets import Offsets, plan_offsets
from indb_tensile.executor.run.state import HOST, State, bytes_of
from indb_tensile.scheduler.graph import TensorId

log = logging.getLogger("executor")


class Placer:
    """Serves one runner's tensors; without a `Serving` they are in ordinary memory and nothing is done here.

    `prove` is asked where a block is refused, and raises where the machine is to blame and not the job's regions.
    """

    def __init__(
        self,
        serving: Serving | None = None,
        *,
        region_bytes: int = REGION_BYTES,
        prove: Callable[[int], None] | None = None,
    ) -> None:
        self._serving = serving
        self._region_bytes = region_bytes
        self._prove = prove
        self._placed: list[_Placed] = []
        self._grant_bytes: int | None = None
        self._current: _Placed | None = None
        self._anew = False  # these programs have not been arranged

    @property
    def position(self) -> memoryview | None:
        """Where programs write at which position they are; None where nobody reads it."""
        return None if self._serving is None else self._serving.position

    @property
    def served(self) -> Served | None:
        """What became of the allocations so far."""
        return None if self._serving is None else self._serving.served()

    def places(self, program: Program) -> bool:
        """Whether the runner is at home to this program, and its tensors are where the plan has them."""
        return self._current is not None and self._current.program is program

    def adopt(self, programs: Sequence[Program], grant_bytes: int | None = None) -> None:
        """Place these programs from now on; what is resident is moved when the runner goes home.

        Of plans for which less is granted than they take when they are placed, tensors stay in ordinary memory:
        what they held beyond the grant would be missing elsewhere. Without a grant they take what there is.
        """
        if self._serving is None:
            return
        self._placed = [_Placed(program, self._region_bytes) for program in programs]
        self._grant_bytes = grant_bytes
        self._anew = True  # the grant may be lowered to what their block takes

    def arrange(self, program: Program, state: State) -> None:
        """Move what is resident, and stays so, to the program's addresses; what leaves has left, nothing has come."""
        if self._serving is None or not self._placed:
            return
        before, self._current = self._current, next(one for one in self._placed if one.program is program)
        block_bytes = max(one.offsets.size_bytes for one in self._placed)
        anew, self._anew = self._anew, False
        kept_bytes = self._serving.kept(block_bytes, gathers=anew) if before is not None else 0
        astray = [piece for piece in sorted(state.resident) if self._is_astray(piece, state, kept_bytes)]
        lifted = {piece: self._lift(state.storage(piece)) for piece in astray}
        fits = self._grant_bytes is None or block_bytes <= self._grant_bytes
        if not fits or not self._serving.reserve(block_bytes, gathers=anew):
            self._do_without(block_bytes, lifted, state)
        for piece in sorted(lifted):
            self.take(piece, state.storage(piece))
            bytes_of(state.storage(piece)).copy_(lifted.pop(piece))

    def take(self, piece: Piece, storage: torch.UntypedStorage) -> None:
        """Give a storage that is nowhere its memory on the device."""
        if self._serving is None or (self._current is None and not self._serving.alone):
            storage.resize_(piece.size_bytes)
            return
        offset, names = None, list[str]()
        if self._current is not None:
            offset = self._current.offset_of(piece)
            names = [self._current.program.step.graph.tensors[piece.tensor].name]
        sheet = None if offset is None else _native.Sheet([[(piece.size_bytes, offset)]], names)
        self._serving.position[0] = 0
        with self._serving.on(sheet):
            storage.resize_(piece.size_bytes)

    def running(self, program: Program) -> AbstractContextManager[None]:
        """Around an iteration of the program that the runner last went home to."""
        if self._serving is None or (self._current is None and not self._serving.alone):
            return nullcontext()
        assert self._current is None or self._current.program is program
        return self._serving.on(None if self._current is None else self._current.sheet)

    def close(self) -> None:
        """Give the block back, once nothing is in it."""
        if self._serving is not None:
            self._serving.reserve(0)
        self._placed, self._current = [], None

    def _is_astray(self, piece: Piece, state: State, kept_bytes: int) -> bool:
        """Whether a piece lies somewhere else than the program has it, or where the block will be another."""
        assert self._serving is not None
        assert self._current is not None
        address = state.storage(piece).data_ptr() - self._serving.block
        offset = self._current.offset_of(piece)
        return address != offset or offset + piece.size_bytes > kept_bytes

    def _do_without(self, block_bytes: int, lifted: dict[Piece, torch.Tensor], state: State) -> None:
        """Ordinary memory until other plans come: tensors all over the regions would keep these from other jobs.

        On a GPU they are all over the regions all the same: there is nowhere else.
        """
        assert self._serving is not None
        lifted |= {piece: self._lift(state.storage(piece)) for piece in sorted(state.resident - lifted.keys())}
        self._serving.reserve(0)
        self._placed, self._current = [], None
        if self._prove is not None:
            self._prove(block_bytes)
        where = "anywhere in the job's regions" if self._serving.alone else "in ordinary memory"
        log.warning("the device has no room for the plan's %d bytes: tensors are %s", block_bytes, where)

    def _lift(self, storage: torch.UntypedStorage) -> torch.Tensor:
        """Copy a storage to ordinary memory and return its pages to the machine: its bytes are held once."""
        assert self._serving is not None
        memory, address = bytes_of(storage).to(HOST, copy=True), storage.data_ptr()
        storage.resize_(0)
        self._serving.discard(address, memory.numel())
        return memory


class _Placed:
    """One program's addresses."""

    def __init__(self, program: Program, region_bytes: int) -> None:
        self.program = program
        self.offsets: Offsets = plan_offsets(program.step, program.plan, program.timeline, region_bytes)
        self.sheet = _native.Sheet([list(rows) for rows in self.offsets.positions], list(self.offsets.names))
        pieces = program.wiring.pieces
        self._home: dict[TensorId, list[tuple[Piece, int]]] = {}
        for tensor, offset in self.offsets.home.items():
            self._home.setdefault(pieces[tensor].tensor, []).append((pieces[tensor], offset))

    def offset_of(self, piece: Piece) -> int | None:
        """Where it lies between two iterations: there, or in what the program never accesses and does not cut."""
        for known, offset in self._home.get(piece.tensor, ()):
            if known.start_bytes <= piece.start_bytes and piece.stop_bytes <= known.stop_bytes:
                return offset + piece.start_bytes - known.start_bytes
        return None
