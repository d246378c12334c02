"""Lists the persistent storages of a job: their order, and the values in each.

Captured graphs and the state of a running job number persistent tensors by this one list. The training step, its step
for the last, smaller batch and the evaluation of one module therefore use the same ids.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from indb_tensile.errors import RequestError
from indb_tensile.executor.capture.aten import storage_key
from indb_tensile.executor.capture.optimizer import AVERAGE, OptimizerSettings, state_name
from indb_tensile.executor.capture.rank_share import RankShare
from indb_tensile.executor.capture.state_division import StateDivision, divide_state
from indb_tensile.scheduler.graph import Role

STEP_NAME = "optimizer/step"


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """One named tensor in a storage. `offset` and `stride` count elements."""

    name: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    trainable: bool = False

    @property
    def end_bytes(self) -> int:
        """The end of the last element in bytes, from the start of the storage."""
        if 0 in self.shape:
            return 0
        last = self.offset + sum((n - 1) * s for n, s in zip(self.shape, self.stride, strict=True))
        return (last + 1) * self.dtype.itemsize


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """One persistent storage and the values that share it. The storage is empty if `size_bytes` is 0."""

    role: Role
    values: tuple[Value, ...]

    @property
    def name(self) -> str:
        """The name of the storage, which is that of its first value."""
        return self.values[0].name

    @property
    def size_bytes(self) -> int:
        """The bytes that the values need. The module's own storage may be larger."""
        return max(value.end_bytes for value in self.values)


def layout(
    module: nn.Module, optimizer: OptimizerSettings | None, share: RankShare | None = None
) -> tuple[StoredTensor, ...]:
    """List parameters, then buffers, then optimizer state. Values that share a storage stay together.

    With a `share` that divides the state, the list has the optimizer state that this rank keeps.

    The module may be real, fake or on the meta device: only shapes are read. Optimizer state is named
    `optimizer/<state>/<parameter>`, which cannot be a module path. Raises RequestError for a parameter or buffer that
    is sparse, quantized or of a lazy module that has seen no batch.
    """
    stored = [*_group(module)]
    if optimizer is None:
        return tuple(stored)
    if optimizer.counts_steps:
        step = Value(name=STEP_NAME, shape=(), stride=(), offset=0, dtype=torch.float32)
        stored.append(StoredTensor(role=Role.OPTIMIZER_STATE, values=(step,)))
    trained = [value for s in stored for value in s.values if value.trainable]
    division = state_division(stored, share)
    stored += [
        _state_of(value, kind)
        for value in trained
        for kind in optimizer.states
        if division is None or kind == AVERAGE or division.owns(value.name)
    ]
    return tuple(stored)


def state_division(stored: Sequence[StoredTensor], share: RankShare | None) -> StateDivision | None:
    """Return how the ranks divide the optimizer's state of these storages' parameters; None if they do not."""
    if share is None or not share.divides_state:
        return None
    trained = [value for s in stored for value in s.values if value.trainable]
    sizes_bytes = {value.name: math.prod(value.shape) * value.dtype.itemsize for value in trained}
    return StateDivision(rank=share.rank, owners=divide_state(sizes_bytes, share.ranks))


def divided_values(
    module: nn.Module, optimizer: OptimizerSettings, share: RankShare | None
) -> tuple[tuple[Value, int], ...]:
    """Return the optimizer state that the ranks divide among them: each value with the rank that keeps it."""
    stored = layout(module, optimizer)
    division = state_division(stored, share)
    if division is None:
        return ()
    of_state = {s.name: s.values[0] for s in stored if s.role is Role.OPTIMIZER_STATE}
    return tuple(
        (of_state[state_name(kind, parameter)], owner)
        for parameter, owner in division.owners.items()
        for kind in optimizer.states
        if kind != AVERAGE
    )


def _group(module: nn.Module) -> Iterator[StoredTensor]:
    groups: dict[int, list[tuple[Value, Role]]] = {}
    for name, tensor, role in _named(module):
        key = storage_key(tensor)
        groups.setdefault(key, []).append((_value(name, tensor, role), role))
    for role in (Role.PARAMETER, Role.BUFFER):
        for members in groups.values():
            if members[0][1] is role:
                yield StoredTensor(role=role, values=_at_origin([value for value, _ in members]))


def _named(module: nn.Module) -> Iterator[tuple[str, torch.Tensor, Role]]:
    for name, parameter in module.named_parameters():
        _require_dense(f"parameter {name}", parameter)
        yield name, parameter, Role.PARAMETER
    for name, buffer in module.named_buffers():
        _require_dense(f"buffer {name}", buffer)
        yield name, buffer, Role.BUFFER


def _require_dense(subject: str, tensor: torch.Tensor) -> None:
    """Raise RequestError for a tensor without a storage that could be moved as a whole."""
    if is_lazy(tensor):
        raise RequestError(
            f"{subject} is not initialised: it belongs to a lazy module",
            hint="Call the model once on a batch, which gives it its shape, or build it with the shape.",
        )
    if tensor.layout is not torch.strided:
        hint = "Keep it as a dense tensor (to_dense)."
        raise RequestError(f"{subject} is sparse: its layout is {tensor.layout}", hint=hint)
    if tensor.is_quantized:
        hint = "Keep it as a tensor of floating-point numbers (dequantize)."
        raise RequestError(f"{subject} is quantized: its type is {tensor.dtype}", hint=hint)


def _value(name: str, tensor: torch.Tensor, role: Role) -> Value:
    return Value(
        name=name,
        shape=tuple(tensor.shape),
        stride=tuple(tensor.stride()),
        offset=int(tensor.storage_offset()),
        dtype=tensor.dtype,
        trainable=role is Role.PARAMETER and tensor.requires_grad,
    )


def _at_origin(values: list[Value]) -> tuple[Value, ...]:
    if len(values) > 1:
        return tuple(values)
    only = values[0]
    return (
        Value(
            name=only.name,
            shape=only.shape,
            stride=only.stride,
            offset=0,
            dtype=only.dtype,
            trainable=only.trainable,
        ),
    )


def _state_of(parameter: Value, kind: str) -> StoredTensor:
    value = Value(
        name=state_name(kind, parameter.name),
        shape=parameter.shape,
        stride=parameter.stride,
        offset=0,
        dtype=parameter.dtype,
    )
    return StoredTensor(role=Role.OPTIMIZER_STATE, values=(value,))
