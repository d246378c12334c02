"""Foretells exchanges from a rehearsal, in which ranks make the exchanges of their step between other computations.

The times of single transfers lack what an exchange costs a step beside them: threads that wake up late, messages that
meet a computation, and hand-overs. A rehearsal shows how much all exchanges together add to an iteration. The
simulator of ranks says how much they would add if each took a multiple of its foretold time. The multiple with which
both agree is taken. So what is foretold for a plan still depends on what is beside each exchange under that plan.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from indb_tensile.scheduler.timing.simulate_ranks import RankRun, simulate_ranks

# A rehearsal shows little of exchanges that are hidden behind operators: their time could be anything.
LEAST, MOST = 0.25, 4.0
_HALVINGS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """What exchanges added to an iteration, the mean of all ranks in nanoseconds, and its standard error."""

    added_ns: int
    error_ns: int


def exchange_stretch(ranks: Sequence[RankRun], rehearsal: Rehearsal) -> float:
    """Return the multiple of their foretold times with which exchanges add to an iteration what they have added.

    It is between `LEAST` and `MOST`. A difference of the rehearsal from the forecast that is not much above its
    standard error counts in part only, and one below it not at all: long iterations vary by more than short exchanges
    take.
    """
    foretold_ns = _iteration_ns(ranks, 1.0)
    more_ns = _iteration_ns(ranks, 0.0) + rehearsal.added_ns - foretold_ns
    if abs(more_ns) <= rehearsal.error_ns:
        return 1.0
    target_ns = foretold_ns + more_ns * (1 - (rehearsal.error_ns / more_ns) ** 2)
    low, high = LEAST, MOST
    if _iteration_ns(ranks, low) >= target_ns:
        return low
    if _iteration_ns(ranks, high) <= target_ns:
        return high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if _iteration_ns(ranks, middle) < target_ns:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _iteration_ns(ranks: Sequence[RankRun], multiple: float) -> int:
    stretched = [
        replace(rank, exchanges=tuple(time.stretched(multiple) for time in rank.exchanges)) for rank in ranks
    ]
    return max(own.forecast.iteration_ns for own in simulate_ranks(stretched))
