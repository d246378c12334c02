"""Writes the lines of a step program: operators, releases, and the plan's actions at each boundary."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from indb_tensile.executor.capture.record import Call, Ref, Runtime, refs
from indb_tensile.executor.capture.replay import INPUTS
from indb_tensile.executor.capture.running_statistics import BATCH_NORM
from indb_tensile.executor.capture.step_capture import CapturedStep, StepKind
from indb_tensile.executor.run.joint_updates import joint_updates
from indb_tensile.executor.run.program_constants import ProgramConstants
from indb_tensile.executor.run.timeline import Boundary, Timeline, UnrolledSwap
from indb_tensile.executor.run.variable_assignment import (
    ProgramLine,
    ProgramStep,
    VariableAssignment,
)
from indb_tensile.scheduler.graph import Stage, TensorId
from indb_tensile.scheduler.plan import Plan

# Arguments of the compiled function.
_SIGNATURE = "def iterate(rate, first, carried, returned, times, stalls):"


class ProgramWriter:
    """Writes one variant, line by line. Arguments that are no text are added to `constants`."""

    def __init__(
        self,
        step: CapturedStep,
        plan: Plan,
        timeline: Timeline,
        wiring: VariableAssignment,
        constants: ProgramConstants,
        *,
        timed: bool,
        located: bool,
        on_host: bool,
        gated: frozenset[int],
        uploads_next: frozenset[int],
        joint_normalisations: frozenset[int] = frozenset(),
    ) -> None:
        self._on_host = on_host
        self._uploads_next = uploads_next
        self._gated = gated
        self._joint_normalisations = joint_normalisations
        self._step = step
        self._plan = plan
        self._timeline = timeline
        self._wiring = wiring
        self._timed = timed
        self._located = located
        self._lines: list[str] = []
        self._view_number = {id(call): i for i, call in enumerate(views_of(step))}
        self._carried = {id(g): i for i, g in enumerate((*timeline.outgoing, *timeline.incoming))}
        self._outgoing = {id(g) for g in timeline.outgoing}
        self._ticket = {id(g): f"t{i}" for i, g in enumerate(_gaps(timeline))}
        self._moved = timeline.swapped.difference(wiring.pieces)
        self._live: dict[str, None] = {}
        self._records = True  # the gradient mode at the start of an iteration
        self._constants = constants

    def write(self) -> tuple[str, ...]:
        """Return the lines of the function that runs one iteration."""
        self._emit("stall = 0")
        for gap in (*self._timeline.outgoing, *self._timeline.incoming):
            self._emit(f"{self._ticket[id(gap)]} = carried[{self._carried[id(gap)]}]")
        joint = {} if self._timed or not self._on_host else self._joint_updates()
        following = 0
        while following < len(self._wiring.turns):
            k = following
            turns = joint.get(k, range(k, k + 1))
            following = turns.stop
            self._clock(k)
            self._locate(k)
            self._boundary(k)
            if len(turns) > 1:
                self._update_together(turns)
            elif k in self._joint_normalisations:
                self._prepare(self._wiring.turns[k])
            elif k - 1 in self._joint_normalisations:
                self._normalise_together(self._wiring.turns[k - 1], self._wiring.turns[k])
            else:
                self._turn(self._wiring.turns[k])
                self._release(self._wiring.turns[k])
            self._leave(self._timeline.boundaries[turns[-1]])
        self._close()
        return (_SIGNATURE, *(f"    {line}" for line in self._lines))

    def _emit(self, line: str) -> None:
        self._lines.append(line)

    def _clock(self, k: int) -> None:
        if self._timed:
            self._emit(f"times[{k}] = clock()")
            self._emit(f"stalls[{k}] = stall")

    def _locate(self, k: int) -> None:
        if self._located:
            self._emit(f"at[0] = {k}")

    def _boundary(self, k: int) -> None:
        boundary = self._timeline.boundaries[k]
        for gap in boundary.frees:
            if gap.swap.copies:
                self._await(gap, carried=id(gap) in self._outgoing)
            self._emit(f"s{gap.tensor}.resize_(0)")
        if k in self._gated:
            self._move(boundary.freed_bytes, 0)
            self._emit(f"stall += gate({k})")
            self._move(0, boundary.taken_bytes)
        else:
            self._move(boundary.freed_bytes, boundary.taken_bytes)
        for gap in boundary.ins:
            size_bytes = self._size(gap.tensor)
            self._emit(f"s{gap.tensor}.resize_({size_bytes})")
            self._emit(f"{self._ticket[id(gap)]} = copy_in(s{gap.tensor}.data_ptr(), h{gap.tensor}, {size_bytes})")
        if k in self._uploads_next:
            self._emit(f"start_next({k})")
        for gap in boundary.needs:
            self._await(gap, carried=id(gap) in self._carried and id(gap) not in self._outgoing)

    def _move(self, freed_bytes: int, taken_bytes: int) -> None:
        if freed_bytes or taken_bytes:
            self._emit(f"move({freed_bytes}, {taken_bytes})")

    def _size(self, tensor: TensorId) -> int:
        return self._wiring.graph.tensors[tensor].size_bytes

    def _await(self, gap: UnrolledSwap, *, carried: bool) -> None:
        wait = f"stall += wait({self._ticket[id(gap)]})"
        self._emit(f"if {self._ticket[id(gap)]} is not None: {wait}" if carried else wait)

    def _turn(self, turn: ProgramStep) -> None:
        self._record_gradients(turn.step.kernel.stage)
        for line in turn.views:
            self._view(line)
        if turn.kernel is not None:
            self._call(f"f{turn.operator}", turn.kernel)
            if turn.kernel.call.target is BATCH_NORM and turn.kernel.call.results[0] is None:
                self._emit("del _")  # the values that the second part of a split normalisation makes
            if turn.kernel.call.stage is Stage.UPLOAD:
                self._upload(turn)
        for line in turn.after:
            self._view(line)
        for name, local in turn.returns:
            slot = 0 if name == self._step.loss else 1
            self._emit(f"returned[{slot}].copy_({local}, non_blocking=True)")
        self._arrive(turn.arrived)

    def _arrive(self, arrived: Sequence[tuple[TensorId, str]]) -> None:
        for tensor, local in arrived:
            if tensor in self._moved:
                self._emit(f"s{tensor} = movable({local}, {self._size(tensor)})")
                self._live[f"s{tensor}"] = None

    def _prepare(self, turn: ProgramStep) -> None:
        self._record_gradients(turn.step.kernel.stage)
        for line in turn.views:
            self._view(line)

    def _normalise_together(self, first: ProgramStep, second: ProgramStep) -> None:
        """Make a whole normalisation by the call of its first part, which drops the values that the second makes."""
        assert first.kernel is not None
        assert second.kernel is not None
        call = first.kernel.call
        whole = replace(call, results=(*second.kernel.call.results, *call.results[1:]))
        self._call(
            f"f{first.operator}",
            replace(first.kernel, call=whole, made={**second.kernel.made, **first.kernel.made}),
        )
        for turn in (first, second):
            self._arrive(turn.arrived)
            self._release(turn)

    def _record_gradients(self, stage: Stage) -> None:
        """Turn gradients on for forward operators, as in eager mode, even if the operators run a second time.

        Some kernels depend on the gradient mode.
        """
        enabled = stage in (Stage.UPLOAD, Stage.FORWARD)
        if self._step.kind is StepKind.TRAINING and enabled != self._records:
            self._records = enabled
            self._emit(f"set_grad({enabled})")

    def _joint_updates(self) -> dict[int, range]:
        groups = joint_updates(self._step, self._plan, self._timeline, self._wiring, self._gated)
        return {group.start: group for group in groups}

    def _update_together(self, positions: range) -> None:
        """Make the updates at these positions by one call. What each of them releases is released after the call."""
        turns = [self._wiring.turns[k] for k in positions]
        self._record_gradients(turns[0].step.kernel.stage)
        for turn in turns:
            for view in turn.views:
                self._view(view)
        lines = [turn.kernel for turn in turns if turn.kernel is not None]
        lists = zip(*(line.call.args for line in lines), strict=True)
        arguments = [self._joined(parts, lines) for parts in lists]
        arguments += [f"{key}={self._text(value, lines[0])}" for key, value in lines[0].call.kwargs.items()]
        self._emit(f"f{turns[0].operator}({', '.join(arguments)})")
        for turn in turns:
            self._release(turn)
        self._move(sum(self._timeline.boundaries[k].freed_bytes for k in positions[1:]), 0)

    def _joined(self, parts: Sequence[Sequence[Any]], lines: Sequence[ProgramLine]) -> str:
        """Return the text of the lists of one argument, joined to one list."""
        items = [self._text(item, line) for part, line in zip(parts, lines, strict=True) for item in part]
        return f"[{', '.join(items)}]"

    def _view(self, line: ProgramLine) -> None:
        self._call(f"w{self._view_number[id(line.call)]}", line)

    def _upload(self, turn: ProgramStep) -> None:
        """Copy the batch to the memory that the operator has allocated, and wait for the copy.

        The plan's predicted time includes the copy.
        """
        (name,) = turn.step.kernel.makes
        for tensor, local in turn.arrived:
            if self._on_host:
                self._emit(f"{local}.copy_(ready[{name!r}])")
                continue
            self._emit(f"stall += wait(upload({local}.data_ptr(), {name!r}, {self._size(tensor)}))")
            if self._uploads_next and name in INPUTS:
                self._emit(f"take_next({name!r}, {local})")

    def _call(self, function: str, line: ProgramLine) -> None:
        call = line.call
        arguments = [self._text(arg, line) for arg in call.args]
        arguments += [f"{key}={self._text(arg, line)}" for key, arg in call.kwargs.items()]
        text = f"{function}({', '.join(arguments)})"
        self._live.update(dict.fromkeys(line.made.values()))
        if not line.made:
            self._emit(text)
        elif call.single:
            self._emit(f"{next(iter(line.made.values()))} = {text}")
        else:
            results = ", ".join("_" if name is None else line.made.get(name, "_") for name in call.results)
            self._emit(f"{results}{',' if len(call.results) == 1 else ''} = {text}")

    def _text(self, item: Any, line: ProgramLine) -> str:
        if isinstance(item, Ref):
            return line.arguments[item.name]
        if isinstance(item, Runtime):
            return "rate" if item is Runtime.LEARNING_RATE else "first"
        if item is None or isinstance(item, bool | int):
            return repr(item)
        if isinstance(item, list | tuple) and any(True for _ in refs(item)):
            return f"[{', '.join(self._text(part, line) for part in item)}]"
        return self._constants.name_of(item)

    def _release(self, turn: ProgramStep) -> None:
        if self._plan.release:
            self._delete([*turn.dying, *(f"s{t}" for t in turn.gone if t in self._moved)])

    def _delete(self, names: Sequence[str]) -> None:
        if names:
            self._emit(f"del {', '.join(names)}")
            for name in names:
                self._live.pop(name)

    def _leave(self, boundary: Boundary) -> None:
        for gap in boundary.outs:
            if gap.swap.copies:
                copy = f"copy_out(h{gap.tensor}, s{gap.tensor}.data_ptr(), {self._size(gap.tensor)})"
                self._emit(f"{self._ticket[id(gap)]} = {copy}")

    def _close(self) -> None:
        self._delete(tuple(self._live))
        if self._timed:
            self._emit("ended()")  # the last operator's end, which only recorded iterations note
        self._locate(len(self._wiring.turns))
        self._boundary(len(self._wiring.turns))
        self._clock(len(self._wiring.turns))
        for gap in (*self._timeline.outgoing, *self._timeline.incoming):
            self._emit(f"carried[{self._carried[id(gap)]}] = {self._ticket[id(gap)]}")
        self._emit("return stall")


def _gaps(timeline: Timeline) -> Iterator[UnrolledSwap]:
    for boundary in timeline.boundaries:
        yield from boundary.outs


def views_of(step: CapturedStep) -> tuple[Call, ...]:
    """Return every call that makes views, each once."""
    return tuple({id(call): call for call in step.views.values()}.values())
