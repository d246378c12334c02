"""Moves the state between the homes of two programs, and allocates the host buffers that plans need.

The state is the persistent storages of a job (state.py). A program's home is the part of it that its plan has on the
device when an iteration begins (timeline.py). Storages are moved in pieces (scheduler/pieces.py), usually as a whole.
A piece is resident if it is on the device, and its host buffer is valid if it holds the present bytes. Parking moves
the whole state to the host pool, so that the job holds no memory of the device.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from indb_tensile.device.device import Device, Ticket
from indb_tensile.errors import DeviceMemoryError
from indb_tensile.executor.capture.step_capture import CapturedStep
from indb_tensile.executor.run.placer import Placer
from indb_tensile.executor.run.program import Program
from indb_tensile.executor.run.state import HOST, State, bytes_of
from indb_tensile.executor.run.trainer_lanes import Lanes
from indb_tensile.executor.run.upload_buffers import UploadBuffers
from indb_tensile.scheduler.graph import Stage, TensorId
from indb_tensile.scheduler.host_memory import away_bytes, pieces_bytes, pooled_bytes
from indb_tensile.scheduler.pieces import Piece

Item = TypeVar("Item")


class StateMover:
    """Moves the pieces of a state. Between two programs, all leaving pieces go out before any piece comes in.

    A state's initial bytes reach the device through the host pool, or directly if the device's memory is the host's.
    Before the first iteration the optimizer's state is zero, so it is set to zero where it is and not copied: of a
    training with Adam that is two thirds of the state.
    """

    def __init__(self, device: Device, lanes: Lanes, state: State, placer: Placer, uploads: UploadBuffers) -> None:
        self._device = device
        self._uploads = uploads
        self._placer = placer
        self._lanes = lanes
        self._state = state
        self._required: frozenset[Piece] = frozenset()  # the pieces whose host buffers the plans need
        self._parked_bytes = 0  # bytes of the pool, from parking until the new plans' buffers are allocated
        self._returning: tuple[Program, ...] = ()  # programs that get their buffers when the state is at home

    def exchange(self, old: tuple[Program, ...], new: tuple[Program, ...]) -> None:
        """Allocate the host buffers of new programs, after freeing those that only the old programs needed.

        A piece that only the old programs swapped may have its bytes only in its host buffer, and these must reach
        the device before the buffer is freed. If the pool is pinned memory, it has room for the buffers of one set of
        programs, so these bytes wait in ordinary memory. If the pool is a file, they wait in the file, unless its
        limit leaves no room for both sets.

        A parked state fills the pool, so its pieces go home first and leave their room to the new buffers, which
        `go_home` then allocates. The pool never exceeds the larger of the parked state and the new buffers.
        """
        _free_buffers(self._device, old)
        self._required = frozenset[Piece]().union(*(p.pieces(p.timeline.swapped) for p in new))
        if self._parked_bytes and not self._device.is_host:
            self._returning = new
        else:
            self._exchange_buffers(new)

    def _exchange_buffers(self, new: tuple[Program, ...]) -> None:
        self._parked_bytes = 0
        unwanted = sorted(set(self._state.host) - self._required)
        waiting = {piece for piece in unwanted if self._device.is_host and self._is_only_in_buffer(piece)}
        for piece in unwanted:
            if piece not in waiting:
                self._save_to_host(piece)
        try:
            self._fit(new)
        except DeviceMemoryError:
            if not waiting:
                raise
            for piece in sorted(waiting):
                self._save_to_host(piece)
            self._fit(new)
        self._uploads.allocate()  # first: see upload_buffers.py
        for piece in sorted(self._required):
            self._buffer(piece)
        for program in new:
            self._allocate(program)

    def go_home(self, program: Program) -> None:
        """Make exactly the program's home resident. The peak never exceeds the larger of both homes.

        Pieces without a host buffer are copied through a temporary one. At any time the temporary buffers take no
        more than the largest storage: the pool has room for that besides the plans' buffers and the storages that are
        away from the device while the programs run (scheduler/host_memory.py).
        """
        state = self._state
        home, recut = self._home(program), self._changed_pieces(program)
        self._send_out(sorted(piece for piece in state.resident - home if piece.tensor not in recut))
        self._cut_anew(recut, home)
        self._placer.arrange(program, state)
        coming, returning = sorted(home - state.resident), self._returning
        if returning:
            self._make_room_to_return(coming)
        self._bring_in(coming)
        if returning:
            self._returning = ()
            self._exchange_buffers(returning)
        self._seed_buffers()
        for piece in sorted((program.pieces(program.timeline.copied) & state.resident) - state.valid):
            self._save_a_copy(piece)
        self._lanes.drain()

    def park(self, programs: tuple[Program, ...]) -> int:
        """Move all resident pieces to the host pool, and return the bytes that the job then has in the pool.

        The buffers of batches stay, because the next batch is in one of them already.

        The programs' own buffers are freed first, so parking needs no more of the pool than the whole state. All
        buffers are allocated before a piece leaves the device: if the pool has no room, DeviceMemoryError is raised
        and every piece is still where it was.
        """
        state = self._state
        _free_buffers(self._device, programs)
        present = {piece for pieces in state.pieces.values() for piece in pieces}
        for piece in sorted(state.host.keys() - present):
            self._drop_buffer(piece)
        leaving = sorted(state.resident)
        self._required = frozenset({*leaving, *state.host})
        self._make_room(self._passing_bytes(leaving))
        for piece in leaving:
            self._buffer(piece)
        self._send_out(leaving)
        self._parked_bytes = self._uploads.held_bytes + pieces_bytes(state.host)
        return self._parked_bytes

    def start_outgoing(self, program: Program, carried: list[Ticket | None]) -> None:
        """Start the copies out that an earlier iteration would have left under way for the first operators."""
        for slot, gap in enumerate(program.timeline.outgoing):
            piece = program.wiring.pieces[gap.tensor]
            if gap.swap.copies and piece not in self._state.valid:
                carried[slot] = self._copy_out(piece)

    def finished(self, program: Program) -> None:
        """Record which host copies an iteration made valid and which it made stale."""
        self._state.valid -= program.invalidated
        self._state.valid |= program.validated

    def give_up(self, programs: tuple[Program, ...], *, keeps_state: bool) -> None:
        """Free all memory of the device and the pool. The state's bytes are lost, or kept as plain host tensors."""
        state = self._state
        state.lost = not keeps_state
        if keeps_state:
            for tensor, pieces in state.pieces.items():
                self._save_pieces(tensor, pieces)
        for piece in state.resident:
            state.storage(piece).resize_(0)
        state.resident.clear()
        for piece in list(state.host):
            self._drop_buffer(piece)
        _free_buffers(self._device, programs)
        self._uploads.free()
        used_bytes = self._device.usage().used_bytes
        if used_bytes:
            self._device.move(used_bytes, 0)

    def _home(self, program: Program) -> frozenset[Piece]:
        """Return the pieces that must be resident.

        Storages that the step never accesses keep their present pieces.
        """
        idle = program.idle & program.timeline.home
        idle_pieces = {piece for tensor in idle for piece in self._state.pieces[tensor]}
        return program.pieces(program.timeline.home - idle) | idle_pieces

    def _changed_pieces(self, program: Program) -> dict[TensorId, tuple[Piece, ...]]:
        """Return the storages that the program cuts into other pieces than the present ones, with the new pieces."""
        return {tensor: cut for tensor, cut in program.cuts.items() if cut != self._state.pieces[tensor]}

    def _cut_anew(self, cuts: dict[TensorId, tuple[Piece, ...]], home: frozenset[Piece]) -> None:
        """Cut storages into other pieces, a few at a time, because leaving pieces need room in the host pool."""
        state = self._state
        leaving: dict[TensorId, list[Piece]] = {tensor: [] for tensor in cuts}
        for piece in sorted(state.resident - home):
            if piece.tensor in cuts:
                leaving[piece.tensor].append(piece)
        for batch in _batches(list(cuts), lambda tensor: self._passing_bytes(leaving[tensor])):
            self._send_out([piece for tensor in batch for piece in leaving[tensor]])
            for tensor in batch:
                self._change_pieces(tensor, cuts[tensor])

    def _change_pieces(self, tensor: TensorId, pieces: tuple[Piece, ...]) -> None:
        old = self._state.pieces[tensor]
        self._state.cut(tensor, pieces)
        for piece in old:
            is_kept = piece in pieces or (piece in self._required and not self._returning)
            if piece in self._state.host and not is_kept:
                self._drop_buffer(piece)

    def _largest_passing_bytes(self, pieces: list[Piece]) -> int:
        return max((self._passing_bytes([piece]) for piece in pieces), default=0)

    def _passing_bytes(self, pieces: list[Piece]) -> int:
        """Return the bytes of temporary host buffers that these pieces need: those of the pieces without a buffer."""
        return pieces_bytes(piece for piece in pieces if piece not in self._state.host)

    def _make_room_to_return(self, coming: list[Piece]) -> None:
        """Make room for the temporary buffers of a parked state's pieces, if another plan cuts them differently.

        The pool then exceeds neither the parked state nor the new buffers. If it has no room besides the parked
        pieces, some of these wait in ordinary host memory.
        """
        state, held_bytes = self._state, self._uploads.held_bytes
        kept_bytes = pieces_bytes(self._required & state.host.keys()) + held_bytes
        limit_bytes = max(self._parked_bytes, kept_bytes + self._new_buffer_bytes(self._returning))
        unwanted = sorted(state.host.keys() - self._required)
        while held_bytes + pieces_bytes(state.host) + self._largest_passing_bytes(coming) > limit_bytes:
            self._save_to_host(unwanted.pop())
        if self._largest_passing_bytes(coming):
            self._make_room(self._largest_passing_bytes(coming))

    def _fit(self, programs: tuple[Program, ...]) -> None:
        """Resize the pool for these programs and for the buffers in it.

        Raise DeviceMemoryError if there is too little room.
        """
        self._make_room(self._new_buffer_bytes(programs))

    def _make_room(self, free_bytes: int) -> None:
        """Resize the pool so that this much is free besides the buffers in it.

        Raise DeviceMemoryError if there is too little room.
        """
        moved = self._device.host_pack()
        self._uploads.check_unmoved(moved)
        self._state.host = {piece: moved.get(buffer, buffer) for piece, buffer in self._state.host.items()}
        self._device.host_fit(free_bytes)

    def _is_only_in_buffer(self, piece: Piece) -> bool:
        state = self._state
        return piece in state.valid and piece in state.pieces[piece.tensor] and piece not in state.resident

    def _save_to_host(self, piece: Piece) -> None:
        """Free a host buffer, after moving bytes that exist nowhere else to ordinary host memory."""
        state = self._state
        if piece in state.pieces[piece.tensor] and piece not in state.resident:
            state.seeds[piece] = self._lanes.read(state.host[piece], piece.size_bytes)
        self._drop_buffer(piece)

    def _new_buffer_bytes(self, programs: tuple[Program, ...]) -> int:
        """Return the bytes of the pool that the programs need besides the present buffers.

        These are their new buffers, temporary buffers for the largest storage, and the storages that are away while
        one of the programs runs.
        """
        passing_bytes = max((stored.size_bytes for stored in self._state.layout), default=0)
        away = [piece for program in programs for piece in program.pieces(program.plan.away)]
        waiting_bytes = away_bytes(away, [program.cuts for program in programs], self._required)
        buffered = [piece.size_bytes for piece in self._required.difference(self._state.host)]
        sizes = [size for program in programs for size in self._buffers(program).values()]
        return waiting_bytes + self._uploads.new_bytes + sum(map(pooled_bytes, [passing_bytes, *buffered, *sizes]))

    def _save_pieces(self, tensor: TensorId, pieces: tuple[Piece, ...]) -> None:
        state = self._state
        for piece in pieces:
            if piece in state.resident:
                state.seeds[piece] = bytes_of(state.storage(piece)).to(HOST, copy=True)
                state.storage(piece).resize_(0)
                state.resident.discard(piece)
            elif piece in state.valid:
                state.seeds[piece] = self._lanes.read(state.host[piece], piece.size_bytes)

    def _send_out(self, leaving: list[Piece]) -> None:
        state = self._state
        for piece in leaving:
            if piece not in state.valid:
                self._copy_out(piece)
        self._lanes.drain()
        for piece in leaving:
            state.storage(piece).resize_(0)
        state.resident.difference_update(leaving)
        freed_bytes = sum(piece.size_bytes for piece in leaving)
        if freed_bytes:
            self._device.move(freed_bytes, 0)

    def _bring_in(self, coming: list[Piece]) -> None:
        state = self._state
        taken_bytes = sum(piece.size_bytes for piece in coming)
        if taken_bytes:
            self._device.move(0, taken_bytes)
        passing = {piece for piece in coming if piece not in state.host}
        for batch in _batches(coming, lambda piece: 0 if piece in state.blank else self._passing_bytes([piece])):
            for piece in batch:
                self._placer.take(piece, state.storage(piece))
                if piece in state.blank or (self._device.is_host and piece not in state.valid):
                    self._seed_memory(piece)
                    continue
                self._buffer(piece)
                self._lanes.copy_in(state.storage(piece).data_ptr(), state.host[piece], piece.size_bytes)
            self._lanes.drain()
            state.resident.update(batch)
            for piece in batch:
                if piece in state.host and (piece in passing or piece not in self._required):
                    self._drop_buffer(piece)

    def _seed_memory(self, piece: Piece) -> None:
        """Write a piece's initial bytes to the device's memory: zeros, or any if that memory is the host's."""
        memory, seed = bytes_of(self._state.storage(piece)), self._state.seeds.pop(piece, None)
        if seed is None:
            memory.zero_()
        else:
            memory.copy_(seed)

    def _seed_buffers(self) -> None:
        """Write the initial bytes of pieces that are not at home to their buffers."""
        state = self._state
        for piece in sorted(self._required - state.resident - state.valid):
            if piece in state.pieces[piece.tensor]:
                self._seed_buffer(piece)

    def _seed_buffer(self, piece: Piece) -> None:
        state = self._state
        seed = state.seeds.pop(piece, None)
        if seed is None:
            seed = torch.zeros(piece.size_bytes, dtype=torch.uint8)
        self._lanes.write(state.host[piece], seed)
        state.valid.add(piece)

    def _save_a_copy(self, piece: Piece) -> None:
        """Have the bytes of a resident piece in its host buffer, too. Zeros are written there directly."""
        if piece in self._state.blank and not self._device.is_host:
            self._buffer(piece)
            self._seed_buffer(piece)
        else:
            self._copy_out(piece)

    def _copy_out(self, piece: Piece) -> Ticket:
        state = self._state
        self._buffer(piece)
        state.valid.add(piece)
        return self._lanes.copy_out(state.host[piece], state.storage(piece).data_ptr(), piece.size_bytes)

    def _buffer(self, piece: Piece) -> None:
        """Allocate a host buffer for a piece if it has none.

        Initial bytes are written to the buffer, except on a device whose memory is the host's, where they may be
        written to the device directly.
        """
        state = self._state
        if piece not in state.host:
            state.host[piece] = self._device.host_allocate(piece.size_bytes)
            if not self._device.is_host and piece not in state.resident and piece in state.pieces[piece.tensor]:
                self._seed_buffer(piece)

    def _drop_buffer(self, piece: Piece) -> None:
        self._device.host_free(self._state.host.pop(piece))
        self._state.valid.discard(piece)

    def _allocate(self, program: Program) -> None:
        for owner, size_bytes in self._buffers(program).items():
            buffer = self._device.host_allocate(size_bytes)
            if isinstance(owner, str):
                program.sources[owner] = program.staging[owner] = buffer
            else:
                program.buffers[owner] = buffer
        for name, constant in program.step.constants.items():
            self.fill(program, name, constant)

    def fill(self, program: Program, name: str, tensor: torch.Tensor) -> None:
        """Store a tensor for the next upload: in its host buffer, or as it is if the device's memory is the host's.

        A batch that was gathered into its host buffer stays there. An empty tensor has no buffer and nothing to copy.
        """
        dense = tensor.detach().contiguous()
        if self._device.is_host:
            program.ready[name] = dense
        elif name in self._uploads:
            gathered = self._uploads.source(name, dense)
            if gathered is None:
                gathered = self._uploads.first(name)
                if dense.nbytes:
                    self._lanes.write(gathered, dense)
            program.sources[name] = gathered
        elif name in program.staging:
            self._lanes.write(program.staging[name], dense)

    def _buffers(self, program: Program) -> dict[TensorId | str, int]:
        """Return the sizes of a program's own host buffers, by tensor for swaps and by name for uploaded constants.

        If the device's memory is the host's, uploads need no buffers.
        """
        step = program.step
        sizes: dict[TensorId | str, int] = {}
        for tensor in sorted(program.timeline.swapped.difference(program.wiring.pieces)):
            sizes[tensor] = program.wiring.graph.tensors[tensor].size_bytes
        for name, size_bytes in () if self._device.is_host else uploaded_sizes(step):
            if name not in self._uploads:
                sizes[name] = size_bytes
        return sizes


def _batches(items: Sequence[Item], size_of: Callable[[Item], int]) -> list[list[Item]]:
    """Divide items into batches of at most the largest item's size.

    A state may be larger than the host pool, which has room for the largest storage.
    """
    sizes = [size_of(item) for item in items]
    most_bytes = max(sizes, default=0)
    batches: list[list[Item]] = []
    room_bytes = -1
    for item, size_bytes in zip(items, sizes, strict=True):
        if size_bytes > room_bytes:
            batches.append([])
            room_bytes = most_bytes
        batches[-1].append(item)
        room_bytes -= size_bytes
    return batches


def uploaded_sizes(step: CapturedStep) -> list[tuple[str, int]]:
    """Return the values that an iteration copies from the host, with their sizes: the batch and constants."""
    names = [name for run in step.steps if run.kernel.stage is Stage.UPLOAD for name in run.kernel.results if name]
    storages = [(name, step.tensor_of.get(step.values[name].storage)) for name in names]
    return [(name, step.graph.tensors[tensor].size_bytes) for name, tensor in storages if tensor is not None]


def _free_buffers(device: Device, programs: tuple[Program, ...]) -> None:
    for program in programs:
        for buffer in (*program.buffers.values(), *program.staging.values()):
            device.host_free(buffer)
        program.buffers.clear()
        program.staging.clear()
        program.sources.clear()
        program.ready.clear()
