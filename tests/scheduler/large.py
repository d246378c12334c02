"""Step graphs of any size, plans with as many swaps, re-runs and parts, and a count of what judging them takes."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import indb_tensile.scheduler
from indb_tensile.bench.residual import residual
from indb_tensile.scheduler.graph import Operator, OpIndex, Role, Stage, StepGraph, Tensor, TensorId
from indb_tensile.scheduler.peak import gaps
from indb_tensile.scheduler.plan import Execution, Plan, Swap
from indb_tensile.scheduler.rewrite import effective, repeatable

_SOURCES = str(Path(indb_tensile.scheduler.__file__).parent)
_PARTS = 3


def unrolled(operators: int) -> StepGraph:
    """A recurrent network unrolled over as many time steps as make so many operators.

    Every step reads the weights and an input, and adds to their gradients in place, so that a few tensors have as
    many accesses and versions as there are steps.
    """
    network = _Unrolled()
    steps = (operators - 3) // 3
    upload = network.tensor("x", 64_000, Role.INPUT)
    network.run("upload", Stage.UPLOAD, (), (upload,))
    weights = network.tensor("weights", 4_000_000, Role.PARAMETER)
    moments = network.tensor("moments", 8_000_000, Role.OPTIMIZER_STATE)
    gradient = network.tensor("gradient", 4_000_000)
    states = [network.tensor("start", 32_000)]
    network.run("start", Stage.FORWARD, (upload,), (states[0],))
    for _ in range(steps):
        inner = network.tensor("inner", 64_000)
        network.run("product", Stage.FORWARD, (states[-1], upload, weights), (inner,))
        states.append(network.tensor("state", 32_000))
        network.run("cell", Stage.FORWARD, (inner, states[-2]), (states[-1],))
    network.run("zero", Stage.BACKWARD, (), (gradient,))
    for state in reversed(states[:-1]):
        network.run("back", Stage.BACKWARD, (state, weights, gradient), (gradient,))
    network.run("adam", Stage.OPTIMIZER, (gradient, weights, moments), (weights, moments), splittable=True)
    return StepGraph(tensors=tuple(network.tensors), operators=tuple(network.operators), signature="unrolled")


FAMILIES: dict[str, Callable[[int], StepGraph]] = {"residual": residual, "unrolled": unrolled}


def busy_plan(graph: StepGraph) -> Plan:
    """A plan that breaks no rule, with swaps in all gaps, every operator that may run twice, and updates in parts."""
    again = repeatable(graph)
    executions: list[Execution] = []
    for index, operator in enumerate(graph.operators):
        parts = _PARTS if operator.splittable else 1
        executions += [Execution(operator=OpIndex(index), part=part, parts=parts) for part in range(parts)]
        if again[index] and index % 2:
            executions.append(Execution(operator=OpIndex(index)))
    ordered = Plan(policy="busy", executions=tuple(executions))
    count = len(effective(graph, ordered).operators)
    swaps = tuple(
        Swap(
            tensor=gap.tensor,
            out_after=gap.out_after,
            free_at=OpIndex((gap.out_after + 1) % count),
            in_at=gap.needed_by,
            needed_by=gap.needed_by,
        )
        for gap in gaps(effective(graph, ordered))
    )
    return Plan(policy="busy", executions=ordered.executions, swaps=swaps)


def lines_run(call: Callable[[], object]) -> int:
    """How many lines of the scheduler's sources run during this call, once for each turn of a loop."""
    count = 0

    def line(_: FrameType, event: str, __: Any) -> Any:
        nonlocal count
        count += event == "line"
        return line

    def entered(frame: FrameType, _: str, __: Any) -> Any:
        return line if frame.f_code.co_filename.startswith(_SOURCES) else None

    before = sys.gettrace()
    sys.settrace(entered)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


class _Unrolled:
    """Collects tensors and operators."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self.operators: list[Operator] = []

    def tensor(self, name: str, size_bytes: int, role: Role = Role.ACTIVATION) -> TensorId:
        made = TensorId(len(self.tensors))
        self.tensors.append(Tensor(id=made, name=f"{name} {made}", size_bytes=size_bytes, role=role))
        return made

    def run(
        self,
        name: str,
        stage: Stage,
        reads: tuple[TensorId, ...],
        writes: tuple[TensorId, ...],
        *,
        splittable: bool = False,
    ) -> None:
        self.operators.append(
            Operator(name=name, signature=name, stage=stage, reads=reads, writes=writes, splittable=splittable)
        )
