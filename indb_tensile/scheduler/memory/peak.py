"""Compute how many bytes one graph under one plan occupies on the device at each operator: TENSILE Algorithm 1.

The paper walks the tensor access sequence in time and counts a swap-in when it ends. Here residency begins and ends
at boundaries that the plan names. The load therefore depends on graph and plan alone and is the same on every run. A
swap is two range additions to the load, so a planner need not walk the sequence again.
"""

from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np

from indb_tensile.scheduler.graph import OpIndex, StepGraph, TensorId
from indb_tensile.scheduler.plan import Plan, Swap
from indb_tensile.scheduler.plan_cache import CachedKind, PlanCache, cached
from indb_tensile.scheduler.rewrite import effective

_PEAKS: CachedKind[int] = CachedKind(name="peaks of plans", most=16)
_BARS: CachedKind[int] = CachedKind(name="baselines and floors", most=32)
VANILLA = Plan(policy="vanilla", release=False)
LIVENESS = Plan(policy="liveness")


def load(graph: StepGraph, plan: Plan, cache: PlanCache | None = None) -> tuple[int, ...]:
    """Return the bytes on the device while each operator runs: resident tensors and the operator's workspace."""
    return plan_load(graph, plan, cache).by_operator()


def peak(graph: StepGraph, plan: Plan, cache: PlanCache | None = None) -> int:
    """Return the most bytes on the device in an iteration of this plan."""
    return cached(cache, _PEAKS, graph, (plan,), lambda: plan_load(graph, plan, cache).maximum())


def vanilla_peak(graph: StepGraph, cache: PlanCache | None = None) -> int:
    """Return the peak if nothing is freed within the iteration: the papers' baseline."""
    return cached(cache, _BARS, graph, ("vanilla",), lambda: peak(graph, VANILLA, cache))


def liveness_peak(graph: StepGraph, cache: PlanCache | None = None) -> int:
    """Return the peak if a tensor is freed after its last access, as eager PyTorch does: the baseline that a plan has
    to beat.
    """
    return cached(cache, _BARS, graph, ("liveness",), lambda: peak(graph, LIVENESS, cache))


def floor(graph: StepGraph, cache: PlanCache | None = None) -> int:
    """Return the most that any operator needs on the device: its working set, and the exchanges under way.

    No plan in this order of the operators has a lower peak. The tensors of an exchange stay where they are until it
    is waited for, so operators in between need room beside them.
    """
    return cached(cache, _BARS, graph, ("floor",), lambda: _floor(graph))


def _floor(graph: StepGraph) -> int:
    most_bytes = 0
    under_way: dict[int, frozenset[TensorId]] = {}
    for operator, own_bytes in zip(graph.operators, working_sets(graph), strict=True):
        held = frozenset().union(*under_way.values()) - operator.tensors
        most_bytes = max(most_bytes, own_bytes + sum(graph.tensors[tensor].size_bytes for tensor in held))
        if operator.starts is not None:
            under_way[operator.starts] = operator.tensors
        if operator.awaits is not None:
            under_way.pop(operator.awaits)
    return most_bytes


def working_sets(graph: StepGraph) -> tuple[int, ...]:
    """Return the bytes that each operator itself needs on the device: its tensors and its workspace."""
    return tuple(
        op.workspace_bytes + sum(graph.tensors[t].size_bytes for t in {*op.reads, *op.writes})
        for op in graph.operators
    )


def resident_at_start(graph: StepGraph, plan: Plan, cache: PlanCache | None = None) -> frozenset[TensorId]:
    """Return the persistent tensors that are on the device while operator 0 runs: the home state between iterations.

    A trainer that adopts the plan first brings the device to this state. The trainer then starts at operator 0 as if
    the moves of boundary 0 were already done.
    """
    graph = effective(graph, plan, cache)
    count = len(graph.operators)
    gone = {swap.tensor for swap in plan.swaps if _away(swap, count).covers(0, count)}
    return frozenset(t.id for t in graph.tensors if t.persistent and t.id not in plan.away and t.id not in gone)


def leaving_at_start(graph: StepGraph, plan: Plan, cache: PlanCache | None = None) -> tuple[Swap, ...]:
    """Return the swaps whose copy to the host is under way when operator 0 starts.

    An iteration that starts from the home state has to queue these copies first.
    """
    count = len(effective(graph, plan, cache).operators)
    return tuple(s for s in plan.swaps if s.copies and _Range(s.out_after + 1, free_index(s, count)).covers(0, count))


# --- tensor accesses -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """The interval between two neighbouring accesses of a tensor, with at least one operator in between.

    `needed_by` is not greater than `out_after` if the gap crosses the end of the iteration.
    """

    tensor: TensorId
    out_after: OpIndex
    needed_by: OpIndex


def accesses(graph: StepGraph) -> tuple[tuple[OpIndex, ...], ...]:
    """Return for each tensor the operators that read or write it, in order."""
    operators: list[list[OpIndex]] = [[] for _ in graph.tensors]
    for index, operator in enumerate(graph.operators):
        for tensor in {*operator.reads, *operator.writes}:
            operators[tensor].append(OpIndex(index))
    return tuple(tuple(ops) for ops in operators)


def gaps(graph: StepGraph) -> tuple[Gap, ...]:
    """Return every gap of every tensor, sorted by tensor and time. Gaps of persistent tensors are cyclic.

    While an exchange is under way, its tensors have no gaps: they stay where they are.
    """
    count = len(graph.operators)
    stays = staying(graph)
    all_gaps = []
    for tensor, ops in zip(graph.tensors, accesses(graph), strict=True):
        pairs = list(pairwise(ops))
        if tensor.persistent and ops:
            pairs.append((ops[-1], ops[0]))
        for first, last in pairs:
            if (last - first - 1) % count and (tensor.id, first) not in stays:
                all_gaps.append(Gap(tensor=tensor.id, out_after=first, needed_by=last))
    return tuple(all_gaps)


def staying(graph: StepGraph) -> frozenset[tuple[TensorId, OpIndex]]:
    """Return the accesses after which a tensor stays where it is until the next one, because of an exchange."""
    under_way: dict[int, frozenset[TensorId]] = {}
    held = []
    for index, operator in enumerate(graph.operators):
        if operator.starts is not None:
            under_way[operator.starts] = operator.tensors
        if operator.awaits is not None:
            under_way.pop(operator.awaits)
        if under_way:
            accessed = operator.tensors
            held += [(tensor, OpIndex(index)) for own in under_way.values() for tensor in own & accessed]
    return frozenset(held)


# --- positions in unrolled time --------------------------------------------------------------------------------


def unrolled(position: int, after: int, count: int) -> int:
    """Return the first index greater than `after` that is `position` modulo the number of operators."""
    return after + 1 + (position - after - 1) % count


def free_index(swap: Swap, count: int) -> int:
    """Return `free_at` counted on from `out_after`, so that it may pass the end of the iteration."""
    return unrolled(swap.free_at, swap.out_after, count)


def in_index(swap: Swap, count: int) -> int:
    """Return `in_at` counted on from `out_after`."""
    return unrolled(swap.in_at, swap.out_after, count)


def need_index(swap: Swap | Gap, count: int) -> int:
    """Return `needed_by` counted on from `out_after`."""
    return unrolled(swap.needed_by, swap.out_after, count)


@dataclass(frozen=True, slots=True)
class _Range:
    first: int
    stop: int

    def covers(self, position: int, count: int) -> bool:
        return self.first <= unrolled(position, self.first - 1, count) < self.stop


def _away(swap: Swap, count: int) -> _Range:
    return _Range(free_index(swap, count), in_index(swap, count))


# --- the load --------------------------------------------------------------------------------------------------


class Load:
    """Bytes by operator, with cyclic range addition and maximum.

    The bytes are an array of machine integers. A query costs O(operators): microseconds at ten thousand operators. A
    segment tree could replace the array behind the same methods.
    """

    def __init__(self, base: tuple[int, ...]) -> None:
        self._bytes = np.array(base, dtype=np.int64)

    def copy(self) -> "Load":
        """Return an independent copy."""
        duplicate = Load(())
        duplicate._bytes = self._bytes.copy()
        return duplicate

    def add(self, first: int, stop: int, delta: int) -> None:
        """Add `delta` at operators first .. stop - 1. Both may pass the end, by less than one iteration together."""
        for part in _parts(first, stop, len(self._bytes)):
            self._bytes[part] += delta

    def maximum(self) -> int:
        """Return the peak."""
        return int(self._bytes.max())

    def argmax(self) -> int:
        """Return the first operator at the peak."""
        return int(self._bytes.argmax())

    def at(self, operator: int) -> int:
        """Return the bytes while this operator runs."""
        return int(self._bytes[operator])

    def maximum_of(self, first: int, stop: int) -> int:
        """Return the most bytes at operators first .. stop - 1; 0 for an empty range."""
        return max((int(self._bytes[part].max()) for part in _parts(first, stop, len(self._bytes))), default=0)

    def by_operator(self) -> tuple[int, ...]:
        """Return the bytes of all operators."""
        return tuple(self._bytes.tolist())


def _parts(first: int, stop: int, count: int) -> list[slice]:
    """Return the operators first .. stop - 1 as one slice of an iteration, or as two if the range passes the end."""
    if stop <= first:
        return []
    first, stop = first % count, first % count + (stop - first)
    if stop <= count:
        return [slice(first, stop)]
    return [slice(first, count), slice(0, stop - count)]


def _ends(graph: StepGraph) -> tuple[dict[TensorId, int], dict[TensorId, int]]:
    """Return the first and the last operator that accesses each tensor. Tensors without accesses are left out."""
    first: dict[TensorId, int] = {}
    last: dict[TensorId, int] = {}
    for index, operator in enumerate(graph.operators):
        for tensor in (*operator.reads, *operator.writes):
            first.setdefault(tensor, index)
            last[tensor] = index
    return first, last


def plan_load(graph: StepGraph, plan: Plan, cache: PlanCache | None = None) -> Load:
    """Return the load of this plan as an object that can be changed further."""
    graph = effective(graph, plan, cache)
    count = len(graph.operators)
    change = [0] * (count + 1)
    first, last = _ends(graph)
    for tensor in graph.tensors:
        if tensor.persistent and tensor.id not in plan.away:
            change[0] += tensor.size_bytes
        elif not tensor.persistent and tensor.id in first:
            change[first[tensor.id]] += tensor.size_bytes
            change[last[tensor.id] + 1 if plan.release else count] -= tensor.size_bytes
    for swap in plan.swaps:
        size_bytes = graph.tensors[swap.tensor].size_bytes
        for part in _parts(_away(swap, count).first, _away(swap, count).stop, count):
            change[part.start] -= size_bytes
            change[part.stop] += size_bytes
    tensor_bytes = accumulate(change[:-1])
    return Load(
        tuple(op.workspace_bytes + size_bytes for op, size_bytes in zip(graph.operators, tensor_bytes, strict=True))
    )
