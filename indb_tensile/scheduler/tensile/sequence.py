"""Tensor access sequences: when each tensor of a step is generated and used, as TENSILE section III takes a tensor.

The paper's tensor has one value: generated once (its tensor generating access), then only used, and an updated
parameter is another tensor at the same address (section IV-B, point 2). Our tensor is a storage, which may be written
again and again. So a storage has one sequence for each of its values: from the write that generates it through the
uses up to the write that replaces it, which uses it still. What the previous iteration left, of a tensor that
persists, starts with its first use.

The value that an iteration leaves in a tensor which it updates is the paper's *updated parameter* (Algorithm 2, lines
8-9 and 33): it is used next in the following iteration, so its sequence is the gap across the iterations. The paper
has it for parameters and the optimizer's interim results; here it is whatever persists and is written. What persists
and is never written, a frozen parameter say, has no such gap in the paper: it stays while the iterations change.
"""

from dataclasses import dataclass
from itertools import pairwise

from indb_tensile.scheduler.graph import OpIndex, StepGraph, TensorId
from indb_tensile.scheduler.memory.peak import accesses


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessSequence:
    """One value of one storage: the operators that generate and use it, in order.

    Of an `updated` one the two accesses around the end of the iteration, the second counted on past the end. Empty
    for what persists and is not accessed in this graph at all.
    """

    tensor: TensorId
    accesses: tuple[OpIndex, ...]
    updated: bool = False


def sequences(graph: StepGraph) -> tuple[AccessSequence, ...]:
    """Every sequence in which a tensor could leave the device, by tensor and time."""
    written = writers(graph)
    found = []
    for tensor, ops in zip(graph.tensors, accesses(graph), strict=True):
        if not ops:
            found += [AccessSequence(tensor=tensor.id, accesses=())] * tensor.persistent
            continue
        cuts = [0, *(ops.index(k) for k in written[tensor.id] if k != ops[0]), len(ops) - 1]
        for first, last in pairwise(cuts):
            if first < last:
                found.append(AccessSequence(tensor=tensor.id, accesses=ops[first : last + 1]))
        if tensor.persistent and written[tensor.id]:
            around = (ops[-1], OpIndex(ops[0] + len(graph.operators)))
            found.append(AccessSequence(tensor=tensor.id, accesses=around, updated=True))
    return tuple(found)


def writers(graph: StepGraph) -> tuple[tuple[OpIndex, ...], ...]:
    """For each tensor the operators that write it, in order."""
    found: list[list[OpIndex]] = [[] for _ in graph.tensors]
    for index, operator in enumerate(graph.operators):
        for tensor in {*operator.writes}:
            found[tensor].append(OpIndex(index))
    return tuple(tuple(ops) for ops in found)
