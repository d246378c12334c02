"""Computes an address for every allocation of a program under its plan, as an offset in one block.

The scheduler's residency.py says when each tensor of the plan holds memory, and tensor_placement.py (after SmartPool)
says where. The operators' scripts say which allocation belongs to which tensor, and which scratch lies in a
workspace. So the n-th allocation at each position of the program has an address before anything has run.

Positions count what the program passes: position k is operator k with the boundary before it, and the last position
is the boundary that closes the iteration.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from indb_tensile.executor.capture.allocation_script import GPU_ALIGNMENT_BYTES, AllocationScript
from indb_tensile.executor.capture.replay import INPUTS
from indb_tensile.executor.capture.step_capture import CapturedStep
from indb_tensile.executor.run.timeline import Timeline
from indb_tensile.scheduler.graph import OpIndex, StepGraph, TensorId
from indb_tensile.scheduler.memory.next_batch import NextBatchRoom, batch_tensors, next_batch_room
from indb_tensile.scheduler.memory.residency import Interval, intervals
from indb_tensile.scheduler.memory.tensor_placement import place_plan
from indb_tensile.scheduler.plan import Plan
from indb_tensile.scheduler.plan_cache import PlanCache
from indb_tensile.scheduler.rewrite import captured_order, effective

Placed = tuple[int, int]  # size and offset of one allocation
_Named = tuple[int, int, str]  # size, offset and name


@dataclass(frozen=True, slots=True, kw_only=True)
class Offsets:
    """The planned addresses of a program: the size and offset of each position's allocations, in order.

    `names` are the names of all positions' allocations, one after the other, for error reports. `home` gives each
    persistent tensor's offset between two iterations. `rooms` has the size and offset of the part of each position's
    workspace that lies behind its listed scratch; an allocation of a size that is not listed is placed there.
    `unlisted_bytes` are the planned bytes of each position's allocations that are in neither. `next_batch` is the
    room for the next batch, if there is any.
    """

    positions: tuple[tuple[Placed, ...], ...]
    rooms: tuple[Placed, ...]
    unlisted_bytes: tuple[int, ...]
    names: tuple[str, ...]
    home: dict[TensorId, int]
    size_bytes: int
    next_batch: NextBatchRoom | None


def plan_offsets(
    step: CapturedStep,
    plan: Plan,
    timeline: Timeline,
    region_bytes: int,
    cache: PlanCache | None = None,
    joint: Collection[int] = frozenset(),
) -> Offsets:
    """Place all allocations that the plan contains, exactly as the controller did when it granted the memory.

    At the positions `joint` nothing runs; the operator runs in place of the next one (joint_normalisations.py).

    Two kinds of allocations get no address, and whoever serves them finds a place: those of operators without a
    repeatable script, and scratch beyond the graph's workspace.
    """
    kept = PlanCache() if cache is None else cache
    graph = effective(step.graph, plan, kept)
    count = len(graph.operators)
    residencies = intervals(step.graph, plan, kept)
    placed = place_plan(step.graph, plan, region_bytes=region_bytes, cache=kept)
    lookup = _AddressLookup(step, plan, graph, timeline, residencies, placed.offsets, joint)
    named = (*(lookup.allocations_at(k) for k in range(count)), tuple(lookup.returning(count)))
    return Offsets(
        positions=tuple(tuple((size_bytes, offset) for size_bytes, offset, _ in rows) for rows in named),
        rooms=tuple(lookup.room(k) for k in range(count)),
        unlisted_bytes=tuple(lookup.unlisted_bytes(k) for k in range(count)),
        names=tuple(name for rows in named for _, _, name in rows),
        home={
            residency.tensor: offset
            for residency, offset in zip(residencies, placed.offsets, strict=True)
            if residency.tensor in timeline.home and (residency.first == 0 or residency.stop > count)
        },
        size_bytes=placed.size_bytes,
        next_batch=next_batch_room(step.graph, plan, batch_tensors(step.graph, INPUTS), region_bytes, kept),
    )


def _scripts(step: CapturedStep, plan: Plan) -> tuple[AllocationScript | None, ...]:
    """Return each operator's script in the plan's order, or None if its allocations are unknown.

    The script of a whole update does not describe a part of the update, unless the script is empty.
    """
    scripts = []
    for execution in plan.executions or captured_order(step.graph):
        script = step.scripts.get(step.graph.operators[execution.operator].signature)
        known = script is not None and script.steady and (execution.parts == 1 or not script.allocations)
        scripts.append(script if known else None)
    return tuple(scripts)


class _AddressLookup:
    """Looks up the address of each allocation."""

    def __init__(
        self,
        step: CapturedStep,
        plan: Plan,
        graph: StepGraph,
        timeline: Timeline,
        residencies: Sequence[Interval],
        offsets: Sequence[int],
        joint: Collection[int],
    ) -> None:
        self._step = step
        self._joint = joint
        self._executions = plan.executions or captured_order(step.graph)
        self._graph = graph
        self._timeline = timeline
        self._scripts = tuple(
            script.with_first_result() if script is not None and k in joint else script
            for k, script in enumerate(_scripts(step, plan))
        )
        self._offset = {
            (residency.tensor, residency.first): offset
            for residency, offset in zip(residencies, offsets, strict=True)
        }

    def allocations_at(self, k: int) -> tuple[_Named, ...]:
        """Return the tensors swapped in at boundary k, then the allocations of what runs there."""
        runs = self._running(k)
        script = None if runs is None else self._scripts[runs]
        made = () if runs is None or script is None else self._operator_allocations(k, runs, script)
        return (*self.returning(k), *made)

    def _running(self, k: int) -> int | None:
        """Return the position whose operator runs at position k; None if nothing runs there."""
        return k - 1 if k - 1 in self._joint else None if k in self._joint else k

    def room(self, k: int) -> Placed:
        """Return the part of operator k's workspace that lies behind the listed scratch of what runs there."""
        runs, workspace = self._running(k), self._offset.get((None, OpIndex(k)))
        script = None if runs is None else self._scripts[runs]
        if script is None or workspace is None:
            return 0, 0
        room_bytes = self._graph.operators[k].workspace_bytes
        scratch, _ = script.packed
        ends = (offset + script.allocations[index].size_bytes for index, offset in scratch.items())
        listed_bytes = max((end for end in ends if end <= room_bytes), default=0)
        start = -(-listed_bytes // GPU_ALIGNMENT_BYTES) * GPU_ALIGNMENT_BYTES
        return (room_bytes - start, workspace + start) if start < room_bytes else (0, 0)

    def unlisted_bytes(self, k: int) -> int:
        """Return the planned bytes of an operator without a script: its workspace and the outputs that it makes."""
        runs = self._running(k)
        if runs is None or self._scripts[runs] is not None:
            return 0
        operators = [self._graph.operators[position] for position in range(runs, k + 1)]
        made = {
            t
            for position, operator in enumerate(operators, runs)
            for t in operator.writes
            if (t, OpIndex(position)) in self._offset and t not in operator.reads
        }
        return operators[-1].workspace_bytes + sum(self._graph.tensors[t].size_bytes for t in made)

    def returning(self, k: int) -> Iterator[_Named]:
        """Return the tensors swapped in at boundary k."""
        for gap in self._timeline.boundaries[k].ins:
            tensor = self._graph.tensors[gap.tensor]
            yield tensor.size_bytes, self._offset[gap.tensor, OpIndex(k % len(self._graph.operators))], tensor.name

    def _operator_allocations(self, k: int, runs: int, script: AllocationScript) -> Iterator[_Named]:
        """Yield the allocations at position k, where the operator of position `runs` runs."""
        scratch, _ = script.packed
        lodged = script.lodged
        workspace = self._offset.get((None, OpIndex(k)))
        room_bytes = self._graph.operators[k].workspace_bytes
        for index, allocation in enumerate(script.allocations):
            if index in scratch:
                if workspace is not None and scratch[index] + allocation.size_bytes <= room_bytes:
                    yield (
                        allocation.size_bytes,
                        workspace + scratch[index],
                        f"scratch of {self._graph.operators[k].name}",
                    )
                continue
            host = script.allocations[lodged.get(index, index)]
            tensor, made_at = (None, k) if host.result is None else self._result(k, runs, host.result)
            offset = None if tensor is None else self._offset.get((tensor, OpIndex(made_at)))
            if tensor is not None and offset is not None:
                yield allocation.size_bytes, offset, self._graph.tensors[tensor].name

    def _result(self, k: int, runs: int, result: int) -> tuple[TensorId | None, int]:
        """Return the tensor of a result, and the position from which on the plan has memory for it.

        The first result of an operator that runs in place of the next one is that operator's result.
        """
        made_at = k if result == 0 else runs
        operator = self._executions[made_at].operator
        name = self._step.steps[operator].kernel.results[result]
        captured = self._step.graph.operators[operator].writes
        written = dict(zip(captured, self._graph.operators[made_at].writes, strict=True))
        tensor = None if name is None else self._step.tensor_of.get(self._step.values[name].storage)
        return None if tensor is None else written[tensor], made_at
