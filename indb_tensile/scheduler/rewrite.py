"""Rewrite the step graph for recomputation, reordering and splitting.

A plan may run operators again, in another order, or in parts. This module turns such an order of execution into a
step graph of its own, so that the other parts of the scheduler need not handle three more kinds of event. An operator
that runs again writes new tensors, and later operators read the new tensors. Peak, swaps, lanes and placement need
not know that the graph was rewritten, and a recomputed tensor can be swapped like any other.

The following rules keep every result the same bit for bit. (A *version* of a tensor is the operator that wrote it
last.)

- Every operator runs. The first run is the operator itself; further runs are re-runs.
- Each tensor that an operator reads or updates has the same version as in captured order.
- A re-run writes only tensors that do not persist. Operators that draw random numbers run once, and in their captured
  order.
- A splittable operator may run in parts, one right after the other. Optimizer state that it alone accesses is split
  with it. All parts share the other tensors.

Recomputation follows TENSILE section IV-D, which follows Capuchin and SuperNeurons. Chains, in which a source may
itself have been recomputed, are our own addition, and so are reordering and splitting.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from indb_tensile.errors import GraphError
from indb_tensile.scheduler.graph import Operator, OpIndex, Role, StepGraph, TensorId
from indb_tensile.scheduler.plan import Execution, Plan
from indb_tensile.scheduler.plan_cache import CachedKind, PlanCache, cached

_REWRITTEN: CachedKind["Rewritten"] = CachedKind(name="rewritten graphs", most=8)
_CAPTURED: CachedKind[tuple[Execution, ...]] = CachedKind(name="captured orders", most=8)
_OWN: CachedKind[dict[OpIndex, tuple[TensorId, ...]]] = CachedKind(name="own optimizer state", most=8)
_PART_NS = 5_000  # launch time of one more kernel on the reference machine (timing/machines.py)
_BEFORE = -1  # the version that the previous iteration left
# 64 elements of float32: a fused update that is cut at such a boundary gives the same bits as the whole update
_PART_BYTES = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewritten:
    """The graph that runs. `source[t]` is the captured tensor of tensor `t`; `reruns` are the operators that run
    again.
    """

    graph: StepGraph
    source: tuple[TensorId, ...]
    reruns: frozenset[OpIndex]


def captured_order(graph: StepGraph, cache: PlanCache | None = None) -> tuple[Execution, ...]:
    """Return every operator once, in captured order."""
    count = len(graph.operators)
    return cached(cache, _CAPTURED, graph, (), lambda: tuple(Execution(operator=OpIndex(k)) for k in range(count)))


def rewrite(graph: StepGraph, executions: Sequence[Execution], cache: PlanCache | None = None) -> Rewritten:
    """Return the step graph of this order of execution.

    Captured tensors keep their ids; new tensors get the ids after them. Raises GraphError for an order that would
    change a result.
    """
    order = tuple(executions)
    return cached(cache, _REWRITTEN, graph, order, lambda: _Rewriting(graph, order, cache).run())


def effective(graph: StepGraph, plan: Plan, cache: PlanCache | None = None) -> StepGraph:
    """Return the graph to which the plan's positions and tensors refer."""
    return rewrite(graph, plan.executions, cache).graph if plan.executions else graph


def effective_latency(latency_ns: Sequence[int], plan: Plan) -> tuple[int, ...]:
    """Return the nanoseconds of each operator of the effective graph."""
    if not plan.executions:
        return tuple(latency_ns)
    return tuple(execution_ns(latency_ns[e.operator], e.parts) for e in plan.executions)


def captured_latency(executed_ns: Sequence[int], plan: Plan) -> tuple[int, ...]:
    """Estimate each captured operator's time in nanoseconds as the mean over its runs in the effective graph.

    The launch time of additional parts is subtracted, so that `effective_latency` adds up to the measured time.
    """
    if not plan.executions:
        return tuple(executed_ns)
    total_ns: dict[OpIndex, int] = {}
    runs: dict[OpIndex, int] = {}
    for execution, ns in zip(plan.executions, executed_ns, strict=True):
        launch_ns = _PART_NS if execution.parts > 1 else 0
        total_ns[execution.operator] = total_ns.get(execution.operator, 0) + ns - launch_ns
        runs[execution.operator] = runs.get(execution.operator, 0) + (execution.part == 0)
    return tuple(max(0, round(total_ns[k] / runs[k])) for k in sorted(runs))


def execution_ns(latency_ns: int, parts: int) -> int:
    """Return the nanoseconds of one of `parts` parts of an operator."""
    return latency_ns if parts == 1 else -(-latency_ns // parts) + _PART_NS


def repeatable(graph: StepGraph) -> tuple[bool, ...]:
    """Return for each operator whether it may run again: it draws no random numbers and only gives tensors their
    first value.
    """
    first = _first_writers(graph)
    return tuple(
        bool(op.writes)
        and not op.random
        and all(not graph.tensors[t].persistent and first[t] == index for t in op.writes)
        for index, op in enumerate(graph.operators)
    )


def own_state(graph: StepGraph, cache: PlanCache | None = None) -> dict[OpIndex, tuple[TensorId, ...]]:
    """Return for each splittable operator the optimizer state that it alone accesses, which is split with it."""
    return cached(cache, _OWN, graph, (), lambda: _own_state(graph))


def _own_state(graph: StepGraph) -> dict[OpIndex, tuple[TensorId, ...]]:
    users: dict[TensorId, set[int]] = {}
    for index, op in enumerate(graph.operators):
        for tensor in (*op.reads, *op.writes):
            if graph.tensors[tensor].role is Role.OPTIMIZER_STATE:
                users.setdefault(tensor, set()).add(index)
    return {
        OpIndex(index): tuple(sorted(t for t in {*op.reads, *op.writes} if users.get(t) == {index}))
        for index, op in enumerate(graph.operators)
        if op.splittable
    }


def part_bytes(size_bytes: int, part: int, parts: int) -> int:
    """Return the size of one part of a tensor; 0 for the parts of a tensor that is too small to be split."""

    def end(number: int) -> int:
        return size_bytes if number == parts else size_bytes * number // parts // _PART_BYTES * _PART_BYTES

    return end(part + 1) - end(part) if end(1) > 0 else 0


class _Rewriting:
    """One walk along the new order, which tracks the present version and instance of each captured tensor."""

    def __init__(self, graph: StepGraph, executions: Sequence[Execution], cache: PlanCache | None) -> None:
        self._graph = graph
        self._executions = executions
        self._needed = _needed_versions(graph)
        self._first = _first_writers(graph)
        self._own = own_state(graph, cache)
        self._tensors = list(graph.tensors)
        self._source = [tensor.id for tensor in graph.tensors]
        self._instance = list(self._source)
        self._version: list[int | None] = [_BEFORE if t.persistent else None for t in graph.tensors]
        self._part_ids: dict[TensorId, tuple[TensorId, ...]] = {}
        self._moved: set[TensorId] = set()  # captured tensors whose present instance is another tensor
        self._done: set[OpIndex] = set()
        self._reruns: set[OpIndex] = set()
        self._last_random = -1
        self._open: Execution | None = None  # the part that has to come next

    def run(self) -> Rewritten:
        operators = tuple(self._execute(execution) for execution in self._executions)
        if self._open is not None:
            named = _named(self._open.operator, self._graph.operators[self._open.operator])
            raise GraphError(f"the order ends before part {self._open.part} of {self._open.parts} of {named}")
        missing = sorted(set(range(len(self._graph.operators))) - self._done)
        if missing:
            raise GraphError(f"operators {missing[:5]} of {len(self._graph.operators)} never run")
        graph = StepGraph(tensors=tuple(self._tensors), operators=operators, signature=self._graph.signature)
        return Rewritten(graph=graph, source=tuple(self._source), reruns=frozenset(self._reruns))

    def _execute(self, execution: Execution) -> Operator:
        index = execution.operator
        if not 0 <= index < len(self._graph.operators):
            raise GraphError(f"there is no operator {index}")
        operator = self._graph.operators[index]
        self._check_part(execution, operator)
        rerun = index in self._done
        if execution.part == 0:
            self._check_versions(index, operator)
            self._check_run(index, operator, rerun=rerun)
            for tensor in operator.writes:
                if rerun:
                    self._instance[tensor] = self._new_instance(tensor)
                    self._moved.add(tensor)
        mapped = self._mapped(execution, operator)
        if execution.part == execution.parts - 1:
            for tensor in operator.writes:
                self._version[tensor] = index
            (self._reruns if rerun else self._done).add(index)
        return mapped

    def _check_part(self, execution: Execution, operator: Operator) -> None:
        expected = self._open
        if expected is None:
            if execution.part:
                raise GraphError(f"{_named(execution.operator, operator)} starts with part {execution.part}")
        elif execution != expected:
            raise GraphError(f"operator {expected.operator} is interrupted before part {expected.part}")
        if execution.parts > 1 and not operator.splittable:
            raise GraphError(f"{_named(execution.operator, operator)} cannot run in parts")
        last = execution.part == execution.parts - 1
        self._open = None if last else replace(execution, part=execution.part + 1)

    def _check_versions(self, index: OpIndex, operator: Operator) -> None:
        for tensor, version in self._needed[index]:
            if self._version[tensor] != version:
                name = self._graph.tensors[tensor].name
                present = self._version[tensor]
                fault = (
                    "but nothing has written it yet" if present is None else f"but {_writer(present)} wrote it last"
                )
                raise GraphError(f"{_named(index, operator)} needs {name} as {_writer(version)} left it, {fault}")

    def _check_run(self, index: OpIndex, operator: Operator, *, rerun: bool) -> None:
        if operator.random:
            if rerun or index < self._last_random:
                raise GraphError(f"{_named(index, operator)} draws random numbers and cannot run again, nor later")
            self._last_random = index
        if rerun:
            for tensor in operator.writes:
                if self._graph.tensors[tensor].persistent or self._first[tensor] != index:
                    name = self._graph.tensors[tensor].name
                    raise GraphError(f"{_named(index, operator)} updates {name} and cannot run again")

    def _new_instance(self, tensor: TensorId) -> TensorId:
        new = TensorId(len(self._tensors))
        captured = self._graph.tensors[tensor]
        self._tensors.append(replace(captured, id=new, name=f"{captured.name} again"))
        self._source.append(tensor)
        return new

    def _mapped(self, execution: Execution, operator: Operator) -> Operator:
        moved = not (self._moved.isdisjoint(operator.reads) and self._moved.isdisjoint(operator.writes))
        if execution.parts == 1 and not moved:
            return operator

        def instances(tensors: tuple[TensorId, ...]) -> tuple[TensorId, ...]:
            return tuple(self._present_instance(t, execution) for t in tensors)

        mapped = replace(operator, reads=instances(operator.reads), writes=instances(operator.writes))
        if execution.parts == 1:
            return mapped
        fraction = f"{execution.part + 1}/{execution.parts}"
        signature = f"{operator.signature} part {fraction}"
        return replace(mapped, signature=signature, flops=operator.flops // execution.parts)

    def _present_instance(self, tensor: TensorId, execution: Execution) -> TensorId:
        """Return the present instance of the tensor, or the execution's part of it."""
        if execution.parts == 1 or tensor not in self._own[execution.operator]:
            return self._instance[tensor]
        if tensor not in self._part_ids:
            self._part_ids[tensor] = self._split(tensor, execution.parts)
        return self._part_ids[tensor][execution.part]

    def _split(self, tensor: TensorId, parts: int) -> tuple[TensorId, ...]:
        captured = self._graph.tensors[tensor]
        if not part_bytes(captured.size_bytes, 0, parts):
            return (tensor,) * parts
        part_ids = []
        for part in range(parts):
            size_bytes = part_bytes(captured.size_bytes, part, parts)
            part_id = TensorId(tensor if part == 0 else len(self._tensors))
            name = f"{captured.name} [{part + 1}/{parts}]"
            piece = replace(captured, id=part_id, name=name, size_bytes=size_bytes)
            if part == 0:
                self._tensors[tensor] = piece
            else:
                self._tensors.append(piece)
                self._source.append(tensor)
            part_ids.append(part_id)
        return tuple(part_ids)


def _named(index: OpIndex, operator: Operator) -> str:
    return f"operator {index} ({operator.name})"


def _writer(version: int) -> str:
    return "the previous iteration" if version == _BEFORE else f"operator {version}"


def _first_writers(graph: StepGraph) -> list[int]:
    """Return for each tensor the operator that writes it first; past the end if there is none."""
    first = [len(graph.operators)] * len(graph.tensors)
    for index in reversed(range(len(graph.operators))):
        for tensor in graph.operators[index].writes:
            first[tensor] = index
    return first


def _needed_versions(graph: StepGraph) -> list[list[tuple[TensorId, int]]]:
    """Return for each operator the version of each tensor that it reads or updates: the operator that last wrote the
    tensor before this operator.
    """
    version: list[int | None] = [_BEFORE if t.persistent else None for t in graph.tensors]
    needed = []
    for index, op in enumerate(graph.operators):
        touched = sorted({*op.reads, *op.writes})
        needed.append([(t, v) for t in touched if (v := version[t]) is not None])
        for tensor in op.writes:
            version[tensor] = index
    return needed
