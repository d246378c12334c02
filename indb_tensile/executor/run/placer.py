"""Places a runner's tensors at planned addresses: serves each of its programs by the addresses planned for it.

All programs adopted together share one block of the arena. A persistent tensor that two of them place at the same
offset therefore stays there when the runner switches programs. Other tensors are moved while nothing runs.
"""

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch

from indb_tensile import _native
from indb_tensile.device.allocator_shim import AllocationCounters, ArenaServing
from indb_tensile.device.device import REGION_BYTES
from indb_tensile.executor.run.program import Program
from indb_tensile.executor.run.program_offsets import Offsets, plan_offsets
from indb_tensile.executor.run.state import HOST, State, bytes_of
from indb_tensile.executor.run.upload_ahead import NextBatchPlace
from indb_tensile.scheduler.graph import TensorId
from indb_tensile.scheduler.memory.next_batch import aligned_bytes
from indb_tensile.scheduler.pieces import Piece

log = logging.getLogger("executor")


class Placer:
    """Serves one runner's tensors. Without `ArenaServing`, tensors are in ordinary memory and the methods do nothing.

    `prove` is called when the arena refuses a block. It raises if the machine lacks memory, as opposed to the job's
    regions lacking room.
    """

    def __init__(
        self,
        serving: ArenaServing | None = None,
        *,
        region_bytes: int = REGION_BYTES,
        prove: Callable[[int], None] | None = None,
    ) -> None:
        self._serving = serving
        self._region_bytes = region_bytes
        self._prove = prove
        self._placed: list[_Placed] = []
        self._grant_bytes: int | None = None
        self._base_bytes: int | None = None
        self._beside_bytes = 0
        self._current: _Placed | None = None
        self._not_arranged = False  # these programs have not been arranged yet
        self._taken = 0  # how often memory was allocated, so that tensors may be elsewhere than before
        self._in_place: dict[int, tuple[int, int, int]] = {}  # by program: when all tensors were seen in their places
        self.unplaced_bytes = 0  # of the block of the adopted programs, if the regions had no room for it

    @property
    def position(self) -> memoryview | None:
        """The word to which programs write their position, or None if nothing reads the word."""
        return None if self._serving is None else self._serving.position

    @property
    def served(self) -> AllocationCounters | None:
        """The counters of the allocations so far."""
        return None if self._serving is None else self._serving.served()

    def places(self, program: Program) -> bool:
        """Return whether the state is arranged for this program, with tensors at planned addresses."""
        return self._current is not None and self._current.program is program

    @property
    def block_address(self) -> int:
        """The address of the block, or 0 if tensors are in ordinary memory."""
        return 0 if self._serving is None or self._current is None else self._serving.block

    def next_batch_place(self, program: Program) -> NextBatchPlace | None:
        """Return the place for the next batch while this program runs, or None if it has none.

        In ordinary memory there is room wherever the plan's loads leave it. Debug mode ends the process if anything
        but a planned allocation touches the block, so it has no room.
        """
        uploads = program.uploads_next
        first, wait_at = (uploads.beside, uploads.amid) if self._beside_bytes else (uploads.by_load, uploads.by_load)
        if first is None or wait_at is None:
            return None
        if self._serving is None:
            return NextBatchPlace(first=first, wait_at=wait_at)
        if self._current is None or self._serving.strict or not self.places(program):
            return None
        if self._beside_bytes:
            address = self._serving.block + aligned_bytes(self._whole_bytes)
            return NextBatchPlace(first=first, wait_at=wait_at, address=address)
        room = self._current.offsets.next_batch
        if room is None:
            return None
        return NextBatchPlace(first=room.first, wait_at=room.first, address=self._serving.block + room.offset)

    @property
    def beside_bytes(self) -> int:
        """The memory for a batch behind the block's planned part. 0 after `arrange` if the regions had no room."""
        return self._beside_bytes

    def keep_beside(self, size_bytes: int) -> None:
        """Have this much memory behind the block's planned part, from the next `arrange` until `adopt` or `close`."""
        self._beside_bytes = 0 if self._serving is not None and self._serving.strict else size_bytes
        self._not_arranged = True  # the block gets another size, and later has to leave whole regions to other jobs
        self._in_place = {}

    @property
    def _whole_bytes(self) -> int:
        return max(placed.offsets.size_bytes for placed in self._placed)

    def adopt(
        self, programs: Sequence[Program], grant_bytes: int | None = None, base_bytes: int | None = None
    ) -> None:
        """Place these programs from now on. Resident tensors move at the next `arrange`.

        In a round only the first `base_bytes` of the block have memory, and the rest as the round lends it.

        If the programs' block is larger than the grant when it is placed, tensors stay in ordinary memory, because
        memory beyond the grant would be missing for other jobs. With `grant_bytes` None the grant is not checked.
        """
        self._beside_bytes = 0
        if self._serving is None:
            return
        self._placed = [_Placed(program, self._region_bytes) for program in programs]
        self._grant_bytes, self._base_bytes = grant_bytes, base_bytes
        self.unplaced_bytes = 0
        self._not_arranged = True  # the controller may lower the grant to the size of the new block
        self._in_place = {}

    def arrange(self, program: Program, state: State) -> None:
        """Move resident tensors that stay resident to the program's addresses.

        Call this after leaving tensors are gone and before others arrive.
        """
        if self._serving is None or not self._placed:
            return
        before, self._current = self._current, next(placed for placed in self._placed if placed.program is program)
        block_bytes = self._whole_bytes if self._base_bytes is None else self._base_bytes
        first_time, self._not_arranged = self._not_arranged, False
        if first_time:
            self._serving.extend(0)
        with_beside_bytes = aligned_bytes(block_bytes) + self._beside_bytes if self._beside_bytes else block_bytes
        kept_bytes = self._serving.kept(with_beside_bytes, gathers=first_time) if before is not None else 0
        misplaced = self._misplaced(program, state, kept_bytes)
        host_copies = {piece: self._move_to_host(state.storage(piece)) for piece in misplaced}
        fits = self._grant_bytes is None or block_bytes <= self._grant_bytes
        if not fits or not self._reserve(block_bytes, with_beside_bytes, gathers=first_time):
            self._use_ordinary_memory(block_bytes, host_copies, state)
        elif first_time:
            lent_bytes = max(0, self._whole_bytes - block_bytes)
            self._serving.extend(-(-lent_bytes // self._region_bytes) * self._region_bytes)
        for piece in sorted(host_copies):
            self.take(piece, state.storage(piece))
            bytes_of(state.storage(piece)).copy_(host_copies.pop(piece))

    def _reserve(self, block_bytes: int, with_beside_bytes: int, *, gathers: bool) -> bool:
        """Give the block this size, with the memory beside the plan if the regions have room for it too."""
        assert self._serving is not None
        if self._serving.reserve(with_beside_bytes, gathers=gathers):
            return True
        has_more, self._beside_bytes = self._beside_bytes > 0, 0
        return has_more and self._serving.reserve(block_bytes, gathers=gathers)

    def take(self, piece: Piece, storage: torch.UntypedStorage) -> None:
        """Allocate the memory of a storage that has none, on the device."""
        self._taken += 1
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
        """Return the context for an iteration of the program that `arrange` last arranged."""
        if self._serving is None or (self._current is None and not self._serving.alone):
            return nullcontext()
        assert self._current is None or self._current.program is program
        return self._serving.on(None if self._current is None else self._current.sheet)

    def take_excess(self) -> tuple[tuple[int, int], ...]:
        """Return the positions of the program that ran last at which more memory was in use than planned.

        Each has the largest number of bytes beyond the plan since the last call.
        """
        if self._serving is None or self._current is None:
            return ()
        unlisted_bytes = self._current.offsets.unlisted_bytes
        return tuple(
            (position, size_bytes - unlisted_bytes[position])
            for position, size_bytes in self._serving.take_excess()
            if position < len(unlisted_bytes) and size_bytes > unlisted_bytes[position]
        )

    def close(self) -> None:
        """Give the block back when no tensor is in it."""
        if self._serving is not None:
            self._serving.extend(0)
            self._serving.reserve(0)
        self._placed, self._current, self._in_place, self._beside_bytes = [], None, {}, 0

    def _misplaced(self, program: Program, state: State, kept_bytes: int) -> list[Piece]:
        """Return the resident pieces that are not in their places.

        If no program moves tensors while it runs, and no memory was allocated since all of them were seen in their
        places, they still are. Looking at each takes as long as some steps of a small network, and the steps of a
        full batch, of the last batch and of the validation take turns in each epoch.
        """
        assert self._serving is not None
        seen = (kept_bytes, self._serving.block, self._taken)
        if self._in_place.get(id(program)) == seen:
            return []
        misplaced = [piece for piece in sorted(state.resident) if self._is_misplaced(piece, state, kept_bytes)]
        moves = self._base_bytes is not None or any(placed.program.timeline.swapped for placed in self._placed)
        if not misplaced and not moves:
            self._in_place[id(program)] = seen
        return misplaced

    def _is_misplaced(self, piece: Piece, state: State, kept_bytes: int) -> bool:
        """Return whether a piece is not at its planned address, or lies in the part of the block that will change."""
        assert self._serving is not None
        assert self._current is not None
        address = state.storage(piece).data_ptr() - self._serving.block
        offset = self._current.offset_of(piece)
        return address != offset or offset + piece.size_bytes > kept_bytes

    def _use_ordinary_memory(self, block_bytes: int, host_copies: dict[Piece, torch.Tensor], state: State) -> None:
        """Use ordinary memory until other plans arrive, because scattered tensors would keep regions from other jobs.

        On a GPU there is no ordinary memory, so tensors are scattered over the regions.
        """
        assert self._serving is not None
        host_copies |= {
            piece: self._move_to_host(state.storage(piece)) for piece in sorted(state.resident - host_copies.keys())
        }
        self._serving.reserve(0)
        self._placed, self._current, self._beside_bytes = [], None, 0
        self.unplaced_bytes = block_bytes
        if self._prove is not None:
            self._prove(block_bytes)
        where = "anywhere in the job's regions" if self._serving.alone else "in ordinary memory"
        log.warning("the device has no room for the plan's %d bytes: tensors are %s", block_bytes, where)

    def _move_to_host(self, storage: torch.UntypedStorage) -> torch.Tensor:
        """Copy a storage to ordinary memory and return its pages to the machine.

        The bytes are then in memory only once.
        """
        assert self._serving is not None
        memory, address = bytes_of(storage).to(HOST, copy=True), storage.data_ptr()
        storage.resize_(0)
        self._serving.discard(address, memory.numel())
        return memory


class _Placed:
    """The addresses of one program."""

    def __init__(self, program: Program, region_bytes: int) -> None:
        self.program = program
        self.offsets: Offsets = plan_offsets(
            program.step, program.plan, program.timeline, region_bytes, program.cache, program.joint
        )
        self.sheet = _native.Sheet(
            [list(rows) for rows in self.offsets.positions], list(self.offsets.names), list(self.offsets.rooms)
        )
        pieces = program.wiring.pieces
        self._home: dict[TensorId, list[tuple[Piece, int]]] = {}
        for tensor, offset in self.offsets.home.items():
            self._home.setdefault(pieces[tensor].tensor, []).append((pieces[tensor], offset))

    def offset_of(self, piece: Piece) -> int | None:
        """Return the offset of a piece between two iterations, or None if the program has no place for it.

        A piece may lie inside a larger piece, if the program never accesses the storage and does not cut it.
        """
        for known, offset in self._home.get(piece.tensor, ()):
            if known.start_bytes <= piece.start_bytes and piece.stop_bytes <= known.stop_bytes:
                return offset + piece.start_bytes - known.start_bytes
        return None
