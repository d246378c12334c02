"""Step graphs of any size, plans with many swaps, re-runs and parts, and a counter of the source lines that a call
runs.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import indb_tensile.scheduler
from indb_tensile.bench.harness.networks.graph_builder import GraphBuilder
from indb_tensile.bench.harness.networks.residual import residual
from indb_tensile.scheduler.graph import OpIndex, Role, Stage, StepGraph
from indb_tensile.scheduler.memory.peak import gaps
from indb_tensile.scheduler.plan import Execution, Plan, Swap
from indb_tensile.scheduler.rewrite import effective, repeatable

_SOURCES = str(Path(indb_tensile.scheduler.__file__).parent)
_PARTS = 3


def unrolled(operators: int) -> StepGraph:
    """Return a step of a recurrent network, unrolled over as many time steps as give about `operators` operators.

    Every time step reads the weights and an input, and adds to their gradients in place, so the number of accesses
    and versions of a few tensors grows with the number of time steps.
    """
    network = GraphBuilder()
    steps = (operators - 3) // 3
    upload = network.tensor("x", 64_000, Role.INPUT)
    network.operator("upload", Stage.UPLOAD, (), (upload,))
    weights = network.tensor("weights", 4_000_000, Role.PARAMETER)
    moments = network.tensor("moments", 8_000_000, Role.OPTIMIZER_STATE)
    gradient = network.tensor("gradient", 4_000_000, Role.ACTIVATION)
    states = [network.tensor("start", 32_000, Role.ACTIVATION)]
    network.operator("start", Stage.FORWARD, (upload,), (states[0],))
    for _ in range(steps):
        inner = network.tensor("inner", 64_000, Role.ACTIVATION)
        network.operator("product", Stage.FORWARD, (states[-1], upload, weights), (inner,))
        states.append(network.tensor("state", 32_000, Role.ACTIVATION))
        network.operator("cell", Stage.FORWARD, (inner, states[-2]), (states[-1],))
    network.operator("zero", Stage.BACKWARD, (), (gradient,))
    for state in reversed(states[:-1]):
        network.operator("back", Stage.BACKWARD, (state, weights, gradient), (gradient,))
    network.operator("adam", Stage.OPTIMIZER, (gradient, weights, moments), (weights, moments), splittable=True)
    return network.graph("unrolled")


FAMILIES: dict[str, Callable[[int], StepGraph]] = {"residual": residual, "unrolled": unrolled}


def busy_plan(graph: StepGraph) -> Plan:
    """Return a valid plan that swaps in every gap, runs every second repeatable operator twice, and splits updates
    into parts.
    """
    may_rerun = repeatable(graph)
    executions: list[Execution] = []
    for index, operator in enumerate(graph.operators):
        parts = _PARTS if operator.splittable else 1
        executions += [Execution(operator=OpIndex(index), part=part, parts=parts) for part in range(parts)]
        if may_rerun[index] and index % 2:
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
    """Return how many lines of the scheduler's sources run during this call. A line counts once for each turn of a
    loop.
    """
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
