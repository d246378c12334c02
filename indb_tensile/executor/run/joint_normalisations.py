"""Finds the split batch normalisations that a program makes by one call, since nothing happens between their parts.

The whole normalisation then runs in place of the second part, and nothing in place of the first. So what the first
part makes exists only from the second part on.
"""

from collections.abc import Collection, Sequence
from itertools import pairwise

from indb_tensile.executor.capture.normalise_again import is_split
from indb_tensile.executor.capture.step_capture import CapturedStep
from indb_tensile.executor.run.timeline import Timeline
from indb_tensile.executor.run.variable_assignment import ProgramStep, VariableAssignment

# The part of a whole normalisation's time that counts as its second operator's. That took 0.11 of it with values in a
# cache, and 0.18 of it with others (capture/normalise_again.py).
_SECOND_SHARE = 0.15


def joint_normalisations(
    step: CapturedStep,
    timeline: Timeline,
    wiring: VariableAssignment,
    gated: Collection[int] = frozenset(),
) -> frozenset[int]:
    """Return the positions of first parts that run together with the second part at the next position."""
    joint: set[int] = set()
    done: set[int] = set()
    for k, (turn, following) in enumerate(pairwise(wiring.turns)):
        first, second = turn.operator, following.operator
        fresh = first not in done and second not in done
        done.add(first)
        if not fresh or second != first + 1 or not is_split(step.steps[first].kernel, step.steps[second].kernel):
            continue
        before, after = timeline.boundaries[k], timeline.boundaries[k + 1]
        moves = before.outs or after.frees or after.ins or after.needs or k + 1 in gated
        if not moves and not _makes_more(turn, following):
            joint.add(k)
    return frozenset(joint)


def _makes_more(first: ProgramStep, second: ProgramStep) -> bool:
    """Return whether the program makes views, returns values or frees tensors between the parts."""
    return bool(first.after or first.returns or first.gone or second.views)


def shared_times(taken_ns: Sequence[int], joint: Collection[int]) -> list[int]:
    """Divide the time of each whole normalisation between its parts. `taken_ns` has the time of each position."""
    divided = list(taken_ns)
    for k in joint:
        whole_ns = divided[k] + divided[k + 1]
        divided[k + 1] = round(_SECOND_SHARE * whole_ns)
        divided[k] = whole_ns - divided[k + 1]
    return divided
