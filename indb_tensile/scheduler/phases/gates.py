"""Gates: what operators of several jobs wait for, so that a schedule's budget is kept whatever time they take.

Phases between jobs hold only where they are enforced, and operators do not take exactly their time. Each operator
that takes more memory than the one before it therefore waits for the other jobs to be where the schedule has them,
or as far back as they hold no more than the budget leaves. That keeps the budget under any timing: of the last such
operators of all jobs take the one that the schedule has last. When it passed its gate the others were where the
schedule has them, or further, or held no more than there and what was left over; and since then they only gave
memory back. Nobody waits in a circle, since gates look back in the schedule. tests/scheduler/test_gates.py runs jobs
in arbitrary orders against them.

A gate is left out where others imply it: who waited for a job knows what that job had waited for itself.

Zico (section 5.3) delays iterations as a whole and relies on their times; this is ours. judges/cuts.py is the judge.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np

from indb_tensile.scheduler.phases.cycle import Cycle, Ints, curve
from indb_tensile.scheduler.timing.schedule import Gate


@dataclass(frozen=True, slots=True)
class Round:
    """What repeats: from `first_ns` on for `length_ns` these iterations (start, job) start, in order of time."""

    started: tuple[tuple[int, int], ...]
    first_ns: int
    length_ns: int


def unrolled(planned: Round, longest_ns: int) -> list[tuple[int, int]]:
    """The starts of the round, of as many before it as reach into it, and of as many that it reaches into."""
    reach = -(-longest_ns // planned.length_ns)
    return [(s + k * planned.length_ns, j) for k in range(-reach, reach + 1) for s, j in planned.started]


def gates(cycles: Sequence[Cycle], planned: Round, budget_bytes: int) -> tuple[Gate, ...]:
    """The gates that this schedule needs, without those that earlier ones in the round imply."""
    laid = _Gates(cycles, planned, budget_bytes)
    jobs = range(len(cycles))
    timed = [gate for job in jobs for other in jobs if other != job for gate in laid.between(job, other)]
    needed = [gate for _, _, gate in sorted(timed, key=_in_order)]
    counts = [own.stops[-1] for own in cycles]
    once, known = _Known(counts), _Known(counts)
    for gate in [gate for gate in needed if once.learns(gate)]:
        known.learns(laid.before(gate), most=0)  # in the round before, what that tells of rounds before this one
    return tuple(sorted(gate for gate in needed if known.learns(gate)))


_NOTHING = -(2**62)
_Timed = tuple[int, int, Gate]  # when the operator is to start, when the other one is to have ended, the gate


def _in_order(timed: _Timed) -> tuple[int, Gate, int]:
    """As a schedule passes gates; of one operator's the latest first, which may imply the others."""
    starts_ns, ends_ns, gate = timed
    return starts_ns, replace(gate, after_job=0, after_iteration=0, after_operator=0), -ends_ns


class _Known:
    """What each job knows of how far the others have come, from its own gates and what they knew themselves."""

    def __init__(self, counts: Sequence[int]) -> None:
        self._counts = counts
        self._passed: list[list[int | None]] = [[None] * len(counts) for _ in counts]
        self._at: list[list[int]] = [[] for _ in counts]  # by job, at which of its operators it learnt something
        self._then: list[list[list[int | None]]] = [[] for _ in counts]  # and what it knew then

    def learns(self, gate: Gate, most: int | None = None) -> bool:
        """Whether this gate tells its job anything; it knows it from then on, but nothing after boundary `most`."""
        other, mine = gate.after_job, self._passed[gate.job]
        number = gate.after_iteration * self._counts[other] + gate.after_operator
        number = number if most is None else min(number, most - 1)
        if _further(mine[other], number + 1) == mine[other]:
            return False
        place = bisect_right(self._at[other], number)
        told = self._then[other][place - 1] if place else [None] * len(mine)
        mine[:] = [a if b is None else _further(a, b) for a, b in zip(mine, told, strict=True)]
        mine[other] = _further(mine[other], number + 1)
        self._at[gate.job].append(gate.iteration * self._counts[gate.job] + gate.operator)
        self._then[gate.job].append(list(mine))
        return True


def _further(known: int | None, number: int) -> int:
    return number if known is None else max(known, number)


class _Gates:
    """One schedule's jobs, by stretch.

    A job's stretches are numbered through from the round's first iteration on, negative ones before it.
    """

    def __init__(self, cycles: Sequence[Cycle], planned: Round, budget_bytes: int) -> None:
        self._cycles = cycles
        self._planned = planned
        self._budget = budget_bytes
        starts = unrolled(planned, max(c.period_ns for c in cycles))
        self._together = curve(cycles, starts)
        self._starts = [np.array([s for s, j in starts if j == job], dtype=np.int64) for job in range(len(cycles))]
        self._before = [int(np.searchsorted(s, planned.first_ns)) for s in self._starts]  # of earlier rounds
        self._each = [sum(j == job for _, j in planned.started) for job in range(len(cycles))]
        self._offset = [np.array([0, *accumulate(c.duration_ns)], dtype=np.int64) for c in cycles]

    def between(self, job: int, other: int) -> list[_Timed]:
        """What this job waits for in the other one, at as few of its operators as will do.

        A gate may as well stand earlier, or wait for more, as long as that is over by then in the schedule: so one
        gate serves for all that follow it whose waits are over when it is passed.
        """
        needed = self._needed(job, other)
        found: list[_Timed] = []
        first = 0
        for last in range(len(needed)):
            starts_ns = needed[first][0]
            if last + 1 == len(needed) or needed[last + 1][1] > starts_ns:
                found.append((starts_ns, needed[last][1], self._gate(job, other, needed[first][2], needed[last][3])))
                first = last + 1
        return found

    def _needed(self, job: int, other: int) -> list[tuple[int, int, int, int]]:
        """Each stretch of the job in a round before which more of the other one has to have ended than before.

        As when it starts, when what it waits for has ended, its number and that one's, both counted on.
        """
        raises = self._raises(job)
        starts = self._starts[job][self._before[job] : self._before[job] + self._each[job]]
        times_ns = (starts[:, None] + self._offset[job][raises]).ravel()
        mine = (np.arange(len(starts))[:, None] * len(self._cycles[job].load_bytes) + raises).ravel()
        planned, allowed = self._positions(other, times_ns)
        held = np.array(self._cycles[other].load_bytes, dtype=np.int64)
        back = planned[:, None] - 1 - np.arange(len(held))  # whatever is further back has a later like
        over = held[back % len(held)] > allowed[:, None]
        awaited = np.where(over.any(axis=1), planned - 1 - over.argmax(axis=1), _NOTHING)
        new = awaited > np.maximum.accumulate(np.append(_NOTHING, awaited))[:-1]
        rows = zip(times_ns[new], self._ends_ns(other, awaited[new]), mine[new], awaited[new], strict=True)
        return [(int(a), int(b), int(c), int(d)) for a, b, c, d in rows]

    def _gate(self, job: int, other: int, number: int, awaited: int) -> Gate:
        """Before a stretch's first operator, for the last one of another."""
        own, its = self._cycles[job].stops, self._cycles[other].stops
        iteration, stretch = divmod(number, len(own))
        after_iteration, after = divmod(awaited, len(its))
        return Gate(
            job=job,
            iteration=iteration,
            operator=own[stretch - 1] if stretch else 0,
            after_job=other,
            after_iteration=after_iteration,
            after_operator=its[after] - 1,
        )

    def before(self, gate: Gate) -> Gate:
        """The same gate in the round before."""
        return replace(
            gate,
            iteration=gate.iteration - self._each[gate.job],
            after_iteration=gate.after_iteration - self._each[gate.after_job],
        )

    def _ends_ns(self, job: int, numbers: Ints) -> Ints:
        """When these stretches end."""
        iteration, stretch = np.divmod(numbers, len(self._cycles[job].load_bytes))
        rounds, place = np.divmod(iteration, self._each[job])
        starts = self._starts[job][self._before[job] + place] + rounds * self._planned.length_ns
        return np.asarray(starts + self._offset[job][stretch + 1], dtype=np.int64)

    def _raises(self, job: int) -> Ints:
        """The stretches during which the job holds more than during the one before."""
        own = self._cycles[job]
        held = np.array([own.idle_bytes, *own.load_bytes], dtype=np.int64)
        return np.flatnonzero(np.diff(held) > 0)

    def _positions(self, other: int, times_ns: Ints) -> tuple[Ints, Ints]:
        """How many of the other job's stretches have ended at these times, and the most that it may hold then."""
        own, starts = self._cycles[other], self._starts[other]
        count = len(own.load_bytes)
        iteration = np.searchsorted(starts, times_ns, side="right") - 1
        operator = np.searchsorted(self._offset[other], times_ns - starts[iteration], side="right") - 1
        operator = np.minimum(operator, count)  # past its end it is idle
        held = np.array([*own.load_bytes, own.idle_bytes], dtype=np.int64)[operator]
        left = self._budget - self._together.at(times_ns)
        number = (iteration - self._before[other]) * count + operator
        return number, held + left // (len(self._cycles) - 1)
