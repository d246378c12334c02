"""Random plans for any graph, under the rules of `scheduler/plan.py` and `scheduler/rewrite.py`."""

import random
from dataclasses import replace
from itertools import pairwise

from indb_tensile.executor.capture.step_capture import CapturedStep
from indb_tensile.scheduler.graph import OpIndex, StepGraph, Tensor
from indb_tensile.scheduler.plan import Execution, Plan, Swap
from indb_tensile.scheduler.rewrite import repeatable, rewrite


def random_plan(graph: StepGraph, seed: int, share: float = 0.5) -> Plan:
    """Swap about `share` of all gaps at random boundaries. Leave a copy out where the host copy is still valid."""
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


def random_plans(steps: tuple[CapturedStep, ...], seed: int) -> tuple[Plan, ...]:
    """Return a random plan for each step of a job."""
    return tuple(random_plan(step.graph, seed * 10 + k) for k, step in enumerate(steps))


def random_rewritten_plan(graph: StepGraph, seed: int, share: float = 0.5) -> Plan:
    """Reorder operators, repeat some, run updates in parts, and swap in the graph that results."""
    executions = random_executions(graph, seed)
    return replace(random_plan(rewrite(graph, executions).graph, seed, share), executions=executions)


def random_executions(graph: StepGraph, seed: int, again: float = 0.3, sooner: float = 0.3) -> tuple[Execution, ...]:
    """Run each operator as soon as possible or later, some of them repeatedly, updates whole or in up to 7 parts.

    After each execution an operator is repeated with probability `again`, if its inputs and outputs are unchanged.
    """
    choose = random.Random(seed)
    waits_for = _predecessors(graph)
    may_repeat = repeatable(graph)
    version: dict[int, int] = {}
    inputs: dict[int, dict[int, int | None]] = {}  # the versions that each operator read in its first execution
    order: list[Execution] = []
    while len(inputs) < len(graph.operators):
        ready = [k for k in range(len(graph.operators)) if k not in inputs and waits_for[k] <= inputs.keys()]
        k = choose.choice(ready) if choose.random() < sooner else ready[0]
        operator = graph.operators[k]
        inputs[k] = {t: version.get(t) for t in operator.reads}
        version.update(dict.fromkeys(operator.writes, k))
        parts = choose.choice((1, 2, 3, 7)) if operator.splittable else 1
        order += [Execution(operator=OpIndex(k), part=part, parts=parts) for part in range(parts)]
        if choose.random() < again:
            same = [
                o
                for o, versions in inputs.items()
                if may_repeat[o]
                and all(version.get(t) == v for t, v in versions.items())
                and all(version[t] == o for t in graph.operators[o].writes)
            ]
            order += [Execution(operator=OpIndex(choose.choice(same)))] if same else []
    return tuple(order)


def _predecessors(graph: StepGraph) -> list[set[int]]:
    """Return the predecessors of each operator.

    These are the writers of its inputs, the readers of the tensors that it overwrites, and earlier random operators.
    """
    predecessors: list[set[int]] = []
    writer: dict[int, int] = {}
    readers: dict[int, set[int]] = {}
    drew: set[int] = set()
    for k, operator in enumerate(graph.operators):
        needs = {writer[t] for t in (*operator.reads, *operator.writes) if t in writer}
        needs.update(*(readers.get(t, set()) for t in operator.writes), drew if operator.random else ())
        predecessors.append(needs - {k})
        for tensor in operator.reads:
            readers.setdefault(tensor, set()).add(k)
        for tensor in operator.writes:
            writer[tensor], readers[tensor] = k, set()
        drew = {k} if operator.random else drew
    return predecessors


def _swaps_of(graph: StepGraph, tensor: Tensor, at: list[int], choose: random.Random, share: float) -> list[Swap]:
    count = len(graph.operators)
    gaps = [(first, last) for first, last in pairwise(at) if not _in_exchange(graph, tensor, first, last)]
    if tensor.persistent and at:
        gaps.append((at[-1], at[0] + count))
    taken = []
    for first, last in gaps:
        # The tensor is away for at least one operator: first < free_at < in_at <= last.
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


def _in_exchange(graph: StepGraph, tensor: Tensor, first: int, last: int) -> bool:
    """Return whether an exchange with other devices uses the tensor between these two operators."""
    starts = {op.starts: k for k, op in enumerate(graph.operators) if op.starts is not None}
    ends = {op.awaits: k for k, op in enumerate(graph.operators) if op.awaits is not None}
    return any(
        begin <= first and last <= ends[number] and tensor.id in graph.operators[begin].writes
        for number, begin in starts.items()
    )


def _fresh(
    taken: list[tuple[int, int, int, int]], index: int, written: list[int], count: int, *, persistent: bool
) -> bool:
    """Tell whether the host copy of the previous swap still equals the tensor on the device."""
    first = taken[index][0]
    if index > 0:
        since = taken[index - 1][0]
    elif persistent:
        since = taken[-1][0] - count
    else:
        return False
    return not any(since < k + wrap <= first for k in written for wrap in (0, -count))
