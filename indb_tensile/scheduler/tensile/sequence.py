"""Tensor access sequences: when each tensor of a step is generated and used, with TENSILE's notion of a tensor
(section III).

The paper's tensor has one value. It is generated once (its tensor generating access) and then only used; an updated
parameter is another tensor at the same address (section IV-B, point 2). Our tensor is a storage, which may be written
repeatedly. A storage therefore has one sequence for each of its values: from the write that generates the value
through its uses up to the write that replaces it, which still uses it. The value of a persistent tensor from the
previous iteration has a sequence that starts with its first use.

The value that an iteration leaves in a tensor which it updates is the paper's *updated parameter* (Algorithm 2, lines
8-9 and 33). Its next use is in the following iteration, so its sequence is the gap across the iterations. The paper
has this for parameters and the optimizer's interim results; here it applies to every persistent tensor that is
written. A persistent tensor that is never written, for example a frozen parameter, has no such gap in the paper: it
stays on the device between iterations.
"""

from dataclasses import dataclass
from itertools import pairwise

from indb_tensile.scheduler.graph import OpIndex, StepGraph, TensorId
from indb_tensile.scheduler.memory.peak import accesses, staying


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessSequence:
    """One value of one storage: the operators that generate and use it, in order.

    If `updated`, the two accesses are those around the end of the iteration, the second counted on past the end.
    `accesses` is empty for a persistent tensor that this graph never accesses.
    """

    tensor: TensorId
    accesses: tuple[OpIndex, ...]
    updated: bool = False


def sequences(graph: StepGraph) -> tuple[AccessSequence, ...]:
    """Return every sequence in which a tensor could leave the device, by tensor and time."""
    written, stays = writers(graph), staying(graph)
    result = []
    for tensor, ops in zip(graph.tensors, accesses(graph), strict=True):
        if not ops:
            result += [AccessSequence(tensor=tensor.id, accesses=())] * tensor.persistent
            continue
        cuts = [0, *(ops.index(k) for k in written[tensor.id] if k != ops[0]), len(ops) - 1]
        for first, last in pairwise(cuts):
            if first < last and (tensor.id, ops[first]) not in stays:  # no exchange uses the tensor meanwhile
                result.append(AccessSequence(tensor=tensor.id, accesses=ops[first : last + 1]))
        if tensor.persistent and written[tensor.id]:
            around = (ops[-1], OpIndex(ops[0] + len(graph.operators)))
            result.append(AccessSequence(tensor=tensor.id, accesses=around, updated=True))
    return tuple(result)


def writers(graph: StepGraph) -> tuple[tuple[OpIndex, ...], ...]:
    """Return for each tensor the operators that write it, in order."""
    operators_of: list[list[OpIndex]] = [[] for _ in graph.tensors]
    for index, operator in enumerate(graph.operators):
        for tensor in {*operator.writes}:
            operators_of[tensor].append(OpIndex(index))
    return tuple(tuple(ops) for ops in operators_of)
