"""Compiles a captured step and a plan into one straight-line function.

Values are local variables, every operator is one call, a release is a `del`, and the plan's actions at a boundary
stand between two calls. There is no look-up, lock or interpreter loop per operator. The timed variant has the same
lines with a clock reading at each boundary. On a device whose memory is the host's, the other variant joins updates
between which nothing happens (`joint_updates.py`).
"""

import linecache
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter_ns
from typing import Any

import torch

from indb_tensile.device.device import Clock, Device, HostBuffer, Ticket
from indb_tensile.executor.capture.aten import entry_point
from indb_tensile.executor.capture.record import Call, Ref, Runtime, with_leaves
from indb_tensile.executor.capture.step_capture import CapturedStep, StepKind
from indb_tensile.executor.run.exchange_plan import check_exchanges
from indb_tensile.executor.run.joint_normalisations import joint_normalisations
from indb_tensile.executor.run.next_uploads import NO_NEXT_UPLOADS, NextUploads, next_uploads
from indb_tensile.executor.run.program_constants import ProgramConstants
from indb_tensile.executor.run.program_functions import cut, movable, upload
from indb_tensile.executor.run.program_writer import ProgramWriter, views_of
from indb_tensile.executor.run.state import State
from indb_tensile.executor.run.timeline import Timeline, unroll
from indb_tensile.executor.run.trainer_lanes import Lanes
from indb_tensile.executor.run.upload_ahead import NextBatch
from indb_tensile.executor.run.variable_assignment import (
    ProgramLine,
    VariableAssignment,
    assign_variables,
)
from indb_tensile.scheduler.graph import TensorId
from indb_tensile.scheduler.pieces import Piece, cuts_of
from indb_tensile.scheduler.plan import Plan
from indb_tensile.scheduler.plan_cache import PlanCache

Iterate = Callable[..., int]


@dataclass(slots=True, kw_only=True)
class Program:
    """One step under one plan. `plain` and `timed` exist once the program is bound to a state.

    `cuts` are the pieces of each storage that the program accesses. `idle` are persistent tensors of the plan's graph
    that it never accesses. `validated` and `invalidated` are the host copies that an iteration makes valid and stale.
    `buffers` are the host buffers of tensors that do not persist, `staging` those of constants. `sources` are the
    buffers from which the next iteration uploads the batch and constants. If the device's memory is the host's, the
    tensors in `ready` replace `sources`, and an upload writes them to the device's memory. At the boundaries of
    `uploads_next` the iteration can begin to upload the next batch (upload_ahead.py). At the positions `joint` a
    split normalisation runs together with the next position (joint_normalisations.py).
    """

    step: CapturedStep
    plan: Plan
    timeline: Timeline
    wiring: VariableAssignment
    cuts: Mapping[TensorId, tuple[Piece, ...]]
    idle: frozenset[TensorId]
    validated: frozenset[Piece]
    invalidated: frozenset[Piece]
    plain_lines: tuple[str, ...]
    timed_lines: tuple[str, ...]
    constants: tuple[Any, ...]
    uploads_next: NextUploads = NO_NEXT_UPLOADS
    joint: frozenset[int] = frozenset()
    buffers: dict[TensorId, HostBuffer] = field(default_factory=dict)
    staging: dict[str, HostBuffer] = field(default_factory=dict)
    sources: dict[str, HostBuffer] = field(default_factory=dict)
    ready: dict[str, torch.Tensor] = field(default_factory=dict)
    plain: Iterate | None = None
    timed: Iterate | None = None
    cache: PlanCache = field(default_factory=PlanCache)  # of what follows from the graph and the plan

    @property
    def source(self) -> str:
        """The plain variant as Python text."""
        return "\n".join(self.plain_lines)

    def pieces(self, tensors: Iterable[TensorId]) -> frozenset[Piece]:
        """Return the pieces of the state that these tensors of the plan's graph are.

        Tensors that do not persist are ignored.
        """
        return _pieces(self.wiring, tensors)


def _pieces(wiring: VariableAssignment, tensors: Iterable[TensorId]) -> frozenset[Piece]:
    return frozenset(wiring.pieces[t] for t in tensors if t in wiring.pieces)


def compile_program(
    step: CapturedStep,
    plan: Plan,
    *,
    located: bool = False,
    on_host: bool = False,
    gated: frozenset[int] = frozenset(),
) -> Program:
    """Write both variants. Nothing is allocated. With `located`, the program reports its position while it runs.

    `on_host` is for a device whose memory is the host's: uploads are written there directly. At the boundaries
    `gated` the program passes the gates of a round, after it has given memory back and before it takes memory. Raises
    InvariantError if the plan breaks its own rules, GraphError if its order would change a result.
    """
    cache = PlanCache()
    timeline = unroll(step.graph, plan, cache)
    wiring = assign_variables(step, plan, timeline.home, cache)
    check_exchanges(plan, wiring.graph)
    joint = joint_normalisations(step, timeline, wiring, gated)
    constants = ProgramConstants()
    ahead = not (on_host or gated) and step.kind is StepKind.TRAINING
    uploads_next = next_uploads(step.graph, plan, cache) if ahead else NO_NEXT_UPLOADS
    plain, timed = (
        ProgramWriter(
            step,
            plan,
            timeline,
            wiring,
            constants,
            timed=timed,
            located=located,
            on_host=on_host,
            gated=gated,
            uploads_next=uploads_next.boundaries,
            joint_normalisations=joint,
        )
        for timed in (False, True)
    )
    plain_lines, timed_lines = plain.write(), timed.write()
    cuts = cuts_of(wiring.graph, wiring.pieces)
    return Program(
        step=step,
        plan=plan,
        timeline=timeline,
        wiring=wiring,
        cuts=cuts,
        idle=frozenset(tensor for tensor, piece in wiring.pieces.items() if piece.tensor not in cuts),
        validated=_pieces(wiring, timeline.validated),
        invalidated=_pieces(wiring, timeline.invalidated),
        plain_lines=plain_lines,
        timed_lines=timed_lines,
        constants=constants.values(),
        uploads_next=uploads_next,
        joint=joint,
        cache=cache,
    )


def bind(
    program: Program,
    state: State,
    device: Device,
    lanes: Lanes,
    clock: Clock = perf_counter_ns,
    position: memoryview | None = None,
    *,
    rate_in_memory: bool = False,
    note_read: Callable[[HostBuffer, Ticket], None] | None = None,
    gate: Callable[[int], int] | None = None,
    next_batch: NextBatch | None = None,
) -> None:
    """Give the program its tensors, its device, and the word to which it writes its position.

    `note_read` is called with each upload, and `gate` at each gated boundary; it returns the nanoseconds waited. A
    batch that `next_batch` has uploaded ahead is not uploaded again. The state must be at the program's home. With
    `rate_in_memory` iterations take the learning rate as a tensor of one number, which they read on the device.
    """
    wiring = program.wiring
    scope: dict[str, Any] = {
        "move": device.move,
        "wait": device.compute_after,
        "copy_out": lanes.copy_out,
        "copy_in": lanes.copy_in,
        "upload": partial(upload, program.sources, lanes, note_read, next_batch),
        "start_next": None if next_batch is None else next_batch.start,
        "take_next": None if next_batch is None else next_batch.take,
        "clock": clock,
        "at": position,
        "ready": program.ready,
        "set_grad": torch.set_grad_enabled,
        "movable": movable,
        "cut": cut,
        "gate": gate,
        "ended": int,  # does nothing; a builtin costs the least
    }
    scope |= {f"c{i}": constant for i, constant in enumerate(program.constants)}
    scope |= {
        f"f{i}": entry_point(_with_tensor_rate(run.kernel) if rate_in_memory else run.kernel.target)
        for i, run in enumerate(program.step.steps)
    }
    scope |= {f"w{i}": entry_point(call.target) for i, call in enumerate(views_of(program.step))}
    scope |= {local: state.tensors[name] for name, local in wiring.fixed.items()}
    scope |= {local: state.flat(piece) for local, piece in wiring.cut.items()}
    scope |= {f"s{i}": state.storage(piece) for i, piece in wiring.pieces.items()}
    scope |= {f"h{i}": state.host[piece] for i, piece in wiring.pieces.items() if piece in state.host}
    scope |= {f"h{i}": buffer for i, buffer in program.buffers.items()}
    for line in wiring.hoisted:
        _hoist(line, scope)
    program.plain = _compiled(program.plain_lines, scope, "plain")
    program.timed = _compiled(program.timed_lines, scope, "timed")


def variant_of(program: Program, name: str, functions: Mapping[str, Any]) -> Iterate:
    """Return the timed variant of a bound program with other functions of these names in its scope."""
    assert program.timed is not None
    return _compiled(program.timed_lines, program.timed.__globals__ | dict(functions), name)


def _with_tensor_rate(call: Call) -> Any:
    """Return the operator, in the overload that takes the learning rate as a tensor if it takes a learning rate."""
    target: Any = call.target
    return target.overloadpacket.tensor_lr if Runtime.LEARNING_RATE in call.kwargs.values() else target


def _hoist(line: ProgramLine, scope: dict[str, Any]) -> None:
    """Make views of persistent tensors at home once, before the iterations. They stay valid when a storage moves."""

    def resolve(item: Any) -> Any:
        return scope[line.arguments[item.name]] if isinstance(item, Ref) else item

    call = line.call
    made = call.target(*with_leaves(call.args, resolve), **with_leaves(call.kwargs, resolve))
    for name, tensor in zip(call.results, [made] if call.single else made, strict=True):
        if name is not None:
            scope[line.made[name]] = tensor


def _compiled(lines: tuple[str, ...], scope: dict[str, Any], variant: str) -> Iterate:
    text = "\n".join(lines) + "\n"
    filename = f"<step program {id(scope):x} {variant}>"
    # A traceback then shows the line of the operator that failed.
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    local: dict[str, Any] = {}
    exec(compile(text, filename, "exec"), scope, local)  # noqa: S102 - ProgramWriter wrote the text
    iterate: Iterate = local["iterate"]
    weakref.finalize(iterate, linecache.cache.pop, filename, None)  # entries of old plans must not accumulate
    return iterate


def empty_carried(program: Program) -> list[Ticket | None]:
    """Return an empty list for the tickets of copies that continue from one iteration into the next."""
    return [None] * (len(program.timeline.outgoing) + len(program.timeline.incoming))
