"""Check what a job's plans are counted to need of the host pool, by hand."""

import pytest

from indb_tensile.scheduler.graph import Operator, OpIndex, Role, Stage, StepGraph, Tensor, TensorId
from indb_tensile.scheduler.host_memory import host_bytes, parked_bytes
from indb_tensile.scheduler.plan import Execution, Plan, Swap
from tests.scheduler.plan_parts import execution_order, swap

KIB = 1 << 10
LARGEST_BYTES = 64 * KIB  # the weight, for which there is room to pass through the pool
WEIGHT, MOMENTUM, GRADIENT = (TensorId(k) for k in range(3))
TENSORS = (
    Tensor(id=WEIGHT, name="w", size_bytes=LARGEST_BYTES, role=Role.PARAMETER),
    Tensor(id=MOMENTUM, name="m", size_bytes=48 * KIB, role=Role.OPTIMIZER_STATE),
    Tensor(id=GRADIENT, name="g", size_bytes=16 * KIB, role=Role.ACTIVATION),
)


def _operator(name: str, stage: Stage, reads: tuple[TensorId, ...], writes: tuple[TensorId, ...]) -> Operator:
    return Operator(name=name, signature=name, stage=stage, reads=reads, writes=writes, splittable=name == "update")


TRAINING = StepGraph(
    tensors=TENSORS,
    operators=(
        _operator("forward", Stage.FORWARD, (WEIGHT,), (GRADIENT,)),
        _operator("backward", Stage.BACKWARD, (WEIGHT,), (GRADIENT,)),
        _operator("update", Stage.OPTIMIZER, (WEIGHT, MOMENTUM, GRADIENT), (WEIGHT, MOMENTUM)),
    ),
)
EVALUATION = StepGraph(tensors=TENSORS, operators=(_operator("forward", Stage.FORWARD, (WEIGHT,), (GRADIENT,)),))
NOTHING = Plan(policy="test")
AWAY = Plan(policy="test", away=frozenset({MOMENTUM}))


def _in_parts(parts: int, *swapped: int) -> Plan:
    """Return a plan that runs the update in parts and swaps the numbered parts of its state, whose ids follow."""
    update = tuple(Execution(operator=OpIndex(2), part=part, parts=parts) for part in range(parts))
    tensors = [MOMENTUM if part == 0 else TensorId(GRADIENT + part) for part in range(parts)]
    swaps: list[Swap] = [swap(tensors[part], 2 + part, 0, 1, 2 + part) for part in swapped]
    return Plan(policy="test", executions=(*execution_order(0, 1), *update), swaps=tuple(swaps))


@pytest.mark.parametrize(
    ("first", "second", "evaluation", "swapped_bytes"),
    [
        (NOTHING, NOTHING, NOTHING, 0),
        (_in_parts(2, 0), NOTHING, NOTHING, 24 * KIB),
        (_in_parts(2, 0), _in_parts(2, 0), NOTHING, 24 * KIB),  # one buffer for a piece, whichever graph swaps it
        (_in_parts(2, 0), _in_parts(2, 1), NOTHING, 48 * KIB),
        (_in_parts(2, 0, 1), _in_parts(3, 0, 1, 2), NOTHING, 96 * KIB),  # more than the state that they cut
        (NOTHING, NOTHING, AWAY, 48 * KIB),
        (_in_parts(2, 0, 1), _in_parts(2), AWAY, 48 * KIB),  # it waits in the buffers of its pieces
        (_in_parts(2, 0), _in_parts(2), AWAY, 48 * KIB),
        (_in_parts(2, 0, 1), _in_parts(3), AWAY, 96 * KIB),  # in other pieces it has no buffers yet
        (_in_parts(2, 0), _in_parts(3, 0), AWAY, (24 + 16 + 32) * KIB),
    ],
)
def test_every_piece_that_any_plan_swaps_has_a_buffer(
    first: Plan, second: Plan, evaluation: Plan, swapped_bytes: int
) -> None:
    counted_bytes = host_bytes((TRAINING, TRAINING, EVALUATION), (first, second, evaluation))
    assert counted_bytes == swapped_bytes + LARGEST_BYTES


def test_a_parked_job_needs_its_state() -> None:
    assert parked_bytes((TRAINING, EVALUATION)) == (64 + 48) * KIB
