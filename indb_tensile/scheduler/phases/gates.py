"""Compute gates: the waits between operators of several jobs that keep a schedule's budget under any timing.

Phases between jobs hold only if they are enforced, because operators do not take exactly their predicted time. Each
operator that takes more memory than the operator before it therefore waits until the other jobs have reached their
positions in the schedule, or an earlier position from which on they occupy no more than the budget leaves. This keeps
the budget under any timing. Proof: of the latest such operators of all jobs take the one that is last in the
schedule. When it passed its gate, the other jobs were at their scheduled position, or further, or occupied no more
than there plus the rest of the budget. Since then they only gave memory back. No circular wait is possible, because
gates look back in the schedule. tests/scheduler/phases/test_gates.py runs jobs in arbitrary orders against the gates.

A gate is left out if other gates imply it: a job that waited for a second job has also waited for everything that the
second job had waited for.

Zico (section 5.3) delays iterations as a whole and relies on their times. The gates are our own addition.
judges/gate_check.py checks them.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np

from indb_tensile.scheduler.phases.load_cycle import Cycle, Ints, curve
from indb_tensile.scheduler.timing.schedule import Gate


@dataclass(frozen=True, slots=True)
class Round:
    """One repetition of a schedule: the iterations (start, job) from `first_ns` on for `length_ns`, in
    order of time.
    """

    started: tuple[tuple[int, int], ...]
    first_ns: int
    length_ns: int


def unrolled_starts(planned: Round, longest_ns: int) -> list[tuple[int, int]]:
    """Return the starts of the round, of the rounds before it that reach into it, and of the rounds after it into
    which it reaches.
    """
    reach = -(-longest_ns // planned.length_ns)
    return [(s + k * planned.length_ns, j) for k in range(-reach, reach + 1) for s, j in planned.started]


def gates(cycles: Sequence[Cycle], planned: Round, budget_bytes: int) -> tuple[Gate, ...]:
    """Return the gates that this schedule needs, without those that earlier gates in the round imply."""
    schedule_gates = _Gates(cycles, planned, budget_bytes)
    jobs = range(len(cycles))
    timed_gates = [
        gate for job in jobs for other in jobs if other != job for gate in schedule_gates.between(job, other)
    ]
    needed = [gate for _, _, gate in sorted(timed_gates, key=_in_order)]
    counts = [own.stops[-1] for own in cycles]
    once, known = _Known(counts), _Known(counts)
    for gate in [gate for gate in needed if once.learns(gate)]:
        known.learns(schedule_gates.before(gate), most=0)  # implied by the round before
    return tuple(sorted(gate for gate in needed if known.learns(gate)))


_NOTHING = -(2**62)
_Timed = tuple[int, int, Gate]  # scheduled start of the operator, scheduled end of the awaited operator, the gate


def _in_order(timed: _Timed) -> tuple[int, Gate, int]:
    """Return the sort key of the order in which a schedule passes gates. Of one operator's gates the latest comes
    first, because it may imply the others.
    """
    starts_ns, ends_ns, gate = timed
    return starts_ns, replace(gate, after_job=0, after_iteration=0, after_operator=0), -ends_ns


class _Known:
    """Track how far each job knows the other jobs to be, from its own gates and from what those jobs knew."""

    def __init__(self, counts: Sequence[int]) -> None:
        self._counts = counts
        self._passed: list[list[int | None]] = [[None] * len(counts) for _ in counts]
        self._at: list[list[int]] = [[] for _ in counts]  # by job: the operators at which its knowledge grew
        # by job: its knowledge from those operators on
        self._then: list[list[list[int | None]]] = [[] for _ in counts]

    def learns(self, gate: Gate, most: int | None = None) -> bool:
        """Record the gate, counting at most up to boundary `most`. Return whether the gate adds to its job's
        knowledge.
        """
        other, mine = gate.after_job, self._passed[gate.job]
        number = gate.after_iteration * self._counts[other] + gate.after_operator
        number = number if most is None else min(number, most - 1)
        if _further(mine[other], number + 1) == mine[other]:
            return False
        place = bisect_right(self._at[other], number)
        other_knowledge = self._then[other][place - 1] if place else [None] * len(mine)
        mine[:] = [a if b is None else _further(a, b) for a, b in zip(mine, other_knowledge, strict=True)]
        mine[other] = _further(mine[other], number + 1)
        self._at[gate.job].append(gate.iteration * self._counts[gate.job] + gate.operator)
        self._then[gate.job].append(list(mine))
        return True


def _further(known: int | None, number: int) -> int:
    return number if known is None else max(known, number)


class _Gates:
    """The gates of one schedule, computed by segment.

    A job's segments are numbered from the round's first iteration on. Segments before it have negative numbers.
    """

    def __init__(self, cycles: Sequence[Cycle], planned: Round, budget_bytes: int) -> None:
        self._cycles = cycles
        self._planned = planned
        self._budget = budget_bytes
        starts = unrolled_starts(planned, max(c.period_ns for c in cycles))
        self._together = curve(cycles, starts)
        self._starts = [np.array([s for s, j in starts if j == job], dtype=np.int64) for job in range(len(cycles))]
        # number of iterations of earlier rounds
        self._before = [int(np.searchsorted(s, planned.first_ns)) for s in self._starts]
        self._each = [sum(j == job for _, j in planned.started) for job in range(len(cycles))]
        self._offset = [np.array([0, *accumulate(c.duration_ns)], dtype=np.int64) for c in cycles]

    def between(self, job: int, other: int) -> list[_Timed]:
        """Return the gates at which this job waits for the other, at as few of its operators as possible.

        A gate may stand earlier, or wait for more, as long as the awaited operator has ended by then in the schedule.
        One gate therefore serves for all following gates whose waits have ended when it is passed.
        """
        needed = self._needed(job, other)
        timed_gates: list[_Timed] = []
        first = 0
        for last in range(len(needed)):
            starts_ns = needed[first][0]
            if last + 1 == len(needed) or needed[last + 1][1] > starts_ns:
                timed_gates.append(
                    (starts_ns, needed[last][1], self._gate(job, other, needed[first][2], needed[last][3]))
                )
                first = last + 1
        return timed_gates

    def _needed(self, job: int, other: int) -> list[tuple[int, int, int, int]]:
        """Return each segment of the job in a round before which more of the other job has to have ended than before.

        Each row holds: the segment's start, the end of the awaited segment, the segment's number, and the awaited
        segment's number.
        """
        raises = self._raises(job)
        starts = self._starts[job][self._before[job] : self._before[job] + self._each[job]]
        times_ns = (starts[:, None] + self._offset[job][raises]).ravel()
        mine = (np.arange(len(starts))[:, None] * len(self._cycles[job].load_bytes) + raises).ravel()
        planned, allowed = self._positions(other, times_ns)
        load_bytes = np.array(self._cycles[other].load_bytes, dtype=np.int64)
        # an earlier position repeats a later one, because loads are cyclic
        back = planned[:, None] - 1 - np.arange(len(load_bytes))
        over = load_bytes[back % len(load_bytes)] > allowed[:, None]
        awaited = np.where(over.any(axis=1), planned - 1 - over.argmax(axis=1), _NOTHING)
        new = awaited > np.maximum.accumulate(np.append(_NOTHING, awaited))[:-1]
        rows = zip(times_ns[new], self._ends_ns(other, awaited[new]), mine[new], awaited[new], strict=True)
        return [(int(a), int(b), int(c), int(d)) for a, b, c, d in rows]

    def _gate(self, job: int, other: int, number: int, awaited: int) -> Gate:
        """Return the gate before a segment's first operator that waits for the last operator of the
        awaited segment.
        """
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
        """Return the same gate in the round before."""
        return replace(
            gate,
            iteration=gate.iteration - self._each[gate.job],
            after_iteration=gate.after_iteration - self._each[gate.after_job],
        )

    def _ends_ns(self, job: int, numbers: Ints) -> Ints:
        """Return the times at which these segments end."""
        iteration, stretch = np.divmod(numbers, len(self._cycles[job].load_bytes))
        rounds, place = np.divmod(iteration, self._each[job])
        starts = self._starts[job][self._before[job] + place] + rounds * self._planned.length_ns
        return np.asarray(starts + self._offset[job][stretch + 1], dtype=np.int64)

    def _raises(self, job: int) -> Ints:
        """Return the segments during which the job's load is higher than in the segment before."""
        own = self._cycles[job]
        load_bytes = np.array([own.idle_bytes, *own.load_bytes], dtype=np.int64)
        return np.flatnonzero(np.diff(load_bytes) > 0)

    def _positions(self, other: int, times_ns: Ints) -> tuple[Ints, Ints]:
        """Return how many of the other job's segments have ended at these times, and its most allowed load then."""
        own, starts = self._cycles[other], self._starts[other]
        count = len(own.load_bytes)
        iteration = np.searchsorted(starts, times_ns, side="right") - 1
        operator = np.searchsorted(self._offset[other], times_ns - starts[iteration], side="right") - 1
        operator = np.minimum(operator, count)  # past its end the job is idle
        load_bytes = np.array([*own.load_bytes, own.idle_bytes], dtype=np.int64)[operator]
        left = self._budget - self._together.at(times_ns)
        number = (iteration - self._before[other]) * count + operator
        return number, load_bytes + left // (len(self._cycles) - 1)
