"""Check rewritten orders: execute both orders on symbols and compare the values that every operator reads.

This module shares no code with rewrite.py. Each operator's result is a symbol made of the operator and of its input
symbols. An operator that draws random numbers also gets the number of draws before it as an input. An order is
equivalent to the captured order if every execution gets the same input symbols as the operator in the captured order,
and if persistent tensors end with the same symbols.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from indb_tensile.scheduler.graph import Operator, OpIndex, Role, StepGraph, Tensor, TensorId
from indb_tensile.scheduler.plan import Execution

_Symbol = int


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The faults of the order, in words, and the graph of the order if there are none."""

    faults: tuple[str, ...]
    graph: StepGraph


def judge(graph: StepGraph, executions: Sequence[Execution]) -> Verdict:
    """Compare the order with the captured one."""
    malformed = _malformed(graph, executions)
    if malformed:
        return Verdict(faults=tuple(malformed), graph=graph)
    names: dict[tuple[object, ...], _Symbol] = {}
    captured, machine = _Machine(graph, names), _Machine(graph, names)
    seen = [captured.execute(Execution(operator=OpIndex(index))) for index in range(len(graph.operators))]
    for position, execution in enumerate(executions):
        inputs = machine.execute(execution)
        if execution.part == 0 and inputs != seen[execution.operator]:
            name = graph.operators[execution.operator].name
            machine.faults.append(f"execution {position}: operator {execution.operator} ({name}) sees other values")
    for tensor in graph.tensors:
        if tensor.persistent and machine.value(tensor.id) != captured.value(tensor.id):
            machine.faults.append(f"tensor {tensor.id} ({tensor.name}) ends the iteration with another value")
    if machine.faults:
        return Verdict(faults=tuple(machine.faults), graph=graph)
    rewritten = replace(graph, tensors=tuple(machine.tensors), operators=tuple(machine.operators))
    return Verdict(faults=(), graph=rewritten)


def _malformed(graph: StepGraph, executions: Sequence[Execution]) -> list[str]:
    """Return the faults that prevent an execution on symbols: operators that do not exist, are missing or are
    interrupted.
    """
    messages = []
    whole = set()
    at = 0
    while at < len(executions):
        first = executions[at]
        if not 0 <= first.operator < len(graph.operators):
            return [f"execution {at}: there is no operator {first.operator}"]
        expected = [Execution(operator=first.operator, part=p, parts=first.parts) for p in range(first.parts)]
        if list(executions[at : at + first.parts]) != expected:
            return [f"execution {at}: the parts of operator {first.operator} are not one after the other"]
        if first.parts > 1 and not graph.operators[first.operator].splittable:
            messages.append(f"execution {at}: operator {first.operator} cannot be split")
        if first.parts > 1 and first.operator in whole:
            messages.append(f"execution {at}: operator {first.operator} is split when it runs again")
        whole.add(first.operator)
        at += first.parts
    messages += [f"operator {k} never runs" for k in range(len(graph.operators)) if k not in whole]
    return messages


@dataclass(slots=True)
class _Machine:
    """Tensors with symbols as values, and the graph of the executions so far."""

    graph: StepGraph
    names: dict[tuple[object, ...], _Symbol]  # the symbol of each tuple from which one was made
    tensors: list[Tensor] = field(init=False)
    operators: list[Operator] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    drawn: int = 0
    makers: dict[TensorId, int] = field(init=False)
    users: dict[TensorId, set[int]] = field(init=False)
    now: dict[TensorId, list[TensorId]] = field(init=False)  # the tensors that hold the value; several if it is split
    values: dict[TensorId, _Symbol] = field(init=False)
    runs: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.tensors = list(self.graph.tensors)
        self.now = {t.id: [t.id] for t in self.graph.tensors}
        self.values = {t.id: self._symbol(("before", t.id)) for t in self.graph.tensors if t.persistent}
        self.makers, self.users = _makers(self.graph), _users(self.graph)

    def value(self, tensor: TensorId) -> _Symbol:
        return self.values.get(tensor, self._symbol(("nothing",)))

    def execute(self, execution: Execution) -> tuple[object, ...]:
        """Run the operator, or a part of it, on the present values. Return the input symbols."""
        operator = self.graph.operators[execution.operator]
        first_part, last_part = execution.part == 0, execution.part == execution.parts - 1
        again = execution.operator in self.runs
        touched = sorted({*operator.reads, *operator.writes})
        fresh = {t for t in operator.writes if self._makes(execution.operator, t)}
        inputs: tuple[object, ...] = tuple(self.value(t) for t in touched if t not in fresh)
        if operator.random:
            inputs = (*inputs, "drawn", self.drawn)
        if first_part:
            for tensor in operator.writes if again else ():
                self._renew(execution, tensor, fresh)
            if execution.parts > 1:
                self._split(execution, touched)
        self._record(execution, operator)
        if last_part:
            self.drawn += operator.random
            self.runs.add(execution.operator)
            for tensor in operator.writes:
                self.values[tensor] = self._symbol((execution.operator, tensor, *inputs))
        return inputs

    def _symbol(self, made_of: tuple[object, ...]) -> _Symbol:
        """Return a short name for `made_of`, the same in both machines, so that comparing two values is fast."""
        return self.names.setdefault(made_of, len(self.names))

    def _makes(self, operator: int, tensor: TensorId) -> bool:
        """Return whether this operator gives the tensor its first value."""
        return not self.graph.tensors[tensor].persistent and self.makers.get(tensor) == operator

    def _renew(self, execution: Execution, tensor: TensorId, fresh: set[TensorId]) -> None:
        """Let a second run write a new tensor, because the first may have been released."""
        if tensor not in fresh:
            name = self.graph.tensors[tensor].name
            self.faults.append(f"operator {execution.operator} runs again and updates tensor {tensor} ({name})")
            return
        self._append(tensor, replace(self.graph.tensors[tensor], name=f"{self.graph.tensors[tensor].name} again"))

    def _append(self, tensor: TensorId, like: Tensor) -> None:
        new = TensorId(len(self.tensors))
        self.tensors.append(replace(like, id=new))
        self.now[tensor] = [new]

    def _split(self, execution: Execution, touched: list[TensorId]) -> None:
        """Split optimizer state that no other operator accesses with its operator, at multiples of 256 bytes."""
        operator = self.graph.operators[execution.operator]
        for tensor in (*operator.reads, *operator.writes):
            whole = self.graph.tensors[tensor]
            shared = self.users[tensor] != {int(execution.operator)}
            if tensor not in touched or whole.role is not Role.OPTIMIZER_STATE or shared or len(self.now[tensor]) > 1:
                continue
            cuts = [whole.size_bytes * p // execution.parts // 256 * 256 for p in range(execution.parts)]
            if execution.parts > 1 and not cuts[1]:
                continue
            sizes = [b - a for a, b in zip(cuts, [*cuts[1:], whole.size_bytes], strict=True)]
            pieces = [tensor, *(TensorId(len(self.tensors) + k) for k in range(execution.parts - 1))]
            for part, (piece, size_bytes) in enumerate(zip(pieces, sizes, strict=True)):
                name = f"{whole.name} [{part + 1}/{execution.parts}]"
                cut = replace(whole, id=piece, name=name, size_bytes=size_bytes)
                if part:
                    self.tensors.append(cut)
                else:
                    self.tensors[tensor] = cut
            self.now[tensor] = pieces

    def _record(self, execution: Execution, operator: Operator) -> None:
        def instances(tensors: tuple[TensorId, ...]) -> tuple[TensorId, ...]:
            return tuple(self.now[t][execution.part if len(self.now[t]) > 1 else 0] for t in tensors)

        reads, writes = instances(operator.reads), instances(operator.writes)
        same = reads == operator.reads and writes == operator.writes
        self.operators.append(operator if same else replace(operator, reads=reads, writes=writes))


def _makers(graph: StepGraph) -> dict[TensorId, int]:
    """Return for each tensor the operator that gives it its first value."""
    makers: dict[TensorId, int] = {}
    for index, operator in enumerate(graph.operators):
        for tensor in operator.writes:
            makers.setdefault(tensor, index)
    return makers


def _users(graph: StepGraph) -> dict[TensorId, set[int]]:
    users: dict[TensorId, set[int]] = {}
    for index, operator in enumerate(graph.operators):
        for tensor in (*operator.reads, *operator.writes):
            users.setdefault(tensor, set()).add(index)
    return users
