"""Decide where in an iteration there is room for the next batch beside the present one.

At the end of an iteration most memory of a plan is unused: the activations are gone. The next batch is uploaded there
while the last operators still compute. It stays until the next iteration's uploads have copied it to its planned
place, which takes a copy within the device instead of one over the link. This second buffer takes bytes that the plan
has and does not use at that time. The plan's peak, its placement and the job's grant therefore stay the same to the
byte, and no job that fits without the second buffer stops fitting. Where a plan has no room, the batch is uploaded
when the iteration begins, unless the job is lent memory beside its plan (admission/batch_loans.py). The copy can then
begin as soon as the iteration has taken its own batch.

The buffer has room *from* a boundary on: at every operator from there to the end of the iteration, and at those that
take the batch, its bytes and the plan's load together are at most the plan's peak. The copy is queued behind the
plan's own copies to the device, which it must not delay, so the boundary also follows the last of these. The earliest
such boundary is the best, because the copy then has the most time.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from indb_tensile.scheduler.graph import Stage, StepGraph, TensorId
from indb_tensile.scheduler.memory.peak import in_index, load
from indb_tensile.scheduler.memory.residency import intervals
from indb_tensile.scheduler.memory.tensor_placement import ALIGNMENT_BYTES, place_plan
from indb_tensile.scheduler.plan import Plan
from indb_tensile.scheduler.plan_cache import PlanCache
from indb_tensile.scheduler.rewrite import effective

BATCH_NAMES: Final = ("x", "y")  # of the tensors that are uploaded ahead, in a graph of ours


@dataclass(frozen=True, slots=True, kw_only=True)
class NextBatchRoom:
    """Room for the next batch from boundary `first` to the end of the iteration, and while operators up to `last_use`
    of the next iteration run.

    `offset` is the buffer's place in the plan's block, and `size_bytes` its length there; the account counts
    `counted_bytes`. Boundary `n` of `n` operators closes the iteration.
    """

    first: int
    last_use: int
    offset: int
    size_bytes: int
    counted_bytes: int


def batch_tensors(graph: StepGraph, names: Sequence[str]) -> tuple[TensorId, ...]:
    """Return the tensors of these names that an upload writes, in the order of the names."""
    by_name = {tensor.name: tensor.id for tensor in graph.tensors}
    return tuple(by_name[name] for name in names if name in by_name)


def buffer_bytes(graph: StepGraph, batch: Sequence[TensorId]) -> int:
    """Return the bytes that a batch takes in its buffer."""
    return sum(aligned_bytes(graph.tensors[tensor].size_bytes) for tensor in batch)


def aligned_bytes(size_bytes: int) -> int:
    """Return the bytes that a part of the batch takes in the buffer."""
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def room_by_load(
    graph: StepGraph, plan: Plan, batch: Sequence[TensorId], cache: PlanCache | None = None
) -> tuple[int, int] | None:
    """Return the first boundary and the last operator of the room that the plan's loads leave; None without room."""
    if not batch:
        return None
    loads = load(graph, plan, cache)
    count, most_bytes = len(loads), max(loads) - sum(graph.tensors[t].size_bytes for t in batch)
    last_use = _last_use(graph, plan, batch, cache)
    if max(loads[: last_use + 1]) > most_bytes:
        return None
    earliest = _earliest(plan, last_use, count)
    first = count
    while first > earliest and loads[first - 1] <= most_bytes:
        first -= 1
    return first, last_use


def uploads_ahead_from(
    graph: StepGraph, plan: Plan, batch: Sequence[TensorId], cache: PlanCache | None = None, *, beside: bool = False
) -> int | None:
    """Return the operator before which there first is room for the next batch: that of the plan's loads, or with
    `beside` memory beside the plan.

    None if there is none before the last operator has ended: the upload then begins with the next iteration.
    """
    if beside:
        return room_beside(graph, plan, batch, cache)
    bounds = room_by_load(graph, plan, batch, cache)
    return None if bounds is None or bounds[0] == len(effective(graph, plan, cache).operators) else bounds[0]


def room_beside(
    graph: StepGraph, plan: Plan, batch: Sequence[TensorId], cache: PlanCache | None = None
) -> int | None:
    """Return the first operator before which the next batch can be uploaded to memory beside the plan.

    None if it would have to wait for the plan's own copies until the iteration ends, or if nothing is uploaded.
    """
    count = len(effective(graph, plan, cache).operators)
    earliest = _earliest(plan, _last_use(graph, plan, batch, cache), count) if batch else count
    return earliest if earliest < count else None


def next_batch_room(
    graph: StepGraph,
    plan: Plan,
    batch: Sequence[TensorId],
    region_bytes: int,
    cache: PlanCache | None = None,
) -> NextBatchRoom | None:
    """Return the room for the next batch in the plan's block, or None if there is none at the end of an iteration."""
    bounds = room_by_load(graph, plan, batch, cache)
    if bounds is None:
        return None
    first, last_use = bounds
    sizes = [graph.tensors[t].size_bytes for t in batch]
    size_bytes = buffer_bytes(graph, batch)
    placed = place_plan(graph, plan, region_bytes=region_bytes, cache=cache)
    count = len(effective(graph, plan, cache).operators)
    taken = [
        (_last_moment(interval.first, interval.stop, last_use, count), offset, offset + interval.size_bytes)
        for interval, offset in zip(intervals(graph, plan, cache), placed.offsets, strict=True)
    ]

    def hole_from(boundary: int) -> int | None:
        return _hole([t for t in taken if t[0] >= boundary], size_bytes, placed.size_bytes)

    # The later the room begins, the fewer intervals are in its way.
    first = bisect_left(range(count), True, lo=first, key=lambda boundary: hole_from(boundary) is not None)
    offset = hole_from(first)
    if offset is None:
        return None
    return NextBatchRoom(
        first=first, last_use=last_use, offset=offset, size_bytes=size_bytes, counted_bytes=sum(sizes)
    )


def _last_use(graph: StepGraph, plan: Plan, batch: Sequence[TensorId], cache: PlanCache | None) -> int:
    """Return the last operator that uploads a part of the batch, or the number of operators if none does."""
    operators = effective(graph, plan, cache).operators
    uploads = [k for k, o in enumerate(operators) if o.stage is Stage.UPLOAD and not {*batch}.isdisjoint(o.writes)]
    return max(uploads, default=len(operators))


def _earliest(plan: Plan, last_use: int, count: int) -> int:
    """Return the first boundary after the batch was taken and the plan's own copies to the device were queued."""
    after_copies = max((_queued_at(in_index(swap, count), count) for swap in plan.swaps), default=0)
    return max(last_use + 1, after_copies)


def _queued_at(boundary: int, count: int) -> int:
    """Return the boundary of an iteration at which a copy is queued, from its boundary counted on."""
    return boundary if boundary <= count else boundary - count


def _last_moment(first: int, stop: int, last_use: int, count: int) -> int:
    """Return the last operator at which the interval is in the way of the next batch, or -1.

    An interval that lives while the batch is taken is in the way wherever the room begins: `count`.
    """
    if first <= last_use or stop > count:
        return count
    return stop - 1


def _hole(taken: Sequence[tuple[int, int, int]], size_bytes: int, block_bytes: int) -> int | None:
    """Return the lowest offset with so many bytes between the taken ranges of a block, or None."""
    end = 0
    for _, start, stop in sorted(taken, key=lambda t: t[1]):
        if start - end >= size_bytes:
            break
        end = max(end, -(-stop // ALIGNMENT_BYTES) * ALIGNMENT_BYTES)
    return end if block_bytes - end >= size_bytes else None
