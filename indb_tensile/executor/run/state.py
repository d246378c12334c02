"""The state that a job keeps from one iteration to the next: parameters, buffers and optimizer state.

Each persistent storage is on the device, in a host buffer, or in both. Before the first plan is adopted it is in
neither, and its bytes wait in a host tensor. Views stay valid throughout, because only the storage's memory moves.
"""

from collections.abc import Collection, Mapping

import torch
from torch import nn

from indb_tensile.device.device import HostBuffer
from indb_tensile.errors import DataError, InvariantError
from indb_tensile.executor.capture.optimizer import AVERAGE, OptimizerSettings, state_name
from indb_tensile.executor.capture.rank_share import RankShare
from indb_tensile.executor.capture.storage_layout import StoredTensor, Value, layout
from indb_tensile.executor.run.trainer_lanes import Lanes
from indb_tensile.scheduler.graph import TensorId
from indb_tensile.scheduler.pieces import Piece, whole

HOST = torch.device("cpu")
STEPS_NAME = "steps"  # no other name is equal: the others contain a dot or a slash, or name a tensor


class State:
    """The persistent storages of one job, by the ids that its graphs give them.

    `tensors` are the live values by name; their memory comes and goes. If a storage is cut into several `pieces`, its
    bytes are in the pieces instead. The runner that moves the state owns `pieces`, `resident`, `host`, `valid`,
    `blank` and `seeds`. `steps` counts finished training iterations.
    """

    def __init__(self, stored: tuple[StoredTensor, ...], device: torch.device = HOST) -> None:
        self.device = device
        self.layout = tuple(s for s in stored if s.size_bytes > 0)
        self.tensors: dict[str, torch.Tensor] = {}
        self.pieces: dict[TensorId, tuple[Piece, ...]] = {}
        self.resident: set[Piece] = set()
        self.host: dict[Piece, HostBuffer] = {}
        self.valid: set[Piece] = set()  # pieces whose host buffers hold the present bytes
        self.seeds: dict[Piece, torch.Tensor] = {}  # bytes of pieces without a place yet; a missing entry means zeros
        self.blank: set[Piece] = set()  # pieces that nobody has written, so that all their bytes are zero everywhere
        self.lanes: Lanes | None = None
        self.steps = 0
        self.changed = False  # set by `load`: the runner must put the new bytes in place
        self.whole = True  # False while an iteration runs and after one has failed half way
        self.lost = False  # set by the runner when it has freed the memory without keeping the bytes
        self._flat: dict[Piece, torch.Tensor] = {}
        for position, stored_storage in enumerate(self.layout):
            self._make(TensorId(position), stored_storage)
        for empty in stored:
            if empty.size_bytes == 0:
                self.tensors.update(
                    {v.name: torch.empty(v.shape, dtype=v.dtype, device=device) for v in empty.values}
                )

    @classmethod
    def create(
        cls,
        module: nn.Module,
        optimizer: OptimizerSettings,
        device: torch.device = HOST,
        share: RankShare | None = None,
    ) -> "State":
        """Return the initial state of a module. Optimizer state is zero, but averages start as their parameters.

        The module keeps its own tensors. With a `share` that divides the state, it has what that rank keeps.
        """
        state = cls(layout(module, optimizer, share), device)
        named: dict[str, torch.Tensor] = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        averages = {state_name(AVERAGE, name): tensor for name, tensor in named.items()}
        named |= {name: tensor for name, tensor in averages.items() if name in state.tensors}
        state._write({name: tensor.detach() for name, tensor in named.items()})
        return state

    def export(self, names: Collection[str] | None = None) -> dict[str, torch.Tensor]:
        """Return copies of all values, or of the values named, on the host.

        Nothing moves and the ledger does not change. Raises InvariantError after an iteration that failed half way,
        and when the state is lost.
        """
        if self.lost:
            raise InvariantError(f"the state after iteration {self.steps} was given up with its memory")
        if not self.whole:
            raise InvariantError(
                f"the state is inconsistent: the iteration after iteration {self.steps} failed half way"
            )
        self._wait_for_copies()
        exported = {STEPS_NAME: torch.tensor(self.steps)} if names is None or STEPS_NAME in names else {}
        for position, storage in enumerate(self.layout):
            selected = [value for value in storage.values if names is None or value.name in names]
            memory = self._bytes(TensorId(position)) if selected else torch.empty(0)
            exported |= {v.name: _value_in(memory, v).clone(memory_format=torch.contiguous_format) for v in selected}
        empty = {name: tensor for name, tensor in self.tensors.items() if tensor.numel() == 0}
        return exported | {name: t.cpu().clone() for name, t in empty.items() if names is None or name in names}

    def load(self, values: Mapping[str, torch.Tensor]) -> None:
        """Continue from an export. Raise DataError if names, shapes or types differ from this job's."""
        expected = {STEPS_NAME, *self.tensors}
        if set(values) != expected:
            mismatches = sorted(expected.symmetric_difference(values))
            raise DataError(
                f"the checkpoint is of another model: {len(mismatches)} names differ, first {mismatches[0]}"
            )
        for name, tensor in self.tensors.items():
            if values[name].shape != tensor.shape or values[name].dtype != tensor.dtype:
                raise DataError(
                    f"the checkpoint's {name} is {values[name].dtype} of shape {tuple(values[name].shape)}, "
                    f"not {tensor.dtype} of shape {tuple(tensor.shape)}"
                )
        self._wait_for_copies()
        self._write({name: value for name, value in values.items() if name != STEPS_NAME})
        self.steps = int(values[STEPS_NAME])
        self.changed = True

    def begin(self) -> None:
        """Record that an iteration begins, which may write any piece. Until `whole` is set, exports are refused."""
        self.whole = False
        self.blank.clear()

    def flat(self, piece: Piece) -> torch.Tensor:
        """Return the elements of a piece as a flat tensor, whose memory comes and goes."""
        if piece not in self._flat:
            values = self.layout[piece.tensor].values
            # Views of several types may share a storage that is never cut.
            dtype = values[0].dtype if len(values) == 1 else torch.uint8
            self._flat[piece] = torch.empty(piece.size_bytes // dtype.itemsize, dtype=dtype, device=self.device)
            self.storage(piece).resize_(0)
        return self._flat[piece]

    def storage(self, piece: Piece) -> torch.UntypedStorage:
        """Return the storage that belongs to a piece alone."""
        return self.flat(piece).untyped_storage()

    def cut(self, tensor: TensorId, pieces: tuple[Piece, ...]) -> None:
        """Cut a storage into other pieces. Resident pieces must be among the new pieces too."""
        blank = self.blank.issuperset(self.pieces[tensor])
        memory = None if blank else torch.cat([self._piece_bytes(piece) for piece in self.pieces[tensor]])
        for piece in self.pieces[tensor]:
            self.valid.discard(piece)
            self.seeds.pop(piece, None)
            self.blank.discard(piece)
        self.pieces[tensor] = pieces
        if memory is None:
            self.blank.update(pieces)
        else:
            self._put(tensor, memory)

    def _make(self, tensor: TensorId, stored_storage: StoredTensor) -> None:
        piece = whole(tensor, stored_storage.size_bytes)
        memory = torch.empty(stored_storage.size_bytes, dtype=torch.uint8, device=self.device)
        self.tensors.update({value.name: _value_in(memory, value) for value in stored_storage.values})
        self.pieces[tensor] = (piece,)
        self.blank.add(piece)
        self._flat[piece] = memory
        memory.untyped_storage().resize_(0)

    def _write(self, values: Mapping[str, torch.Tensor]) -> None:
        for position, storage in enumerate(self.layout):
            tensor = TensorId(position)
            loaded = [v for v in storage.values if v.name in values]
            if not loaded:
                continue
            memory = self._bytes(tensor)
            for value in loaded:
                _value_in(memory, value).copy_(values[value.name])
            self._put(tensor, memory)

    def _bytes(self, tensor: TensorId) -> torch.Tensor:
        """Return the present bytes of a storage, on the host.

        For storages that are cut or on a GPU this is a copy.
        """
        parts = [self._piece_bytes(piece) for piece in self.pieces[tensor]]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _piece_bytes(self, piece: Piece) -> torch.Tensor:
        return self._present_bytes(piece).cpu()

    def _present_bytes(self, piece: Piece) -> torch.Tensor:
        """Return a piece's present bytes where they are. For a host buffer this is a copy."""
        if piece in self.resident:
            return bytes_of(self.storage(piece))
        if piece in self.valid:
            assert self.lanes is not None
            return self.lanes.read(self.host[piece], piece.size_bytes)
        seed = self.seeds.get(piece)
        return torch.zeros(piece.size_bytes, dtype=torch.uint8) if seed is None else seed

    def _put(self, tensor: TensorId, memory: torch.Tensor) -> None:
        """Set the bytes of a storage, wherever its pieces are."""
        for piece in self.pieces[tensor]:
            part = memory[piece.start_bytes : piece.stop_bytes]
            self.blank.discard(piece)
            if piece in self.resident:
                bytes_of(self.storage(piece)).copy_(part)
                self.valid.discard(piece)
            elif piece in self.host and self.lanes is not None and not self.lanes.is_host:
                self.lanes.write(self.host[piece], part)
                self.valid.add(piece)
            else:  # the next move puts the bytes in place
                self.seeds[piece] = part
                self.valid.discard(piece)

    def _wait_for_copies(self) -> None:
        if self.lanes is not None:
            self.lanes.drain()


def bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    """Return a storage as a tensor of bytes that shares its memory."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def rng_state(device: torch.device = HOST) -> torch.Tensor:
    """Return the state of the random generator of this device's steps, to be saved with an exported state."""
    return torch.get_rng_state() if device == HOST else torch.cuda.get_rng_state(device)


def restore_rng_state(saved: torch.Tensor, device: torch.device = HOST) -> None:
    """Continue with the random numbers of a saved generator state."""
    if device == HOST:
        torch.set_rng_state(saved)
    else:
        torch.cuda.set_rng_state(saved, device)


def _value_in(memory: torch.Tensor, value: Value) -> torch.Tensor:
    empty = torch.empty(0, dtype=value.dtype, device=memory.device)
    return empty.set_(memory.untyped_storage(), value.offset, value.shape, value.stride)
