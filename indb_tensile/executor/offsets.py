"""Addresses for everything that a program allocates under its plan, as offsets into one block.

residency.py of the scheduler says when each tensor of the plan holds memory, placement.py (SmartPool) where; the
operators' scripts say which allocation is which tensor's, and what scratch lies in a workspace. So the n-th
allocation at each position of the program has an address before anything has run.

Positions number what the program passes: operator k with the boundary before it, and last the boundary that closes
the iteration.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from indb_tensile.executor.capture import CapturedStep
from indb_tensile.executor.script import Script
from indb_tensile.executor.timeline import Timeline
from indb_tensile.scheduler.graph import OpIndex, StepGraph, TensorId
from indb_tensile.scheduler.placement import Placement, place, place_within
from indb_tensile.scheduler.plan import Execution, Plan
from indb_tensile.scheduler.residency import Interval, intervals
from indb_tensile.scheduler.rewrite import captured_order, effective

Placed = tuple[int, int]  # size and offset of one allocation

_SEARCH_STEPS = 100_000  # tenths of a second: a trainer waits for it
_SCRATCH_ALIGNMENT_BYTES = 64  # what torch asks for; a workspace itself is aligned like any tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Offsets:
    """By position the allocations, in order. `home`: where each persistent tensor lies between two iterations."""

    positions: tuple[tuple[Placed, ...], ...]
    home: dict[TensorId, int]
    size_bytes: int


def plan_offsets(step: CapturedStep, plan: Plan, timeline: Timeline, capacity_bytes: int | None = None) -> Offsets:
    """Place everything that the plan foresees, within the capacity where that can be found.

    What an operator allocates without a script, or by one that does not repeat, gets no address; nor does scratch
    that is more than the graph's workspace: whoever serves it finds a place.
    """
    graph = effective(step.graph, plan)
    count = len(graph.operators)
    scripts = _scripts(step, plan)
    held = tuple(_with_room(one, scripts) for one in intervals(step.graph, plan))
    placed = _place(held, count, capacity_bytes)
    found = _Found(step, plan, graph, timeline, scripts, held, placed.offsets)
    return Offsets(
        positions=(*(found.at(k) for k in range(count)), tuple(found.returning(count))),
        home={
            one.tensor: offset
            for one, offset in zip(held, placed.offsets, strict=True)
            if one.tensor in timeline.home and (one.first == 0 or one.stop > count)
        },
        size_bytes=placed.size_bytes,
    )


def _place(held: Sequence[Interval], count: int, capacity_bytes: int | None) -> Placement:
    placed = place(held, count)
    if capacity_bytes is None or placed.size_bytes <= capacity_bytes:
        return placed
    tighter = place_within(held, count, capacity_bytes=capacity_bytes, steps=_SEARCH_STEPS)
    return tighter if isinstance(tighter, Placement) else placed


def _scripts(step: CapturedStep, plan: Plan) -> tuple[Script | None, ...]:
    """What is known of each operator in the plan's order; a part of an update allocates nothing, or who knows."""
    found = []
    for one in plan.executions or captured_order(step.graph):
        script = step.scripts.get(step.graph.operators[one.operator].signature)
        known = script is not None and script.steady and (one.parts == 1 or not script.allocations)
        found.append(script if known else None)
    return tuple(found)


def _with_room(one: Interval, scripts: Sequence[Script | None]) -> Interval:
    """Scratch of one operator may not pack into the sum of its sizes."""
    script = scripts[one.first] if one.tensor is None else None
    return one if script is None else replace(one, size_bytes=max(one.size_bytes, _packed(script)[1]))


@lru_cache(maxsize=4096)
def _packed(script: Script) -> tuple[dict[int, int], int]:
    """Offsets in the workspace by the numbers of what lies there, and its size."""
    lodged = script.lodged
    scratch = [i for i, one in enumerate(script.allocations) if one.result is None and i not in lodged]
    held = [
        Interval(tensor=None, first=OpIndex(one.made_at), stop=one.released_at, size_bytes=one.size_bytes)
        for one in (script.allocations[i] for i in scratch)
    ]
    placed = place(held, 2 * len(script.allocations) + 1, alignment_bytes=_SCRATCH_ALIGNMENT_BYTES)
    return dict(zip(scratch, placed.offsets, strict=True)), placed.size_bytes


class _Found:
    """Looks up the address of each allocation."""

    def __init__(
        self,
        step: CapturedStep,
        plan: Plan,
        graph: StepGraph,
        timeline: Timeline,
        scripts: Sequence[Script | None],
        held: Sequence[Interval],
        offsets: Sequence[int],
    ) -> None:
        self._step = step
        self._executions = plan.executions or captured_order(step.graph)
        self._graph = graph
        self._timeline = timeline
        self._scripts = scripts
        self._offset = {(one.tensor, one.first): offset for one, offset in zip(held, offsets, strict=True)}

    def at(self, k: int) -> tuple[Placed, ...]:
        """What comes back at boundary k, then what operator k takes."""
        script = self._scripts[k]
        return (*self.returning(k), *(() if script is None else self._taken(k, self._executions[k], script)))

    def returning(self, k: int) -> Iterator[Placed]:
        """What comes back at boundary k."""
        for gap in self._timeline.boundaries[k].ins:
            size_bytes = self._graph.tensors[gap.tensor].size_bytes
            yield size_bytes, self._offset[gap.tensor, OpIndex(k % len(self._graph.operators))]

    def _taken(self, k: int, execution: Execution, script: Script) -> Iterator[Placed]:
        scratch, _ = _packed(script)
        lodged = script.lodged
        workspace = self._offset.get((None, OpIndex(k)))
        for index, one in enumerate(script.allocations):
            if index in scratch and workspace is not None:
                yield one.size_bytes, workspace + scratch[index]
                continue
            host = script.allocations[lodged.get(index, index)]
            offset = None if host.result is None else self._of_result(k, execution, host.result)
            if offset is not None:
                yield one.size_bytes, offset

    def _of_result(self, k: int, execution: Execution, result: int) -> int | None:
        name = self._step.steps[execution.operator].kernel.results[result]
        captured = self._step.graph.operators[execution.operator].writes
        here = dict(zip(captured, self._graph.operators[k].writes, strict=True))
        tensor = None if name is None else self._step.tensor_of.get(self._step.values[name].storage)
        return None if tensor is None else self._offset.get((here[tensor], OpIndex(k)))
