"""Foretell list schedules: jobs start in a fixed order, whenever a rule lets them join the jobs that run.

A choice foretells many lists that differ only in how many jobs they run side by side at most. So what one list has
found is kept for the others: the moments (foretell.py), and the jobs that start at a moment. A narrower list starts
the first few of the jobs that a wider list starts.

In a list with soon starts, the job that is next in the order starts so much before another one leaves as it starts up
for, if it fits beside the jobs that run without plans. So their plans stay as they are.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from indb_tensile.scheduler.completion.foretell import ScheduleMoment, ScheduleTree
from indb_tensile.scheduler.completion.set_forecasts import SetForecasts

# Whether a job may join a set of jobs. Both are bit masks.
JoinRule = Callable[[SetForecasts, int, int], bool]
# Whether a waiting job may start at a moment together with these other jobs, which may start.
OvertakingCheck = Callable[[ScheduleMoment, int, int], bool]


def any_may_start(moment: ScheduleMoment, jobs: int, job: int) -> bool:
    """Let every job start before earlier jobs."""
    return True


class FollowedList(NamedTuple):
    """A list schedule: the jobs that start at once, the one that starts soon at `soon_ns`, and the schedule's end.

    Jobs are bit masks. `soon` is 0 if no job starts between the schedule's start and the moment when a job leaves.
    """

    starts: int
    soon: int
    soon_ns: float
    end: ScheduleMoment


class StartLists:
    """The list schedules of one choice."""

    def __init__(
        self,
        tree: ScheduleTree,
        may_start: OvertakingCheck = any_may_start,
        may_start_soon: OvertakingCheck = any_may_start,
    ) -> None:
        self._tree = tree
        self._may_start = may_start
        self._may_start_soon = may_start_soon
        self._joined: dict[tuple[ScheduleMoment, tuple[int, ...], JoinRule], _Joined] = {}

    def follow(
        self, moment: ScheduleMoment, order: tuple[int, ...], joins: JoinRule, width: int, *, soon: bool = False
    ) -> FollowedList | None:
        """Return the schedule of this list; None if a set of jobs cannot run.

        The first of the jobs starts by any rule if no job runs. No job makes the set wider than `width`, except with
        `soon` for the time in which it starts up.
        """
        first: tuple[int, int, float] | None = None
        while not moment.is_over:
            jobs = self._starts(moment, order, joins, width)
            next_job = self._next_soon(moment, jobs, order, width) if soon else 0
            if first is None:
                first = jobs, next_job, self._tree.soon_ns(moment, jobs, next_job) if next_job else 0.0
            following = self._tree.following(moment, jobs, next_job)
            if following is None:
                return None
            moment = following
        return FollowedList(*(first or (0, 0, 0.0)), moment)

    def _next_soon(self, moment: ScheduleMoment, jobs: int, order: tuple[int, ...], width: int) -> int:
        """Return the job that starts before another one leaves, if these jobs start at the moment; 0 if none does."""
        present, forecasts = moment.running | jobs, self._tree.forecasts
        if present.bit_count() > width:
            return 0
        for k in order:
            if moment.waiting & ~jobs & (1 << k):
                together = present | 1 << k
                fits = forecasts.fit_unplanned(together) and forecasts.step_ns(together) is not None
                starts = moment.startup_ns[k] > 0 and fits and self._may_start_soon(moment, jobs, k)
                return 1 << k if starts else 0
        return 0

    def _starts(self, moment: ScheduleMoment, order: tuple[int, ...], joins: JoinRule, width: int) -> int:
        key = (moment, order, joins)
        joined = self._joined.get(key)
        if joined is None:
            joined = self._joined[key] = _Joined(self._joining(moment, order, joins))
        return joined.first(width - moment.running.bit_count())

    def _joining(self, moment: ScheduleMoment, order: tuple[int, ...], joins: JoinRule) -> Iterator[int]:
        """Yield the jobs that start, again whenever another job joins them."""
        forecasts, jobs, present = self._tree.forecasts, 0, moment.running
        for k in order:
            if not moment.waiting >> k & 1 or (present and not joins(forecasts, present, 1 << k)):
                continue
            if self._may_start(moment, jobs, k):
                jobs |= 1 << k
                present |= 1 << k
                yield jobs


class _Joined:
    """The jobs that start at a moment, for each number of them. They are computed when they are first needed."""

    def __init__(self, following: Iterator[int]) -> None:
        self._sets = [0]
        self._following = following

    def first(self, most: int) -> int:
        """Return the jobs that start if at most `most` start."""
        while len(self._sets) <= most and (jobs := next(self._following, None)) is not None:
            self._sets.append(jobs)
        return self._sets[min(max(0, most), len(self._sets) - 1)]
