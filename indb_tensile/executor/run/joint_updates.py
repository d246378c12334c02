"""Finds updates of several parameters that a program makes by one call, since nothing happens between them.

torch's fused optimizers take lists of parameters and treat each one by itself, so one call gives the same bits as a
call for each parameter. In a small network a call costs more than the update that it makes.
"""

from collections.abc import Callable, Collection
from typing import Any

import torch

from indb_tensile.executor.capture.step_capture import CapturedStep
from indb_tensile.executor.run.timeline import Boundary, Timeline
from indb_tensile.executor.run.variable_assignment import ProgramStep, VariableAssignment
from indb_tensile.scheduler.plan import Plan

_aten = torch.ops.aten
_TAKE_LISTS: frozenset[Callable[..., Any]] = frozenset(
    getattr(_aten, f"_fused_{name}_").default for name in ("adam", "adamw", "sgd", "adagrad")
)


def joint_updates(
    step: CapturedStep,
    plan: Plan,
    timeline: Timeline,
    wiring: VariableAssignment,
    gated: Collection[int] = frozenset(),
) -> tuple[range, ...]:
    """Return the positions of updates that one call can make, for each such call.

    The updates differ in their tensors only, and allocate nothing. Between two of them the plan moves nothing and
    takes no memory. What it frees there can be freed after the call, because the call needs no memory.
    """
    parts = {k for k, execution in enumerate(plan.executions) if execution.parts > 1}
    groups: list[list[int]] = []
    for k, turn in enumerate(wiring.turns):
        if k in parts or not _is_plain_update(step, turn):
            continue
        before = groups[-1][-1] if groups else -2
        joins = before == k - 1 and k not in gated and _is_quiet(timeline.boundaries[k - 1], timeline.boundaries[k])
        if joins and _is_alike(wiring.turns[before], turn):
            groups[-1].append(k)
        else:
            groups.append([k])
    return tuple(range(group[0], group[-1] + 1) for group in groups if len(group) > 1)


def _is_plain_update(step: CapturedStep, turn: ProgramStep) -> bool:
    operator = step.graph.operators[turn.operator]
    made = turn.after or turn.returns or turn.arrived
    return turn.step.kernel.target in _TAKE_LISTS and not made and not operator.workspace_bytes


def _is_quiet(before: Boundary, boundary: Boundary) -> bool:
    """Return whether nothing but a release happens between two operators."""
    return not (before.outs or boundary.frees or boundary.taken_bytes or boundary.ins or boundary.needs)


def _is_alike(turn: ProgramStep, other: ProgramStep) -> bool:
    call, following = turn.step.kernel, other.step.kernel
    return call.target is following.target and call.kwargs == following.kwargs
