"""The timetable of lane time: when each copy of a job's iteration runs, and where another copy fits.

TENSILE looks for a free interval of the channel that covers a swap event. Our lanes are first in, first out for the
copies of one job, so a copy inserted ahead of others delays them. A queue knows for each entry how late it may start
without delaying any copy behind it past its due time, and therefore knows exactly where another copy fits.

The iteration repeats, and so does the queue. It is unrolled over four periods: the first fills the lane as in steady
state, and the last two are needed because a gap may cross the end of the iteration.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

_PERIODS = np.arange(-1, 3, dtype=np.int64)
_NEVER = np.int64(2**62)


class Axis:
    """The times at which each operator of an iteration runs, with the stalls that the plan has accepted so far.

    Indices are unrolled: index `i` is operator or boundary `i % count` of iteration `i // count`.
    """

    def __init__(self, run_ns: Ints) -> None:
        self.count = len(run_ns)
        self._run_ns = run_ns
        self._late_out_ns = np.zeros_like(run_ns)
        self._late_in_ns = np.zeros_like(run_ns)
        self._lay()

    def stall(self, boundary: int, *, out_ns: int = 0, in_ns: int = 0) -> None:
        """Accept a wait at this boundary: for a late swap-out before memory is taken, for a late
        swap-in after that.
        """
        self._late_out_ns[boundary % self.count] += out_ns
        self._late_in_ns[boundary % self.count] += in_ns
        self._lay()

    def boundary(self, index: Ints | int) -> Ints:
        """Return the times at which memory is given back and taken at these boundaries."""
        return self._at(self._boundary, index)

    def begin(self, index: Ints | int) -> Ints:
        """Return the times at which these operators start."""
        return self._at(self._begin, index)

    def end(self, index: Ints | int) -> Ints:
        """Return the times at which these operators end."""
        return self._at(self._end, index)

    def first_boundary_from(self, time_ns: int) -> int:
        """Return the first boundary that is not before this time."""
        period, rest = divmod(time_ns, self.period_ns)
        return int(period * self.count + np.searchsorted(self._boundary, rest, side="left"))

    def last_boundary_by(self, times_ns: Ints) -> Ints:
        """Return the last boundary that is not after each time."""
        period, rest = np.divmod(times_ns, self.period_ns)
        boundaries = period * self.count + np.searchsorted(self._boundary, rest, side="right") - 1
        return np.asarray(boundaries, dtype=np.int64)

    def _lay(self) -> None:
        self._end = np.cumsum(self._run_ns + self._late_out_ns + self._late_in_ns)
        self._begin = self._end - self._run_ns
        self._boundary = self._begin - self._late_in_ns
        self.period_ns = int(self._end[-1])

    def _at(self, times_ns: Ints, index: Ints | int) -> Ints:
        period, operator = np.divmod(index, self.count)
        return np.asarray(times_ns[operator] + period * self.period_ns, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entries:
    """The copies of one iteration on one lane. A copy's key, boundary then tensor, gives its position
    in the queue.
    """

    owner: Ints
    key: Ints
    ready_ns: Ints
    duration_ns: Ints
    due_ns: Ints


@dataclass(frozen=True, slots=True)
class Place:
    """A position for a copy: its boundary, and the delay of the copy or of a copy behind it past its due time."""

    boundary: int
    late_ns: int


class Queue:
    """One lane in steady state. A queue is made anew when anything on the lane changes."""

    def __init__(self, axis: Axis, entries: Entries, ties: int) -> None:
        order = np.argsort(entries.key, kind="stable")
        self._axis = axis
        self._ties = ties
        self._count = len(order)
        self.owner = entries.owner[order]
        shift = np.repeat(_PERIODS, self._count)
        self._key = np.tile(entries.key[order], len(_PERIODS)) + shift * (axis.count * ties)
        ready = np.tile(entries.ready_ns[order], len(_PERIODS)) + shift * axis.period_ns
        duration = np.tile(entries.duration_ns[order], len(_PERIODS))
        due = np.tile(entries.due_ns[order], len(_PERIODS)) + shift * axis.period_ns
        work = np.cumsum(duration)
        before = work - duration
        done = work + np.maximum.accumulate(ready - before) if self._count else work
        latest = before + np.minimum.accumulate((due - work)[::-1])[::-1] if self._count else work
        # One more entry on each side, so that every position in the queue has a neighbour.
        self._key = np.concatenate(([-_NEVER], self._key, [_NEVER]))
        self._done = np.concatenate(([-_NEVER], done, [_NEVER]))
        self._latest = np.concatenate(([-_NEVER], latest, [_NEVER]))
        self.done_ns = done[self._count : 2 * self._count]
        self.late_ns = self.done_ns - due[self._count : 2 * self._count]

    def append(self, keys: Ints, ready_ns: Ints, duration_ns: Ints) -> tuple[Ints, Ints]:
        """Return when copies with these keys would each be done, and how late they would make the
        copies behind them.
        """
        at = np.searchsorted(self._key, keys)
        done = np.maximum(ready_ns, self._done[at - 1]) + duration_ns
        return done, np.maximum(0, done - self._latest[at])

    def latest(self, tie: int, duration_ns: int, first: int, last: int, due_ns: int) -> Place:
        """Return the latest boundary in first .. last from which a copy makes no copy late; else the position with
        the least delay.
        """
        ties = self._ties
        low, high = np.searchsorted(self._key, (first * ties + tie, last * ties + tie))
        at = np.arange(low, high + 1)
        lowest = np.maximum(first, (self._key[at - 1] - tie) // ties + 1)
        highest = np.minimum(last, -((tie - self._key[at]) // ties) - 1)
        limit = np.minimum(due_ns, self._latest[at])
        target = self._axis.last_boundary_by(limit - duration_ns)
        boundary = np.clip(target, lowest, highest)
        done = np.maximum(self._axis.boundary(boundary), self._done[at - 1]) + duration_ns
        late = np.where(lowest <= highest, np.maximum(0, done - limit), _NEVER)
        best = len(at) - 1 - int(np.argmin(late[::-1]))
        return Place(int(boundary[best]), int(late[best]))
