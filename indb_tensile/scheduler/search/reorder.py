"""Updates, rearranged: parameters beside their gradients, large ones in parts, running statistics where it pays.

As captured, all updates come last, and every gradient lives until then. An update may come as soon as its gradient
is there and nothing reads the old parameter any more: gradients then live shortly, and the optimizer's state is
needed at moments spread over the backward pass, which spreads its swaps. Where gradients are clipped by their
common norm each update needs all of them, and nothing moves. An update in parts needs only one part of its state at
a time, which lowers the floor itself.

A batch normalisation reads the running statistics that it then updates. Once they are updated it cannot run again;
updated at the end of the iteration, they are in nobody's way. But what runs at the end does not run in the forward
pass, where copies to the host need the time: in DenseNet-121 such updates are a tenth of it. So only those wait that
stand in the way of what a plan makes again, and which these are follows from the plan.
"""

from collections.abc import Sequence

from indb_tensile.scheduler.graph import OpIndex, Role, Stage, StepGraph, TensorId
from indb_tensile.scheduler.memo import Memo
from indb_tensile.scheduler.plan import Execution
from indb_tensile.scheduler.rewrite import captured_order, own_state

_PART_BYTES = 32 * 1024 * 1024  # of state in one part: long enough that starting one more kernel costs little
_MOST_PARTS = 64
_BESIDE: Memo[tuple[OpIndex, ...]] = Memo(8)  # of graphs: a search asks for several orders of each
_DEFERRABLE: Memo[frozenset[OpIndex]] = Memo(8)


def rearranged(graph: StepGraph, last: frozenset[OpIndex] | None = None) -> tuple[OpIndex, ...]:
    """Every operator once: updates of parameters beside their gradients, and these, or all that may, at the end."""
    last = deferrable(graph) if last is None else last
    return (*(k for k in updates_beside_gradients(graph) if k not in last), *sorted(last))


def updates_beside_gradients(graph: StepGraph) -> tuple[OpIndex, ...]:
    """Every operator once; those of the optimizer as early as what they read and overwrite allows."""
    return _BESIDE.get(graph, (), lambda: _updates_beside_gradients(graph))


def _updates_beside_gradients(graph: StepGraph) -> tuple[OpIndex, ...]:
    anchor = _anchors(graph)
    following: dict[int, list[int]] = {}
    for index, where in enumerate(anchor):
        if where != index:
            following.setdefault(where, []).append(index)
    order: list[OpIndex] = []
    stack = [k for k in reversed(range(len(anchor))) if anchor[k] == k]
    stack += reversed(following.get(-1, []))
    while stack:
        index = stack.pop()
        order.append(OpIndex(index))
        stack += reversed(following.get(index, []))
    return tuple(order)


def with_parts(graph: StepGraph, order: tuple[OpIndex, ...]) -> tuple[Execution, ...]:
    """The same order with every large update in parts."""
    parts = _parts(graph)
    whole = captured_order(graph)
    return tuple(run for index in order for run in parts.get(index, (whole[index],)))


def _parts(graph: StepGraph) -> dict[OpIndex, tuple[Execution, ...]]:
    """The runs of each update that is large enough to be cut."""
    found = {}
    for index, state in own_state(graph).items():
        state_bytes = sum(graph.tensors[t].size_bytes for t in state)
        if state_bytes > _PART_BYTES:
            parts = min(_MOST_PARTS, -(-state_bytes // _PART_BYTES))
            found[index] = tuple(Execution(operator=index, part=part, parts=parts) for part in range(parts))
    return found


def deferrable(graph: StepGraph) -> frozenset[OpIndex]:
    """Updates of buffers that nothing accesses afterwards, from what nothing changes afterwards.

    None of them accesses what another one writes, so that any of them may wait.
    """
    return _DEFERRABLE.get(graph, (), lambda: _deferrable(graph))


def _deferrable(graph: StepGraph) -> frozenset[OpIndex]:
    accessed: set[int] = set()
    written: set[int] = set()
    found = []
    for index in reversed(range(len(graph.operators))):
        operator = graph.operators[index]
        buffers = operator.writes and all(graph.tensors[t].role is Role.BUFFER for t in operator.writes)
        if buffers and accessed.isdisjoint(operator.writes) and written.isdisjoint(operator.reads):
            found.append(OpIndex(index))
        accessed.update(operator.reads, operator.writes)
        written.update(operator.writes)
    return frozenset(found)


def in_the_way(graph: StepGraph, executions: Sequence[Execution]) -> frozenset[OpIndex]:
    """Of those that may wait for the end the ones that have to: they change what is read again in this order."""
    ran: set[tuple[OpIndex, int]] = set()
    read: set[TensorId] = set()
    for execution in executions:
        if (execution.operator, execution.part) in ran:
            read.update(graph.operators[execution.operator].reads)
        ran.add((execution.operator, execution.part))
    return frozenset(k for k in deferrable(graph) if not read.isdisjoint(graph.operators[k].writes))


def _anchors(graph: StepGraph) -> list[int]:
    """Right after which operator each one of the optimizer may run, -1 before all; of all others themselves."""
    anchors: list[int] = []
    written: dict[int, int] = {}  # the latest writer of each tensor
    since: dict[int, list[int]] = {}  # that writer and every reader after it: the last of them may have moved
    for index, operator in enumerate(graph.operators):
        where = index
        if operator.stage is Stage.OPTIMIZER:
            needs = [written.get(t, -1) for t in operator.reads]
            needs += [k for t in operator.writes for k in since.get(t, ())]
            where = _latest(needs, anchors)
        anchors.append(where)
        for tensor in operator.reads:
            since.setdefault(tensor, []).append(index)
        written.update(dict.fromkeys(operator.writes, index))
        since.update({tensor: [index] for tensor in operator.writes})
    return anchors


def _latest(needs: list[int], anchors: list[int]) -> int:
    """Of these operators the one that runs last in the new order: by where it is anchored, then by itself."""

    def path(index: int) -> tuple[int, ...]:
        found = [index]
        while found[-1] >= 0 and anchors[found[-1]] != found[-1]:
            found.append(anchors[found[-1]])
        return tuple(reversed(found))

    return max(needs, key=path, default=-1)
