"""Divides processors among the jobs that want them, as Linux does: by weighted max-min fairness.

Whoever wants less than its part has what it wants, and the others divide the rest in proportion to their weights
(Bertsekas and Gallager, "Data Networks", 1992, for equal weights). The weight of a process follows from its niceness:
each level is worth a factor of 1.25 (`sched_prio_to_weight` in Linux's kernel/sched/core.c).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf, log2

from indb_tensile.errors import InvariantError

PREPARING = 1  # the niceness of a trainer that prepares its job
TRAINING = 5  # of a long training: one of niceness 1 gets 2.4 times the processor time of one of niceness 5
_LONG_S = 8.0  # a training that takes at least so long has the niceness TRAINING
_LEVELS = 2  # by which a training of half the time has a lower niceness: 1.56 times the processor time
_LEVEL_FACTOR = 1.25


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorLoad:
    """The weight that a job has where several want the same processors; 1: that of a job that is prepared."""

    weight: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.weight < inf:
            raise InvariantError(f"a job has the weight {self.weight}, not a positive one")


def weight_of(niceness: int) -> float:
    """Return the weight of a process of this niceness; 1 for that of a trainer that prepares its job."""
    return float(_LEVEL_FACTOR ** (PREPARING - niceness))


def training_niceness(left_s: float) -> int:
    """Return the niceness of a training that takes so long alone: the shorter, the lower."""
    if left_s >= _LONG_S:
        return TRAINING
    if left_s <= _LONG_S * 2 ** ((PREPARING - TRAINING) / _LEVELS):
        return PREPARING
    return TRAINING - ceil(_LEVELS * log2(_LONG_S / left_s))


def fair_parts(wants: Sequence[float], weights: Sequence[float], processors: float) -> list[float]:
    """Return how many of the processors each has that wants so many of them. Nobody has more than it wants.

    All wants and weights are positive.
    """
    parts = [0.0] * len(wants)
    rest, weight = processors, sum(weights)
    # Whoever wants least for its weight is the first to have all that it wants.
    for at in sorted(range(len(wants)), key=lambda k: (wants[k] / weights[k], k)):
        parts[at] = min(wants[at], max(0.0, rest) * weights[at] / weight if weight > 0 else 0.0)
        rest -= parts[at]
        weight -= weights[at]
    return parts
