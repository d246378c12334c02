"""Foretell list schedules: jobs start in a fixed order, whenever a rule lets them join the jobs that run.

A choice foretells many lists that differ only in how many jobs they run side by side at most. So what one list has
found is kept for the others: the moments (foretell.py), and the jobs that start at a moment. A narrower list starts
the first few of the jobs that a wider list starts.
"""

from collections.abc import Callable, Iterator

from indb_tensile.scheduler.completion.foretell import ScheduleMoment, ScheduleTree
from indb_tensile.scheduler.completion.set_forecasts import SetForecasts

# Whether a job may join a set of jobs. Both are bit masks.
JoinRule = Callable[[SetForecasts, int, int], bool]
# Whether a waiting job may start at a moment together with these other jobs, which may start.
OvertakingCheck = Callable[[ScheduleMoment, int, int], bool]


def any_may_start(moment: ScheduleMoment, jobs: int, job: int) -> bool:
    """Let every job start before earlier jobs."""
    return True


class StartLists:
    """The list schedules of one choice."""

    def __init__(self, tree: ScheduleTree, may_start: OvertakingCheck = any_may_start) -> None:
        self._tree = tree
        self._may_start = may_start
        self._joined: dict[tuple[ScheduleMoment, tuple[int, ...], JoinRule], _Joined] = {}

    def follow(
        self, moment: ScheduleMoment, order: tuple[int, ...], joins: JoinRule, width: int
    ) -> tuple[int, ScheduleMoment] | None:
        """Return the jobs that start at once, and the end of the schedule; None if a set of jobs cannot run.

        The first of the jobs starts by any rule if no job runs. No job makes the set wider than `width`.
        """
        first: int | None = None
        while not moment.is_over:
            jobs = self._starts(moment, order, joins, width)
            first = jobs if first is None else first
            following = self._tree.following(moment, jobs)
            if following is None:
                return None
            moment = following
        return first or 0, moment

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
