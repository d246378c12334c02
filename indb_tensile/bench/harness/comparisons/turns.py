"""Times contenders in turns. On a machine whose speed changes by the second, only adjacent runs are comparable.

In every round each contender starts from the same parameters, draws the same random numbers, warms up by one
iteration and is timed for some more. A ratio is taken within a round, and the result is the median over the rounds,
so one disturbed round decides nothing. Two contenders whose times differ by about 1 % meet in many more rounds and
alternate in going first, so that neither profits from the state in which the other leaves caches and clock.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

import torch

from indb_tensile.bench.harness.comparisons.rivals import Contender
from indb_tensile.bench.harness.execution.trial import same_bits


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnLimits:
    """Duration of the measurement: rounds of all contenders, then rounds of two, with turns of at least `turn_s`."""

    rounds: int = 9  # most rounds of all contenders; at least three run, however long they take
    all_s: float = 60.0  # time for these rounds
    duels: int = 41  # most rounds of two contenders; at least nine run
    duels_s: float = 40.0
    turn_s: float = 1.0


@dataclass(slots=True)
class Entry:
    """One contender and its measurements, by round of all contenders and by duel."""

    contender: Contender
    peak_bytes: int
    reserved_bytes: int | None
    step_ns: list[float] = field(default_factory=list)
    duel_ns: list[float] = field(default_factory=list)
    exact: list[bool] = field(default_factory=list)
    buffers_exact: list[bool] = field(default_factory=list)

    def over(self, other: "Entry") -> float:
        """Return this time over the other's: the median ratio of duels if both have any, else of rounds."""
        met = bool(self.duel_ns and other.duel_ns)
        mine, theirs = (entry.duel_ns if met else entry.step_ns for entry in (self, other))
        return median(a / b for a, b in zip(mine, theirs, strict=True))


def take_turns(
    entries: Sequence[Entry], trained: frozenset[str], pace: TurnLimits, finished: Callable[[Entry], None]
) -> None:
    """Run rounds of all contenders in order. Results are exact if they equal the first contender's.

    Calls `finished` after each turn.
    """
    started_s = time.perf_counter()
    iterations = 0
    for done in range(pace.rounds):
        if done >= min(3, pace.rounds) and time.perf_counter() - started_s > pace.all_s * done / (done + 1):
            break
        reference: dict[str, torch.Tensor] = {}
        for entry in entries:
            if not iterations:
                iterations = _iterations(entry, _shorter(pace, len(entries)))
            entry.step_ns.append(entry.contender.turn(iterations))
            finished(entry)
            values = entry.contender.values()
            reference = reference or values
            alike = {name: same_bits(values[name], tensor) for name, tensor in reference.items()}
            entry.exact.append(all(alike[name] for name in trained))
            entry.buffers_exact.append(all(alike.values()))


def duel(first: Entry, other: Entry, pace: TurnLimits) -> None:
    """Run rounds of two contenders. Each goes first in every other round."""
    started_s = time.perf_counter()
    iterations = _iterations(first, pace.turn_s)
    for done in range(pace.duels):
        if done >= min(9, pace.duels) and time.perf_counter() - started_s > pace.duels_s:
            break
        for entry in (first, other) if done % 2 else (other, first):
            entry.duel_ns.append(entry.contender.turn(iterations))


def _shorter(pace: TurnLimits, count: int) -> float:
    """Return the seconds of a turn that leave time for all rounds of `count` contenders."""
    return min(pace.turn_s, pace.all_s / (pace.rounds * count) / 2)


def _iterations(entry: Entry, turn_s: float) -> int:
    """Return the number of iterations of a turn, from the time of one iteration of this contender."""
    return max(1, round(turn_s * 1e9 / entry.contender.turn(1)))
