"""Contenders timed in turns: on a machine whose speed changes by the second, only what ran side by side compares.

In every round everyone starts from the same parameters, draws the same random numbers, warms up by one iteration and
is timed for some more. A ratio is taken within a round and the median over the rounds; so a round that something
disturbed decides nothing. The two that a question of 1 % is about meet in many more rounds, alternating who is first:
what the first of two leaves behind, in caches or in the clock, is then no one's advantage.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

import torch

from indb_tensile.bench.rivals import Contender
from indb_tensile.bench.trial import same_bits


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How long is measured: rounds of all, then rounds of two, each of turns of at least this long."""

    rounds: int = 9  # of all, at most; at least three, whatever time they take
    all_s: float = 60.0  # for them
    duels: int = 41  # of two, at most; at least nine
    duels_s: float = 40.0
    turn_s: float = 1.0


@dataclass(slots=True)
class Entry:
    """One contender, and what was seen of it: by round, and by duel."""

    contender: Contender
    peak_bytes: int
    reserved_bytes: int | None
    step_ns: list[float] = field(default_factory=list)
    duel_ns: list[float] = field(default_factory=list)
    exact: list[bool] = field(default_factory=list)
    buffers_exact: list[bool] = field(default_factory=list)

    def over(self, other: "Entry") -> float:
        """Its time over another's: the median of the ratios of duels, where both met in any, else of rounds."""
        met = bool(self.duel_ns and other.duel_ns)
        mine, theirs = (one.duel_ns if met else one.step_ns for one in (self, other))
        return median(a / b for a, b in zip(mine, theirs, strict=True))


def take_turns(
    entries: Sequence[Entry], trained: frozenset[str], pace: Pace, finished: Callable[[Entry], None]
) -> None:
    """Rounds of all, in their order, the first of whom says what is exact; `finished` is told of each turn."""
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


def duel(one: Entry, other: Entry, pace: Pace) -> None:
    """Rounds of two, each the first in every other one."""
    started_s = time.perf_counter()
    iterations = _iterations(one, pace.turn_s)
    for done in range(pace.duels):
        if done >= min(9, pace.duels) and time.perf_counter() - started_s > pace.duels_s:
            break
        for entry in (one, other) if done % 2 else (other, one):
            entry.duel_ns.append(entry.contender.turn(iterations))


def _shorter(pace: Pace, count: int) -> float:
    """A turn's seconds where so many take theirs, so that there is time for all rounds."""
    return min(pace.turn_s, pace.all_s / (pace.rounds * count) / 2)


def _iterations(entry: Entry, turn_s: float) -> int:
    """How many a turn takes, at the pace of this one."""
    return max(1, round(turn_s * 1e9 / entry.contender.turn(1)))
