"""Compiles a captured step and a plan into one straight-line function.

Values are local variables, every operator is one call, a release is a `del`, and what the plan says of a
boundary stands between two calls: no look-up, no lock and no interpreter loop per operator. The timed
variant is the same lines with a clock reading at each boundary.
"""

import linecache
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Any

import torch

from indb_tensile.errors import InvariantError
from indb_tensile.executor.aten import entry_point
from indb_tensile.executor.capture import CapturedStep, Kind, Step
from indb_tensile.executor.device import Clock, Device, HostBuffer, Ticket
from indb_tensile.executor.lanes import Lanes
from indb_tensile.executor.record import Call, Ref, Runtime, refs
from indb_tensile.executor.state import State
from indb_tensile.executor.timeline import Boundary, Gap, Timeline, unroll
from indb_tensile.scheduler.graph import Stage, TensorId
from indb_tensile.scheduler.plan import Plan

# Arguments of the compiled function.
_SIGNATURE = "def iterate(rate, first, carried, returned, times, stalls):"

Iterate = Callable[..., int]


@dataclass(slots=True, kw_only=True)
class Program:
    """One step under one plan. `plain` and `timed` exist once the program is bound to a state.

    `buffers` are the host copies of tensors that do not persist, `staging` those of the batch and constants.
    """

    step: CapturedStep
    plan: Plan
    timeline: Timeline
    plain_lines: tuple[str, ...]
    timed_lines: tuple[str, ...]
    constants: tuple[Any, ...]
    targets: tuple[Callable[..., Any], ...]
    names: dict[str, str]
    hoisted: tuple[Call, ...]
    buffers: dict[TensorId, HostBuffer] = field(default_factory=dict)
    staging: dict[str, HostBuffer] = field(default_factory=dict)
    plain: Iterate | None = None
    timed: Iterate | None = None

    @property
    def source(self) -> str:
        """The plain variant as Python text."""
        return "\n".join(self.plain_lines)


def compile_program(step: CapturedStep, plan: Plan) -> Program:
    """Write both variants; nothing is allocated. Raises InvariantError where the plan breaks its own rules."""
    if plan.executions:
        raise InvariantError(
            f"a plan of policy {plan.policy} changes the order of operators, which is not executed yet"
        )
    timeline = unroll(step.graph, plan)
    hoisted = _hoistable(step, timeline)
    plain = _Writer(step, plan, timeline, hoisted, timed=False)
    timed = _Writer(step, plan, timeline, hoisted, timed=True)
    plain_lines, timed_lines = plain.write(), timed.write()
    return Program(
        step=step,
        plan=plan,
        timeline=timeline,
        plain_lines=plain_lines,
        timed_lines=timed_lines,
        constants=tuple(plain.constants),
        targets=tuple(entry_point(s.kernel.target) for s in step.steps),
        names=plain.names,
        hoisted=hoisted,
    )


def bind(program: Program, state: State, device: Device, lanes: Lanes, clock: Clock = perf_counter_ns) -> None:
    """Give the program its tensors and its device. The state must be at the program's home."""
    scope: dict[str, Any] = {
        "move": device.move,
        "wait": device.wait,
        "copy_out": lanes.copy_out,
        "copy_in": lanes.copy_in,
        "clock": clock,
        "set_grad": torch.set_grad_enabled,
        "movable": _movable,
    }
    scope |= {f"c{i}": constant for i, constant in enumerate(program.constants)}
    scope |= {f"f{i}": target for i, target in enumerate(program.targets)}
    scope |= {f"w{i}": entry_point(call.target) for i, call in enumerate(_views(program.step))}
    scope |= {program.names[name]: tensor for name, tensor in state.tensors.items() if name in program.names}
    scope |= {f"s{i}": storage for i, storage in enumerate(state.storages)}
    scope |= {f"h{i}": buffer for i, buffer in (state.host | program.buffers).items()}
    scope |= {f"u_{program.names[name]}": buffer for name, buffer in program.staging.items()}
    _hoist(program, scope)
    program.plain = _compiled(program.plain_lines, scope, "plain")
    program.timed = _compiled(program.timed_lines, scope, "timed")


def _movable(value: torch.Tensor, size_bytes: int) -> torch.UntypedStorage:
    """The storage of a value that the plan moves; its size must be the graph's, or a copy would overrun it."""
    storage = value.untyped_storage()
    if storage.nbytes() != size_bytes or not storage.resizable():
        raise InvariantError(
            f"a storage of {storage.nbytes()} bytes cannot be moved as the planned {size_bytes}",
            detail=f"tensor of shape {tuple(value.shape)} and {value.dtype}, resizable: {storage.resizable()}",
        )
    return storage


def _hoist(program: Program, scope: dict[str, Any]) -> None:
    """Views of persistent tensors that are at home are made once: moving a storage leaves them valid."""
    values = {name: scope[local] for name, local in program.names.items() if local in scope}

    def given(item: Any) -> Any:
        if isinstance(item, Ref):
            return values[item.name]
        if isinstance(item, list | tuple):
            return type(item)(given(part) for part in item)
        return item

    for call in program.hoisted:
        made = call.target(*given(call.args), **{k: given(v) for k, v in call.kwargs.items()})
        for name, tensor in zip(call.results, [made] if call.single else made, strict=True):
            if name is not None:
                values[name] = scope[program.names[name]] = tensor


def _compiled(lines: tuple[str, ...], scope: dict[str, Any], variant: str) -> Iterate:
    text = "\n".join(lines) + "\n"
    filename = f"<step program {id(scope):x} {variant}>"
    # So that a traceback shows the line of the operator that failed.
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    local: dict[str, Any] = {}
    exec(compile(text, filename, "exec"), scope, local)  # noqa: S102 - text of our own making
    iterate: Iterate = local["iterate"]
    weakref.finalize(iterate, linecache.cache.pop, filename, None)  # plans come and go
    return iterate


def _views(step: CapturedStep) -> Iterator[Call]:
    for one in step.steps:
        yield from one.views
        yield from one.after


def _hoistable(step: CapturedStep, timeline: Timeline) -> tuple[Call, ...]:
    fixed = {
        v.name
        for s in step.layout
        for v in s.values
        if step.tensor_of.get(step.values[v.name].storage) in timeline.home
    }
    hoisted = []
    for call in _views(step):
        if fixed.issuperset(call.arguments):
            hoisted.append(call)
            fixed.update(name for name in call.results if name is not None)
    return tuple(hoisted)


class _Writer:
    """Writes one variant, line by line."""

    def __init__(
        self, step: CapturedStep, plan: Plan, timeline: Timeline, hoisted: tuple[Call, ...], *, timed: bool
    ) -> None:
        self._step = step
        self._plan = plan
        self._timeline = timeline
        self._timed = timed
        self._lines: list[str] = []
        self._hoisted = {id(call) for call in hoisted}
        self._view_number = {id(call): i for i, call in enumerate(_views(step))}
        self._persistent = {t.id for t in step.graph.tensors if t.persistent}
        self._carried = {id(g): i for i, g in enumerate((*timeline.outgoing, *timeline.incoming))}
        self._outgoing = {id(g) for g in timeline.outgoing}
        self._ticket = {id(g): f"t{i}" for i, g in enumerate(_gaps(timeline))}
        self._last_use = _last_uses(step)
        self._dying: dict[int, list[str]] = {}
        self._live: dict[str, None] = {}
        self._records = True  # what the iteration starts with
        self.constants: list[Any] = []
        self.names = {name: f"v{i}" for i, name in enumerate(step.values)}
        self._fixed = {v.name for s in step.layout for v in s.values}
        self._fixed.update(n for call in hoisted for n in call.results if n is not None)

    def write(self) -> tuple[str, ...]:
        self._emit("stall = 0")
        for gap in (*self._timeline.outgoing, *self._timeline.incoming):
            self._emit(f"{self._ticket[id(gap)]} = carried[{self._carried[id(gap)]}]")
        for k, one in enumerate(self._step.steps):
            self._clock(k)
            self._boundary(self._timeline.boundaries[k])
            self._record_gradients(one.kernel.stage)
            self._operator(k, one)
            self._release(k)
            self._leave(self._timeline.boundaries[k])
        self._close()
        return (_SIGNATURE, *(f"    {line}" for line in self._lines))

    def _record_gradients(self, stage: Stage) -> None:
        """Forward runs with gradients on, as in eager, for every part of a batch: some kernels choose by it."""
        wanted = stage in (Stage.UPLOAD, Stage.FORWARD)
        if self._step.kind is Kind.TRAINING and wanted != self._records:
            self._records = wanted
            self._emit(f"set_grad({wanted})")

    def _emit(self, line: str) -> None:
        self._lines.append(line)

    def _clock(self, k: int) -> None:
        if self._timed:
            self._emit(f"times[{k}] = clock()")
            self._emit(f"stalls[{k}] = stall")

    def _boundary(self, boundary: Boundary) -> None:
        for gap in boundary.frees:
            if gap.swap.copies:
                self._await(gap, carried=id(gap) in self._outgoing)
            self._emit(f"s{gap.tensor}.resize_(0)")
        if boundary.freed_bytes or boundary.taken_bytes:
            self._emit(f"move({boundary.freed_bytes}, {boundary.taken_bytes})")
        for gap in boundary.ins:
            size_bytes = self._step.graph.tensors[gap.tensor].size_bytes
            self._emit(f"s{gap.tensor}.resize_({size_bytes})")
            self._emit(f"{self._ticket[id(gap)]} = copy_in(s{gap.tensor}.data_ptr(), h{gap.tensor}, {size_bytes})")
        for gap in boundary.needs:
            self._await(gap, carried=id(gap) in self._carried and id(gap) not in self._outgoing)

    def _await(self, gap: Gap, *, carried: bool) -> None:
        wait = f"stall += wait({self._ticket[id(gap)]})"
        self._emit(f"if {self._ticket[id(gap)]} is not None: {wait}" if carried else wait)

    def _operator(self, k: int, one: Step) -> None:
        for call in one.views:
            self._view(call)
        function = f"f{k}"
        self._emit(self._call_text(function, one.kernel))
        if one.kernel.stage is Stage.UPLOAD:
            self._upload(one.kernel)
        for call in one.after:
            self._view(call)
        for name in one.returns:
            slot = 0 if name == self._step.loss else 1
            self._emit(f"returned[{slot}].copy_({self.names[name]})")
        self._storages(one.kernel)

    def _view(self, call: Call) -> None:
        if id(call) not in self._hoisted:
            self._emit(self._call_text(f"w{self._view_number[id(call)]}", call))

    def _upload(self, call: Call) -> None:
        name = call.results[0]
        assert name is not None
        tensor_id = self._step.tensor_of.get(self._step.values[name].storage)
        if tensor_id is not None:
            local = self.names[name]
            size_bytes = self._step.graph.tensors[tensor_id].size_bytes
            self._emit(f"wait(copy_in({local}.data_ptr(), u_{local}, {size_bytes}))")

    def _storages(self, call: Call) -> None:
        """A handle on each new storage that the plan moves."""
        for name in _made(call):
            tensor_id = self._step.tensor_of.get(self._step.values[name].storage)
            if (
                tensor_id in self._timeline.swapped
                and tensor_id not in self._persistent
                and f"s{tensor_id}" not in self._live
            ):
                size_bytes = self._step.graph.tensors[tensor_id].size_bytes
                self._emit(f"s{tensor_id} = movable({self.names[name]}, {size_bytes})")
                self._live[f"s{tensor_id}"] = None
                last = max(self._last_use[n] for n in self._last_use if self._same_storage(n, name))
                self._dying.setdefault(last, []).append(f"s{tensor_id}")

    def _same_storage(self, one: str, other: str) -> bool:
        return self._step.values[one].storage == self._step.values[other].storage

    def _call_text(self, function: str, call: Call) -> str:
        arguments = [self._text(arg) for arg in call.args]
        arguments += [f"{key}={self._text(arg)}" for key, arg in call.kwargs.items()]
        text = f"{function}({', '.join(arguments)})"
        made = _made(call)
        if not made:
            return text
        for name in made:
            self._live[self.names[name]] = None
            self._dying.setdefault(self._last_use[name], []).append(self.names[name])
        if call.single:
            return f"{self.names[made[0]]} = {text}"
        results = [self.names[name] if name in made else "_" for name in call.results]
        return f"{', '.join(results)}{',' if len(results) == 1 else ''} = {text}"

    def _text(self, item: Any) -> str:
        if isinstance(item, Ref):
            return self.names[item.name]
        if isinstance(item, Runtime):
            return "rate" if item is Runtime.LEARNING_RATE else "first"
        if item is None or isinstance(item, bool | int):
            return repr(item)
        if isinstance(item, list | tuple) and any(True for _ in refs(item)):
            return f"[{', '.join(self._text(part) for part in item)}]"
        self.constants.append(item)
        return f"c{len(self.constants) - 1}"

    def _release(self, k: int) -> None:
        if self._plan.release:
            self._delete(self._dying.pop(k, []))

    def _delete(self, names: Sequence[str]) -> None:
        if names:
            self._emit(f"del {', '.join(names)}")
            for name in names:
                self._live.pop(name)

    def _leave(self, boundary: Boundary) -> None:
        for gap in boundary.outs:
            if gap.swap.copies:
                size_bytes = self._step.graph.tensors[gap.tensor].size_bytes
                self._emit(
                    f"{self._ticket[id(gap)]} = copy_out(h{gap.tensor}, s{gap.tensor}.data_ptr(), {size_bytes})"
                )

    def _close(self) -> None:
        self._delete(tuple(self._live))
        self._boundary(self._timeline.boundaries[-1])
        self._clock(len(self._step.steps))
        for gap in (*self._timeline.outgoing, *self._timeline.incoming):
            self._emit(f"carried[{self._carried[id(gap)]}] = {self._ticket[id(gap)]}")
        self._emit("return stall")


def _gaps(timeline: Timeline) -> Iterator[Gap]:
    for boundary in timeline.boundaries:
        yield from boundary.outs


def _made(call: Call) -> list[str]:
    made = dict.fromkeys(call.results)  # a kernel may return one tensor twice
    return [name for name in made if name is not None and name not in call.arguments]


def _last_uses(step: CapturedStep) -> dict[str, int]:
    """The last operator whose lines mention each value that is made within the step."""
    last: dict[str, int] = {}
    for k, one in enumerate(step.steps):
        for call in (*one.views, one.kernel, *one.after):
            last.update(dict.fromkeys(_made(call), k))
            last.update({name: k for name in call.arguments if name in last})
        last.update({name: k for name in one.returns if name in last})
    return last


def empty_carried(program: Program) -> list[Ticket | None]:
    """Room for the tickets of copies that run on from one iteration into the next."""
    return [None] * (len(program.timeline.outgoing) + len(program.timeline.incoming))
