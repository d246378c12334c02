"""What a job keeps from one iteration to the next: parameters, buffers and optimizer state.

Each persistent storage is on the device or in a host buffer, or both; before the first plan is adopted it
is in neither and waits as a host tensor. Views stay valid throughout: what moves is the storage's memory.
"""

from collections.abc import Collection, Mapping

import torch
from torch import nn

from indb_tensile.device.device import HostBuffer
from indb_tensile.errors import DataError, InvariantError
from indb_tensile.executor.capture.optimizer import AVERAGE, OptimizerSettings, state_name
from indb_tensile.executor.capture.storage_layout import Stored, Value, layout
from indb_tensile.executor.run.pieces import Piece, whole
from indb_tensile.executor.run.trainer_lanes import Lanes
from indb_tensile.scheduler.graph import TensorId

HOST = torch.device("cpu")
STEPS_NAME = "steps"  # no module path or optimizer state is called so: one has a dot or a slash, or is a tensor's


class State:
    """The persistent storages of one job, by the ids its graphs give them.

    `tensors` are the live values by name, whose memory comes and goes; a storage that is cut into several `pieces`
    has its bytes there instead. `pieces`, `resident`, `host`, `valid` and `seeds` belong to the runner that moves
    them. `steps` counts finished training iterations.
    """

    def __init__(self, stored: tuple[Stored, ...], device: torch.device = HOST) -> None:
        self.device = device
        self.layout = tuple(s for s in stored if s.size_bytes > 0)
        self.tensors: dict[str, torch.Tensor] = {}
        self.pieces: dict[TensorId, tuple[Piece, ...]] = {}
        self.resident: set[Piece] = set()
        self.host: dict[Piece, HostBuffer] = {}
        self.valid: set[Piece] = set()  # those whose host buffer holds the present bytes
        self.seeds: dict[Piece, torch.Tensor] = {}  # bytes of what has no place yet; none is zeros
        self.lanes: Lanes | None = None
        self.steps = 0
        self.changed = False  # by `load`, behind the back of whoever runs it
        self.whole = True  # no iteration has been left half done
        self._flat: dict[Piece, torch.Tensor] = {}
        for position, one in enumerate(self.layout):
            self._make(TensorId(position), one)
        for one in stored:
            if one.size_bytes == 0:
                self.tensors.update({v.name: torch.empty(v.shape, dtype=v.dtype, device=device) for v in one.values})

    @classmethod
    def create(cls, module: nn.Module, optimizer: OptimizerSettings, device: torch.device = HOST) -> "State":
        """The state a module starts with; optimizer state is zero, but averages are what they are of.

        The module keeps its own tensors.
        """
        state = cls(layout(module, optimizer), device)
        named: dict[str, torch.Tensor] = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        averages = {state_name(AVERAGE, name): tensor for name, tensor in named.items()}
        named |= {name: tensor for name, tensor in averages.items() if name in state.tensors}
        state._write({name: tensor.detach() for name, tensor in named.items()})
        return state

    def export(self, names: Collection[str] | None = None) -> dict[str, torch.Tensor]:
        """A copy of everything, or of the values named, on the host. Nothing moves and the ledger does not change.

        Raises InvariantError after an iteration that failed half way.
        """
        if not self.whole:
            raise InvariantError(f"the state is of no iteration: the one after {self.steps} failed half way")
        self._settle()
        exported = {STEPS_NAME: torch.tensor(self.steps)} if names is None or STEPS_NAME in names else {}
        for position, one in enumerate(self.layout):
            wanted = [value for value in one.values if names is None or value.name in names]
            memory = self._bytes(TensorId(position)) if wanted else torch.empty(0)
            exported |= {v.name: _value_in(memory, v).clone(memory_format=torch.contiguous_format) for v in wanted}
        empty = {name: tensor for name, tensor in self.tensors.items() if tensor.numel() == 0}
        return exported | {name: t.cpu().clone() for name, t in empty.items() if names is None or name in names}

    def load(self, values: Mapping[str, torch.Tensor]) -> None:
        """Continue from what `export` gave. Raises DataError where names or shapes are not this job's."""
        expected = {STEPS_NAME, *self.tensors}
        if set(values) != expected:
            odd = sorted(expected.symmetric_difference(values))
            raise DataError(f"the checkpoint is of another model: {len(odd)} names differ, first {odd[0]}")
        for name, tensor in self.tensors.items():
            if values[name].shape != tensor.shape or values[name].dtype != tensor.dtype:
                raise DataError(
                    f"the checkpoint's {name} is {values[name].dtype} of shape {tuple(values[name].shape)}, "
                    f"not {tensor.dtype} of shape {tuple(tensor.shape)}"
                )
        self._settle()
        self._write({name: value for name, value in values.items() if name != STEPS_NAME})
        self.steps = int(values[STEPS_NAME])
        self.changed = True

    def flat(self, piece: Piece) -> torch.Tensor:
        """The elements of a piece, whose memory comes and goes."""
        if piece not in self._flat:
            values = self.layout[piece.tensor].values
            # Views of several types may share a storage that is never cut.
            dtype = values[0].dtype if len(values) == 1 else torch.uint8
            self._flat[piece] = torch.empty(piece.size_bytes // dtype.itemsize, dtype=dtype, device=self.device)
            self.storage(piece).resize_(0)
        return self._flat[piece]

    def storage(self, piece: Piece) -> torch.UntypedStorage:
        """The storage that a piece has to itself."""
        return self.flat(piece).untyped_storage()

    def cut(self, tensor: TensorId, pieces: tuple[Piece, ...]) -> None:
        """Cut a storage in another way. What is on the device has to be among the new pieces, too."""
        memory = torch.cat([self._piece_bytes(piece) for piece in self.pieces[tensor]])
        for piece in self.pieces[tensor]:
            self.valid.discard(piece)
            self.seeds.pop(piece, None)
        self.pieces[tensor] = pieces
        self._put(tensor, memory)

    def _make(self, tensor: TensorId, one: Stored) -> None:
        piece = whole(tensor, one.size_bytes)
        memory = torch.empty(one.size_bytes, dtype=torch.uint8, device=self.device)
        self.tensors.update({value.name: _value_in(memory, value) for value in one.values})
        self.pieces[tensor] = (piece,)
        self._flat[piece] = memory
        memory.untyped_storage().resize_(0)

    def _write(self, values: Mapping[str, torch.Tensor]) -> None:
        for position, one in enumerate(self.layout):
            tensor = TensorId(position)
            given = [v for v in one.values if v.name in values]
            if not given:
                continue
            memory = self._bytes(tensor)
            for value in given:
                _value_in(memory, value).copy_(values[value.name])
            self._put(tensor, memory)

    def _bytes(self, tensor: TensorId) -> torch.Tensor:
        """The present bytes of a storage, on the host; of one that is cut, or on a GPU, a copy."""
        parts = [self._piece_bytes(piece) for piece in self.pieces[tensor]]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _piece_bytes(self, piece: Piece) -> torch.Tensor:
        return self._place_of(piece).cpu()

    def _place_of(self, piece: Piece) -> torch.Tensor:
        """Its bytes where they are; of what is beyond the link a copy."""
        if piece in self.resident:
            return bytes_of(self.storage(piece))
        if piece in self.valid:
            assert self.lanes is not None
            return self.lanes.read(self.host[piece], piece.size_bytes)
        seed = self.seeds.get(piece)
        return torch.zeros(piece.size_bytes, dtype=torch.uint8) if seed is None else seed

    def _put(self, tensor: TensorId, memory: torch.Tensor) -> None:
        """Give a storage these bytes, wherever its pieces are."""
        for piece in self.pieces[tensor]:
            part = memory[piece.start_bytes : piece.stop_bytes]
            if piece in self.resident:
                bytes_of(self.storage(piece)).copy_(part)
                self.valid.discard(piece)
            elif piece in self.host and self.lanes is not None and not self.lanes.is_host:
                self.lanes.write(self.host[piece], part)
                self.valid.add(piece)
            else:  # whoever moves it next puts it where it belongs
                self.seeds[piece] = part
                self.valid.discard(piece)

    def _settle(self) -> None:
        if self.lanes is not None:
            self.lanes.drain()


def bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    """A storage as a tensor of bytes that shares it."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def rng_state(device: torch.device = HOST) -> torch.Tensor:
    """Where the random numbers are that the steps on this device draw, to be kept beside an exported state."""
    return torch.get_rng_state() if device == HOST else torch.cuda.get_rng_state(device)


def restore_rng_state(saved: torch.Tensor, device: torch.device = HOST) -> None:
    """Go on with the random numbers from there."""
    if device == HOST:
        torch.set_rng_state(saved)
    else:
        torch.cuda.set_rng_state(saved, device)


def _value_in(memory: torch.Tensor, value: Value) -> torch.Tensor:
    empty = torch.empty(0, dtype=value.dtype, device=memory.device)
    return empty.set_(memory.untyped_storage(), value.offset, value.shape, value.stride)
