"""The static compute graph of one training step: operators in execution order and the storages that they access.

See TENSILE section III-A. A tensor here is a *storage*: views and in-place updates are accesses of the same tensor.
Persistent tensors live across iterations. Their sequence of accesses is therefore cyclic, and a gap that crosses the
end of the iteration is treated like any other gap.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NewType

from indb_tensile.errors import GraphError

TensorId = NewType("TensorId", int)
OpIndex = NewType("OpIndex", int)


class Role(StrEnum):
    """The purpose of a tensor."""

    PARAMETER = "parameter"
    OPTIMIZER_STATE = "optimizer_state"
    BUFFER = "buffer"
    INPUT = "input"  # the batch, which the iteration's upload writes
    ACTIVATION = "activation"  # every other tensor that lives within one iteration


class Stage(StrEnum):
    """The part of the step to which an operator belongs."""

    UPLOAD = "upload"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"


_PERSISTENT = frozenset({Role.PARAMETER, Role.OPTIMIZER_STATE, Role.BUFFER})


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """One storage of the step graph. It is allocated, swapped and released as a whole."""

    id: TensorId
    name: str
    size_bytes: int
    role: Role

    def __post_init__(self) -> None:
        if self.size_bytes <= 0:
            raise GraphError(f"tensor {self.id} ({self.name}): size_bytes is {self.size_bytes}, not positive")

    @property
    def persistent(self) -> bool:
        """True if the tensor lives across iterations."""
        return self.role in _PERSISTENT


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """One operator call of the step: the tensors that it reads and writes, and the workspace that it needs while it
    runs.

    `signature` identifies the operator in stored measurements. It is made from the name, the shapes, dtypes and
    strides of the inputs, and the parameters. Writing a tensor that already has a value updates it in place, whether
    or not the tensor is in `reads`. A `random` operator draws random numbers and never runs twice. A `splittable`
    operator treats each element by itself and may run in parts: it updates one parameter and its optimizer state.

    An operator that `starts` an exchange with other devices lets it run beside the operators that follow, and the one
    that `awaits` it waits until it has ended. Exchanges count from 0, in their order. Both operators access the same
    tensors, and nothing else may access, move or free these in between. The latency of the operator that waits is the
    time of the exchange.
    """

    name: str
    signature: str
    stage: Stage
    reads: tuple[TensorId, ...]
    writes: tuple[TensorId, ...]
    workspace_bytes: int = 0
    flops: int = 0
    random: bool = False
    splittable: bool = False
    starts: int | None = None
    awaits: int | None = None

    @property
    def tensors(self) -> frozenset[TensorId]:
        """The tensors that the operator reads or writes."""
        return frozenset((*self.reads, *self.writes))


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True)
class StepGraph:
    """One training step in steady state. Tensor `i` has id `i`; operator `k` runs `k`-th.

    Raises GraphError if an id is out of range, if a tensor that does not persist is read before it is written, if
    exchanges do not begin and end in order, or if there is no operator.
    """

    tensors: tuple[Tensor, ...]
    operators: tuple[Operator, ...]
    signature: str = field(default="")

    def __post_init__(self) -> None:
        if not self.operators:
            raise GraphError("the step graph has no operator")
        for position, tensor in enumerate(self.tensors):
            if tensor.id != position:
                raise GraphError(f"tensor {tensor.name} has id {tensor.id} at position {position}")
        written = {t.id for t in self.tensors if t.persistent}
        for index, operator in enumerate(self.operators):
            if operator.workspace_bytes < 0 or operator.flops < 0:
                raise GraphError(f"operator {index} ({operator.name}): negative workspace or flops")
            for tensor_id in (*operator.reads, *operator.writes):
                if not 0 <= tensor_id < len(self.tensors):
                    raise GraphError(f"operator {index} ({operator.name}): unknown tensor {tensor_id}")
            if not written.issuperset(operator.reads):
                name = next(self.tensors[t].name for t in operator.reads if t not in written)
                raise GraphError(f"operator {index} ({operator.name}) reads {name} before it is written")
            written.update(operator.writes)
        _check_exchanges(self.operators)


def _check_exchanges(operators: tuple[Operator, ...]) -> None:
    """Raise GraphError unless exchanges start in order and are waited for in order, with the same tensors."""
    under_way: list[frozenset[TensorId]] = []
    started = awaited = 0
    for index, operator in enumerate(operators):
        if operator.starts is None and operator.awaits is None:
            continue
        named = f"operator {index} ({operator.name})"
        if operator.starts is not None:
            if operator.starts != started or operator.awaits is not None:
                raise GraphError(f"{named} starts exchange {operator.starts}, and exchange {started} comes next")
            started += 1
            under_way.append(operator.tensors)
            continue
        if operator.awaits != awaited or not under_way:
            raise GraphError(f"{named} awaits exchange {operator.awaits}, of {awaited} awaited and {started} started")
        if under_way.pop(0) != operator.tensors:
            raise GraphError(f"{named} awaits exchange {awaited} with other tensors than it was started with")
        awaited += 1
    if under_way:
        raise GraphError(f"exchange {awaited} is started, and nothing waits for it")
