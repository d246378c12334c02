"""Assigns values to variables in the order in which a plan runs a step: the arguments and results of each call.

An operator that runs again makes new values, and later operators get those. A view is made right before the first
kernel that needs it, and again if its base was made again. A part of an update gets its part of every tensor that the
update processes element by element. Everything is decided before the run: a value is a local variable, and each
argument of a call is text.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from indb_tensile.errors import InvariantError
from indb_tensile.executor.capture.record import Call, StorageKey, refs
from indb_tensile.executor.capture.step_capture import CapturedStep, Step
from indb_tensile.executor.run.timeline import lifetimes
from indb_tensile.scheduler.graph import OpIndex, StepGraph, TensorId
from indb_tensile.scheduler.pieces import Piece, pieces_of
from indb_tensile.scheduler.plan import Execution, Plan
from indb_tensile.scheduler.plan_cache import PlanCache
from indb_tensile.scheduler.rewrite import captured_order, effective, own_state, part_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramLine:
    """A call, the text of each argument value, and the variable of each value that the call makes."""

    call: Call
    arguments: dict[str, str]
    made: dict[str, str]


@dataclass(slots=True, kw_only=True)
class ProgramStep:
    """One position of the plan's order.

    `kernel` is None if an update is too small to be cut: its first part then does the whole update. `returns` are
    values for the host, each with its variable. `arrived` are tensors of the graph that first exist here, each with a
    variable of a value in it. `dying` are variables without a later use, `gone` tensors without a later access.
    """

    operator: OpIndex
    step: Step
    views: tuple[ProgramLine, ...] = ()
    kernel: ProgramLine | None = None
    after: tuple[ProgramLine, ...] = ()
    returns: tuple[tuple[str, str], ...] = ()
    arrived: tuple[tuple[TensorId, str], ...] = ()
    dying: list[str] = field(default_factory=list)
    gone: list[TensorId] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class VariableAssignment:
    """One step under one plan. `graph` is the graph that runs, `pieces` maps its persistent tensors to pieces.

    `fixed` are the variables of persistent values, `cut` those of pieces. Both are assigned before the step starts.
    `hoisted` are views of persistent values that are made once.
    """

    graph: StepGraph
    turns: tuple[ProgramStep, ...]
    pieces: dict[TensorId, Piece]
    fixed: dict[str, str]
    cut: dict[str, Piece]
    hoisted: tuple[ProgramLine, ...]


def assign_variables(
    step: CapturedStep, plan: Plan, home: frozenset[TensorId], cache: PlanCache | None = None
) -> VariableAssignment:
    """Assign variables in the plan's order.

    Views of persistent tensors at `home` may be made once, because these tensors are on the device before the step
    starts. Raises GraphError for an order that would change a result.
    """
    return _Wirer(step, plan, home, PlanCache() if cache is None else cache).run()


class _Wirer:
    """Walks once along the order and tracks the variable of each value."""

    def __init__(self, step: CapturedStep, plan: Plan, home: frozenset[TensorId], cache: PlanCache) -> None:
        self._step = step
        self._executions = plan.executions or captured_order(step.graph, cache)
        self._graph = effective(step.graph, plan, cache)
        self._pieces = pieces_of(step.graph, plan, cache)
        self._own = own_state(step.graph, cache)
        self._number = {name: i for i, name in enumerate(step.values)}
        self._times: dict[str, int] = {}  # how often each value was made
        self._fixed = {v.name: f"v{self._number[v.name]}" for s in step.layout for v in s.values}
        self._settled = {name for name in self._fixed if step.tensor_of.get(step.values[name].storage) in home}
        self._storage_made: dict[StorageKey, int] = {}
        # The variable of each value, and how often the value's storage had been made at that time.
        self._now: dict[str, tuple[str, int]] = {name: (local, 0) for name, local in self._fixed.items()}
        self._mentioned: dict[str, int] = {}  # the last turn that mentions each variable
        self._views: list[ProgramLine] = []  # of the present turn
        self._hoisted: list[ProgramLine] = []
        self._cut: dict[str, Piece] = {}
        self._arrived: set[TensorId] = set(self._pieces)
        self._done: set[OpIndex] = set()

    def run(self) -> VariableAssignment:
        turns = tuple(self._turn(k, execution) for k, execution in enumerate(self._executions))
        for local, k in self._mentioned.items():
            turns[k].dying.append(local)
        for tensor, (_, k) in lifetimes(self._graph).items():
            turns[k].gone.append(tensor)
        return VariableAssignment(
            graph=self._graph,
            turns=turns,
            pieces=self._pieces,
            fixed=self._fixed,
            cut=self._cut,
            hoisted=tuple(self._hoisted),
        )

    def _turn(self, k: int, execution: Execution) -> ProgramStep:
        step = self._step.steps[execution.operator]
        texts = {name: self._find(name, k) for name in step.kernel.arguments}
        views = self._take_views()
        kernel = self._kernel(k, execution, step.kernel, texts)
        again = execution.operator in self._done
        self._done.add(execution.operator)
        returned = [] if again else [(name, self._find(name, k)) for name in step.returns]
        return ProgramStep(
            operator=execution.operator,
            step=step,
            views=views,
            kernel=kernel,
            after=self._take_views(),
            returns=tuple(returned),
            arrived=tuple(self._arrivals(k, execution, step.kernel)),
        )

    def _kernel(self, k: int, execution: Execution, call: Call, texts: dict[str, str]) -> ProgramLine | None:
        if execution.parts == 1:
            return self._make(k, call, texts)
        arguments = self._part_arguments(k, execution, call, texts)
        return None if arguments is None else ProgramLine(call=call, arguments=arguments, made={})

    # --- values ------------------------------------------------------------------------------------------------

    def _find(self, name: str, k: int) -> str:
        """Return the variable in which turn k finds this value, after making the views that it needs."""
        storage = self._step.values[name].storage
        local, made = self._now.get(name, ("", -1))
        if made != self._storage_made.get(storage, 0):
            call = self._step.views.get(name)
            if call is None:
                raise InvariantError(f"the storage of {name} was made again, but no view makes {name} again")
            self._view(call, k)
            local = self._now[name][0]
        if local in self._mentioned:
            self._mentioned[local] = k
        return local

    def _view(self, call: Call, k: int) -> None:
        texts = {name: self._find(name, k) for name in call.arguments}
        if self._settled.issuperset(texts):
            self._hoisted.append(self._make(None, call, texts))
            self._settled.update(call.makes)
        else:
            self._views.append(self._make(k, call, texts))

    def _take_views(self) -> tuple[ProgramLine, ...]:
        views = tuple(self._views)
        self._views.clear()
        return views

    def _make(self, k: int | None, call: Call, texts: dict[str, str]) -> ProgramLine:
        """Make the call's line in turn k, or before the step starts if `k` is None."""
        known = {self._step.values[name].storage for name in texts}
        for storage in dict.fromkeys(self._step.values[name].storage for name in call.makes):
            if storage not in known and storage in self._step.tensor_of:
                self._storage_made[storage] = self._storage_made.get(storage, 0) + 1
        made = {name: self._variable(name) for name in call.makes}
        for name, local in made.items():
            self._now[name] = (local, self._storage_made.get(self._step.values[name].storage, 0))
            if k is not None:
                self._mentioned[local] = k
        return ProgramLine(call=call, arguments=texts, made=made)

    def _variable(self, name: str) -> str:
        version = self._times[name] = self._times.get(name, -1) + 1
        return f"v{self._number[name]}_{version}" if version else f"v{self._number[name]}"

    # --- tensors -----------------------------------------------------------------------------------------------

    def _arrivals(self, k: int, execution: Execution, call: Call) -> Iterable[tuple[TensorId, str]]:
        """Yield the tensors that this operator writes first, each with a variable of a value in it."""
        captured = self._step.graph.operators[execution.operator].writes
        tensor_that_runs = dict(zip(captured, self._graph.operators[k].writes, strict=True))
        for name in call.makes:
            tensor = tensor_that_runs.get(self._step.tensor_of.get(self._step.values[name].storage, TensorId(-1)))
            if tensor is not None and tensor not in self._arrived:
                self._arrived.add(tensor)
                yield tensor, self._now[name][0]

    # --- parts -------------------------------------------------------------------------------------------------

    def _part_arguments(
        self, k: int, execution: Execution, call: Call, texts: dict[str, str]
    ) -> dict[str, str] | None:
        """Return the arguments of a part of an update, or None if the part has nothing to do."""
        shape = self._step.values[next(refs(call.args)).name]
        count = math.prod(shape.shape)
        span = self._span(execution, count * shape.dtype.itemsize)
        if span is None:
            return texts if execution.part == 0 else None
        start, stop = (min(end // shape.dtype.itemsize, count) for end in span)
        operator = self._step.graph.operators[execution.operator]
        tensor_that_runs = dict(zip(operator.reads, self._graph.operators[k].reads, strict=True))
        arguments = dict(texts)
        for name in texts:
            tensor = self._step.tensor_of.get(self._step.values[name].storage)
            if tensor in self._own[execution.operator]:
                arguments[name] = self._piece(name, self._pieces[tensor_that_runs[tensor]], span, execution)
            elif math.prod(self._step.values[name].shape) == count:  # true for all but the step counter
                arguments[name] = f"cut({texts[name]}, {start}, {stop})"
        return arguments

    def _span(self, execution: Execution, size_bytes: int) -> tuple[int, int] | None:
        """Return the bytes of each tensor that this part processes, or None if they are too few to be cut."""
        own = self._own[execution.operator]
        size_bytes = max((self._step.graph.tensors[t].size_bytes for t in own), default=size_bytes)
        sizes = [part_bytes(size_bytes, part, execution.parts) for part in range(execution.part + 1)]
        return (sum(sizes[:-1]), sum(sizes)) if sizes[0] else None

    def _piece(self, name: str, piece: Piece, span: tuple[int, int], execution: Execution) -> str:
        if (piece.start_bytes, piece.stop_bytes) != span:
            raise InvariantError(f"{name} is cut at {piece}, its update at {span}")
        local = f"{self._fixed[name]}_p{execution.part}"
        self._cut[local] = piece
        return local
