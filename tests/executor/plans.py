"""Random plans that follow the rules of `scheduler/plan.py`, for any graph."""

import random
from itertools import pairwise

from indb_tensile.scheduler.graph import OpIndex, StepGraph, Tensor
from indb_tensile.scheduler.plan import Plan, Swap


def random_plan(graph: StepGraph, seed: int, share: float = 0.5) -> Plan:
    """Swap about `share` of all gaps at random boundaries; copies are left out where that is right."""
    choose = random.Random(seed)
    accesses: dict[int, list[int]] = {tensor.id: [] for tensor in graph.tensors}
    for k, operator in enumerate(graph.operators):
        for tensor_id in {*operator.reads, *operator.writes}:
            accesses[tensor_id].append(k)
    swaps: list[Swap] = []
    for tensor in graph.tensors:
        swaps += _swaps_of(graph, tensor, accesses[tensor.id], choose, share)
    idle = [t.id for t in graph.tensors if t.persistent and not accesses[t.id]]
    away = frozenset(t for t in idle if choose.random() < share)
    return Plan(policy="random", swaps=tuple(swaps), release=choose.random() < 0.8, away=away)


def _swaps_of(graph: StepGraph, tensor: Tensor, at: list[int], choose: random.Random, share: float) -> list[Swap]:
    count = len(graph.operators)
    gaps = list(pairwise(at))
    if tensor.persistent and at:
        gaps.append((at[-1], at[0] + count))
    taken = []
    for first, last in gaps:
        # Away for at least one operator: first < free_at < in_at <= last.
        if last - first >= 2 and choose.random() < share:
            free_at = choose.randint(first + 1, last - 1)
            taken.append((first, free_at, choose.randint(free_at + 1, last), last))
    written = [k for k in at if tensor.id in graph.operators[k].writes]
    swaps = []
    for index, (first, free_at, in_at, last) in enumerate(taken):
        fresh = _fresh(taken, index, written, count, persistent=tensor.persistent)
        swaps.append(
            Swap(
                tensor=tensor.id,
                out_after=OpIndex(first),
                free_at=OpIndex(free_at % count),
                in_at=OpIndex(in_at % count),
                needed_by=OpIndex(last % count),
                copies=not fresh or choose.random() < 0.3,
            )
        )
    return swaps


def _fresh(
    taken: list[tuple[int, int, int, int]], index: int, written: list[int], count: int, *, persistent: bool
) -> bool:
    """The host copy of the swap before this one still holds what is on the device."""
    first = taken[index][0]
    if index > 0:
        since = taken[index - 1][0]
    elif persistent:
        since = taken[-1][0] - count
    else:
        return False
    return not any(since < k + wrap <= first for k in written for wrap in (0, -count))
