"""The static compute graph of one training step: operators in execution order and the storages they access.

TENSILE section III-A. A tensor here is a *storage*: views and in-place updates are accesses of the
same tensor. Persistent tensors live across iterations, so the sequence of accesses is cyclic and a gap
that crosses the end of the iteration is a gap like any other.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NewType

from indb_tensile.errors import GraphError

TensorId = NewType("TensorId", int)
OpIndex = NewType("OpIndex", int)


class Role(StrEnum):
    """What a tensor is for."""

    PARAMETER = "parameter"
    OPTIMIZER_STATE = "optimizer_state"
    BUFFER = "buffer"
    INPUT = "input"  # the batch: written by the iteration's upload
    ACTIVATION = "activation"  # everything else that lives within one iteration


class Stage(StrEnum):
    """Which part of the step an operator belongs to."""

    UPLOAD = "upload"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"


_PERSISTENT = frozenset({Role.PARAMETER, Role.OPTIMIZER_STATE, Role.BUFFER})


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """One storage of the step graph: what is allocated, swapped and released as a whole."""

    id: TensorId
    name: str
    size_bytes: int
    role: Role

    def __post_init__(self) -> None:
        if self.size_bytes <= 0:
            raise GraphError(f"tensor {self.id} ({self.name}): size_bytes is {self.size_bytes}, not positive")

    @property
    def persistent(self) -> bool:
        """Lives across iterations."""
        return self.role in _PERSISTENT


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """One call of the step: what it reads, what it writes, what it needs while it runs.

    `signature` keys what is remembered about the operator: its name, the shapes, dtypes and strides of its
    inputs and its parameters. Writing a tensor that already has a value updates it in place, whether or not it
    stands in `reads`. `random` operators draw random numbers and are never run twice. A `splittable` one treats
    each element by itself and may run in parts: the update of one parameter and its optimizer state.
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


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True)
class StepGraph:
    """One training step in steady state. Tensor `i` has id `i`; operator `k` runs `k`-th.

    Raises GraphError where an id is out of range, a tensor that does not persist is read before it is
    written, or there is no operator.
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
