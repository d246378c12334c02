"""Reorder updates: parameters beside their gradients, large updates in parts, running statistics later where needed.

In the captured order all updates come last, and every gradient lives until then. An update may run as soon as its
gradient exists and no operator reads the old parameter any more. Gradients then live for a short time only. The
optimizer state is needed at moments spread over the backward pass, which also spreads its swaps. If gradients are
clipped by their common norm, each update needs all of them, and nothing moves. An update in parts needs only one part
of its state at a time, which lowers the floor itself.

While a large update runs, its state has to be on the device. Most of the state is copied in shortly before, and
beside its gradient an update often runs at the peak. If the update runs later in the backward pass, its state stays
on the host during the peak, and its gradient on the device. `delayed` makes such orders, and simulation decides.

A batch normalisation reads the running statistics that it then updates. Once they are updated, the batch
normalisation cannot run again. If the update runs at the end of the iteration, the batch normalisation can run again
at any time before. But an update at the end does not run in the forward pass, where copies to the host need the time:
in DenseNet-121 such updates are a tenth of the forward pass. Only updates that would prevent a plan's recomputation
are therefore put off, and these follow from the plan.
"""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

from indb_tensile.scheduler.graph import OpIndex, Role, Stage, StepGraph, TensorId
from indb_tensile.scheduler.plan import Execution
from indb_tensile.scheduler.plan_cache import CachedKind, PlanCache, cached
from indb_tensile.scheduler.rewrite import captured_order, own_state

# Bytes of state in one part. Parts of this size run so long that the launch of one more kernel adds little time.
# Smaller parts lower the floor further and cost more launches.
_PART_BYTES = 32 * 1024 * 1024
# The most parts of one update: bounds the operators that splitting adds. Fewer parts raise the floor of huge updates.
_MOST_PARTS = 64
# One entry for each graph, because a search asks for several orders of each graph.
_BESIDE: CachedKind[tuple[OpIndex, ...]] = CachedKind(name="updates beside gradients", most=8)
_DEFERRABLE: CachedKind[frozenset[OpIndex]] = CachedKind(name="deferrable updates", most=8)


def rearranged(
    graph: StepGraph, last: frozenset[OpIndex] | None = None, *, cache: PlanCache | None = None
) -> tuple[OpIndex, ...]:
    """Return every operator once: parameter updates beside their gradients, and the updates `last` at the end.

    Without `last`, all deferrable updates come at the end.
    """
    last = deferrable(graph, cache) if last is None else last
    return (*(k for k in updates_beside_gradients(graph, cache) if k not in last), *sorted(last))


def updates_beside_gradients(graph: StepGraph, cache: PlanCache | None = None) -> tuple[OpIndex, ...]:
    """Return every operator once. Optimizer operators run as early as the tensors that they read and
    overwrite allow.
    """
    return cached(cache, _BESIDE, graph, (), lambda: _updates_beside_gradients(graph))


def _updates_beside_gradients(graph: StepGraph) -> tuple[OpIndex, ...]:
    anchor = _anchors(graph)
    following: dict[int, list[int]] = {}
    for index, after in enumerate(anchor):
        if after != index:
            following.setdefault(after, []).append(index)
    order: list[OpIndex] = []
    stack = [k for k in reversed(range(len(anchor))) if anchor[k] == k]
    stack += reversed(following.get(-1, []))
    while stack:
        index = stack.pop()
        order.append(OpIndex(index))
        stack += reversed(following.get(index, []))
    return tuple(order)


def with_parts(graph: StepGraph, order: tuple[OpIndex, ...], cache: PlanCache | None = None) -> tuple[Execution, ...]:
    """Return the same order with every large update in parts."""
    parts = _parts(graph, cache)
    whole = captured_order(graph, cache)
    return tuple(run for index in order for run in parts.get(index, (whole[index],)))


def delayed(
    graph: StepGraph, order: tuple[OpIndex, ...], update: OpIndex, share: float, latency_ns: Sequence[int]
) -> tuple[OpIndex, ...]:
    """Return the same order with this update later: by this share of the time from its place to the last operator
    that is not the optimizer's.

    Return the order unchanged if an operator in between accesses a tensor that the update writes, or writes a tensor
    that the update reads.
    """
    start = order.index(update) + 1
    later = order[start:]
    others = [at for at, k in enumerate(later) if graph.operators[k].stage is not Stage.OPTIMIZER]
    passed = later[: others[-1] + 1] if others else ()
    until_ns = list(accumulate(latency_ns[k] for k in passed))
    place = bisect_left(until_ns, share * until_ns[-1]) + 1 if passed else 0
    reads, writes = set(graph.operators[update].reads), set(graph.operators[update].writes)
    for k in later[:place]:
        operator = graph.operators[k]
        if not (writes.isdisjoint(operator.reads) and (reads | writes).isdisjoint(operator.writes)):
            return order
    return (*order[: start - 1], *later[:place], update, *later[place:])


def _parts(graph: StepGraph, cache: PlanCache | None) -> dict[OpIndex, tuple[Execution, ...]]:
    """Return the executions of each update that is large enough to be split."""
    parts_of = {}
    for index, state in own_state(graph, cache).items():
        state_bytes = sum(graph.tensors[t].size_bytes for t in state)
        if state_bytes > _PART_BYTES:
            parts = min(_MOST_PARTS, -(-state_bytes // _PART_BYTES))
            parts_of[index] = tuple(Execution(operator=index, part=part, parts=parts) for part in range(parts))
    return parts_of


def deferrable(graph: StepGraph, cache: PlanCache | None = None) -> frozenset[OpIndex]:
    """Return the updates that may wait for the end of the iteration: they write only buffers that no operator
    accesses afterwards, and read only tensors that no operator changes afterwards.

    None of these updates accesses a tensor that another of them writes, so any of them may wait.
    """
    return cached(cache, _DEFERRABLE, graph, (), lambda: _deferrable(graph))


def _deferrable(graph: StepGraph) -> frozenset[OpIndex]:
    accessed: set[int] = set()
    written: set[int] = set()
    updates = []
    for index in reversed(range(len(graph.operators))):
        operator = graph.operators[index]
        buffers = operator.writes and all(graph.tensors[t].role is Role.BUFFER for t in operator.writes)
        if buffers and accessed.isdisjoint(operator.writes) and written.isdisjoint(operator.reads):
            updates.append(OpIndex(index))
        accessed.update(operator.reads, operator.writes)
        written.update(operator.writes)
    return frozenset(updates)


def blocking_updates(
    graph: StepGraph, executions: Sequence[Execution], cache: PlanCache | None = None
) -> frozenset[OpIndex]:
    """Return those deferrable updates that have to wait for the end: they change tensors that an operator reads again
    when it is recomputed in this order.
    """
    ran: set[tuple[OpIndex, int]] = set()
    read: set[TensorId] = set()
    for execution in executions:
        if (execution.operator, execution.part) in ran:
            read.update(graph.operators[execution.operator].reads)
        ran.add((execution.operator, execution.part))
    return frozenset(k for k in deferrable(graph, cache) if not read.isdisjoint(graph.operators[k].writes))


def _anchors(graph: StepGraph) -> list[int]:
    """Return by operator of the optimizer the operator after which it may run; -1 if it may run first. Other
    operators map to themselves.
    """
    anchors: list[int] = []
    written: dict[int, int] = {}  # the latest writer of each tensor
    # the latest writer of each tensor and every later reader; any of them may be the last in the new order
    since: dict[int, list[int]] = {}
    for index, operator in enumerate(graph.operators):
        after = index
        if operator.stage is Stage.OPTIMIZER:
            needs = [written.get(t, -1) for t in operator.reads]
            needs += [k for t in operator.writes for k in since.get(t, ())]
            after = _latest(needs, anchors)
        anchors.append(after)
        for tensor in operator.reads:
            since.setdefault(tensor, []).append(index)
        written.update(dict.fromkeys(operator.writes, index))
        since.update({tensor: [index] for tensor in operator.writes})
    return anchors


def _latest(needs: list[int], anchors: list[int]) -> int:
    """Return which of these operators runs last in the new order, judged by the chains of operators before them."""

    def path(index: int) -> tuple[int, ...]:
        chain = [index]
        while chain[-1] >= 0 and anchors[chain[-1]] != chain[-1]:
            chain.append(anchors[chain[-1]])
        return tuple(reversed(chain))

    return max(needs, key=path, default=-1)
