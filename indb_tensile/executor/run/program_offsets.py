"""Addresses for everything that a program allocates under its plan, as offsets into one block.

residency.py of the scheduler says when each tensor of the plan holds memory, placement.py (SmartPool) where; the
operators' scripts say which allocation is which tensor's, and what scratch lies in a workspace. So the n-th
allocation at each position of the program has an address before anything has run.

Positions number what the program passes: operator k with the boundary before it, and last the boundary that closes
the iteration.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from indb_tensile.executor.capture.allocation_script import Script
from indb_tensile.executor.capture.capture import CapturedStep
from indb_tensile.executor.run.timeline import Timeline
from indb_tensile.scheduler.graph import OpIndex, StepGraph, TensorId
from indb_tensile.scheduler.memory.placement import place_plan
from indb_tensile.scheduler.memory.residency import Interval, intervals
from indb_tensile.scheduler.plan import Execution, Plan
from indb_tensile.scheduler.rewrite import captured_order, effective

Placed = tuple[int, int]  # size and offset of one allocation
_Named = tuple[int, int, str]  # and whose it is


@dataclass(frozen=True, slots=True, kw_only=True)
class Offsets:
    """By position the allocations, in order. `home`: where each persistent tensor lies between two iterations.

    `names` are those of all positions' allocations, one after the other: for whoever has to say what lies where.
    """

    positions: tuple[tuple[Placed, ...], ...]
    names: tuple[str, ...]
    home: dict[TensorId, int]
    size_bytes: int


def plan_offsets(step: CapturedStep, plan: Plan, timeline: Timeline, region_bytes: int) -> Offsets:
    """Place everything that the plan foresees, as whoever granted memory for it has done.

    What an operator allocates without a script, or by one that does not repeat, gets no address; nor does scratch
    that is more than the graph's workspace: whoever serves it finds a place.
    """
    graph = effective(step.graph, plan)
    count = len(graph.operators)
    held = intervals(step.graph, plan)
    placed = place_plan(step.graph, plan, region_bytes=region_bytes)
    found = _Found(step, plan, graph, timeline, held, placed.offsets)
    named = (*(found.at(k) for k in range(count)), tuple(found.returning(count)))
    return Offsets(
        positions=tuple(tuple((size_bytes, offset) for size_bytes, offset, _ in rows) for rows in named),
        names=tuple(name for rows in named for _, _, name in rows),
        home={
            one.tensor: offset
            for one, offset in zip(held, placed.offsets, strict=True)
            if one.tensor in timeline.home and (one.first == 0 or one.stop > count)
        },
        size_bytes=placed.size_bytes,
    )


def _scripts(step: CapturedStep, plan: Plan) -> tuple[Script | None, ...]:
    """What is known of each operator in the plan's order; a part of an update allocates nothing, or who knows."""
    found = []
    for one in plan.executions or captured_order(step.graph):
        script = step.scripts.get(step.graph.operators[one.operator].signature)
        known = script is not None and script.steady and (one.parts == 1 or not script.allocations)
        found.append(script if known else None)
    return tuple(found)


class _Found:
    """Looks up the address of each allocation."""

    def __init__(
        self,
        step: CapturedStep,
        plan: Plan,
        graph: StepGraph,
        timeline: Timeline,
        held: Sequence[Interval],
        offsets: Sequence[int],
    ) -> None:
        self._step = step
        self._executions = plan.executions or captured_order(step.graph)
        self._graph = graph
        self._timeline = timeline
        self._scripts = _scripts(step, plan)
        self._offset = {(one.tensor, one.first): offset for one, offset in zip(held, offsets, strict=True)}

    def at(self, k: int) -> tuple[_Named, ...]:
        """What comes back at boundary k, then what operator k takes."""
        script = self._scripts[k]
        return (*self.returning(k), *(() if script is None else self._taken(k, self._executions[k], script)))

    def returning(self, k: int) -> Iterator[_Named]:
        """What comes back at boundary k."""
        for gap in self._timeline.boundaries[k].ins:
            tensor = self._graph.tensors[gap.tensor]
            yield tensor.size_bytes, self._offset[gap.tensor, OpIndex(k % len(self._graph.operators))], tensor.name

    def _taken(self, k: int, execution: Execution, script: Script) -> Iterator[_Named]:
        scratch, _ = script.packed
        lodged = script.lodged
        workspace = self._offset.get((None, OpIndex(k)))
        room_bytes = self._graph.operators[k].workspace_bytes
        for index, one in enumerate(script.allocations):
            if index in scratch:
                if workspace is not None and scratch[index] + one.size_bytes <= room_bytes:
                    yield one.size_bytes, workspace + scratch[index], f"scratch of {self._graph.operators[k].name}"
                continue
            host = script.allocations[lodged.get(index, index)]
            tensor = None if host.result is None else self._result(k, execution, host.result)
            offset = None if tensor is None else self._offset.get((tensor, OpIndex(k)))
            if tensor is not None and offset is not None:
                yield one.size_bytes, offset, self._graph.tensors[tensor].name

    def _result(self, k: int, execution: Execution, result: int) -> TensorId | None:
        name = self._step.steps[execution.operator].kernel.results[result]
        captured = self._step.graph.operators[execution.operator].writes
        here = dict(zip(captured, self._graph.operators[k].writes, strict=True))
        tensor = None if name is None else self._step.tensor_of.get(self._step.values[name].storage)
        return None if tensor is None else here[tensor]
