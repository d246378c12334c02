"""Compute the intervals during which the tensors of a plan occupy memory.

tensor_placement.py assigns addresses to the intervals. SmartPool reads lifetimes from the memory requests of one
iteration (paper section III-A). Here they follow from graph and plan. A swap ends one interval and begins another,
which may have another address: the copy back goes to the new address. Persistent tensors have cyclic intervals. An
interval that crosses the iteration's end has one address before and after the end. A workspace is an interval of one
operator.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from indb_tensile.errors import InvariantError
from indb_tensile.scheduler.graph import OpIndex, StepGraph, Tensor, TensorId
from indb_tensile.scheduler.memory.peak import accesses, free_index, in_index
from indb_tensile.scheduler.plan import Plan, Swap
from indb_tensile.scheduler.plan_cache import PlanCache
from indb_tensile.scheduler.rewrite import effective


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Memory that is occupied without interruption, at operators first .. stop - 1.

    `stop` is counted on from `first`, so `stop` exceeds the number of operators if the interval crosses the
    iteration's end. `tensor` is None for the workspace of operator `first`.
    """

    tensor: TensorId | None
    first: OpIndex
    stop: int
    size_bytes: int

    def __post_init__(self) -> None:
        if self.size_bytes <= 0 or not 0 <= self.first < self.stop:
            raise InvariantError(f"residency interval is empty: {self}")


def intervals(graph: StepGraph, plan: Plan, cache: PlanCache | None = None) -> tuple[Interval, ...]:
    """Return every interval of this plan: tensors by id and time, then workspaces by operator.

    At every operator their sizes add up to the load of peak.py.
    """
    graph = effective(graph, plan, cache)
    swaps: dict[TensorId, list[Swap]] = {}
    for swap in plan.swaps:
        swaps.setdefault(swap.tensor, []).append(swap)
    residencies: list[Interval] = []
    count = len(graph.operators)
    for tensor, ops in zip(graph.tensors, accesses(graph), strict=True):
        moved = sorted(swaps.get(tensor.id, ()), key=lambda s: s.out_after)
        if tensor.persistent and tensor.id not in plan.away:
            residencies += _in_cycle(tensor, moved, count)
        elif not tensor.persistent and ops:
            residencies += _within(tensor, ops[0], ops[-1] + 1 if plan.release else count, moved, count)
    for index, operator in enumerate(graph.operators):
        if operator.workspace_bytes:
            residencies.append(
                Interval(tensor=None, first=OpIndex(index), stop=index + 1, size_bytes=operator.workspace_bytes)
            )
    return tuple(residencies)


def load_bound(residencies: Sequence[Interval], count: int) -> int:
    """Return the most bytes that the intervals occupy at one of `count` operators. No placement is smaller."""
    change = np.zeros(2 * count + 1, dtype=np.int64)
    sizes = np.array([i.size_bytes for i in residencies], dtype=np.int64)
    np.add.at(change, np.array([i.first for i in residencies], dtype=np.int64), sizes)
    np.subtract.at(change, np.array([i.stop for i in residencies], dtype=np.int64), sizes)
    load = np.cumsum(change)[: 2 * count].reshape(2, count).sum(axis=0)
    return int(load.max(initial=0))


def _in_cycle(tensor: Tensor, swaps: Sequence[Swap], count: int) -> Iterator[Interval]:
    """Yield the intervals of a persistent tensor: from each return to the next departure."""
    if not swaps:
        yield _interval(tensor, 0, count, count)
        return
    leaving = [free_index(swap, count) for swap in swaps]
    for swap, until in zip(swaps, (*leaving[1:], leaving[0] + count), strict=True):
        yield _interval(tensor, in_index(swap, count), until, count)


def _within(tensor: Tensor, first: int, stop: int, swaps: Sequence[Swap], count: int) -> Iterator[Interval]:
    """Yield the intervals of a tensor that lives within the iteration: its lifetime without the time that it is
    swapped out.
    """
    ends = [first, *(at for s in swaps for at in (free_index(s, count), in_index(s, count))), stop]
    for begin, end in list(pairwise(ends))[::2]:
        yield _interval(tensor, begin, end, count)


def _interval(tensor: Tensor, first: int, stop: int, count: int) -> Interval:
    start = first % count
    return Interval(tensor=tensor.id, first=OpIndex(start), stop=start + stop - first, size_bytes=tensor.size_bytes)
