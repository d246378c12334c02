"""Choose which waiting jobs start now, so that all jobs are done as early as possible.

The choice compares foretold schedules (foretell.py). Among the schedules whose makespan is at most `BAND` above the
least, it takes the schedule with the least ANTT. Both measures cover all that is left of all known jobs. The system
throughput is no measure for the choice: jobs that run one at a time have a throughput of 1, and so never lose.

1. *Lists.* Jobs are started in several orders, with several limits on how many run side by side, and by three rules:
   start whatever fits; start what raises the system throughput; start what fits without plans. Taking turns and first
   fit are among these lists, so the choice is never worse in both measures than either. Narrow lists are also tried
   with soon starts: the next job starts up while the last steps of another one are done.
2. *Search.* A depth-first search over the sets of jobs that start at each moment, which cuts branches that cannot
   improve on the best schedule known (branch and bound). It stops after `_NODES` moments.

At most `HORIZON` waiting jobs, the first in fair order, are considered. Whenever a job ends, the choice is made
again, with the jobs that follow.

A schedule that starts a job has to be better by `MARGIN` than waiting for the next end, in makespan or in ANTT. A
difference below the error of the estimates must not start a job, because a job that has started usually runs to its
end. If such a schedule has a higher ANTT than waiting, its makespan has to be better by `_CLEAR_GAIN`: two long jobs
side by side end much later than the first of them alone, and a small gain is often an error. On a free device this
holds for any two schedules.

A soon start is part of waiting, and needs no margin: the job would start next in any case.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import combinations

from indb_tensile.job import JobId
from indb_tensile.scheduler.completion.demand import JobDemand
from indb_tensile.scheduler.completion.foretell import ScheduleMoment, ScheduleTree, first_moment
from indb_tensile.scheduler.completion.set_forecasts import SetForecasts, SharedDevice, members
from indb_tensile.scheduler.completion.start_lists import FollowedList, StartLists
from indb_tensile.scheduler.completion.start_rules import (
    MARGIN,
    OvertakingRule,
    earlier_equals,
    job_orders,
    raises_throughput,
)

# Schedules whose makespans differ by less are ranked by ANTT. A larger band finishes short jobs earlier and the last
# job later.
BAND = 0.02
_CLEAR_GAIN = 0.04  # all schedules together may be 5 % above the exhaustive best, the band included
# Moments of the depth-first search. Random sets of two to six jobs were at most 4 % above the exhaustive best with
# 600, mostly because of the band, and within 5 % with 150. With 300, a choice among many jobs takes about 10 ms of a
# processor.
_NODES = 300
HORIZON = 8  # The next choice is made when a job ends. More jobs rarely change the first choice.
# How many jobs lists run side by side at most. A list of width 5 or 7 rarely differs from its neighbours.
_WIDTHS = (1, 2, 3, 4, 6, 8)
_SOON_WIDTHS = (1, 2)  # of the lists with soon starts; a wider set has work for the time in which a job starts up
# Up to this many waiting jobs, every subset of them is tried at each moment. Of more jobs, the first ones of each
# order are tried, and all single jobs and pairs.
_ALL_SUBSETS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class StartChoice:
    """The jobs to start now, and what the chosen schedule foretells.

    `ends_ns` has the time until each job is done, in the order of the demands, without the jobs beyond the horizon.
    `waiting_ns` is the makespan if no job started before the next end; None if no job runs. `soon` is the job that
    starts before a running job leaves, so early that it starts up until then. `at_an_end` says that the time of this
    job has come: it is in `starts`.
    """

    starts: tuple[JobId, ...]
    makespan_ns: float
    antt: float
    ends_ns: dict[JobId, float]
    waiting_ns: float | None
    soon: JobId | None = None
    at_an_end: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownChoice:
    """A choice, and all that it follows from: demands, device, and the bit mask of the running jobs."""

    demands: tuple[JobDemand, ...]
    device: SharedDevice
    running: int
    choice: StartChoice

    def holds(self, forecasts: SetForecasts, running: int) -> bool:
        """Return whether the choice for these jobs would be the same. `forecasts` have no corrections."""
        return (self.running, self.device, self.demands) == (running, forecasts.device, forecasts.demands)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Schedule:
    """The outcome of one foretold schedule, the jobs that it starts at once, and the one that it starts soon."""

    starts: int
    makespan_ns: float
    antt: float
    ends_ns: tuple[float, ...]
    soon: int = 0
    soon_ns: float = 0.0


def choose_starts(forecasts: SetForecasts, running: int, *, nodes: int = _NODES, soon_ns: float = 0.0) -> StartChoice:
    """Return which of the jobs that do not run start now. `running` is a bit mask over the demands.

    At least one job starts if none runs, unless no job can run alone. A job that is to start within `soon_ns`, before
    another one leaves, starts now.
    """
    waiting = ((1 << len(forecasts.demands)) - 1) & ~running
    beyond = members(waiting)[HORIZON:]
    moment = first_moment(forecasts.demands, running)
    for k in beyond:
        moment = _without(moment, k)
    search = _Search(forecasts, nodes)
    search.lists(moment)
    search.branch(moment, None)
    still = _best([schedule for schedule in search.schedules if not schedule.starts])
    if still is None:
        best = _best_on_free_device(search.schedules)
    else:
        best = _best([schedule for schedule in search.schedules if _is_worth_it(schedule, still)])
        best = best if best is not None and _is_better(best, still) else still
    if best is None:
        return StartChoice(starts=(), makespan_ns=0.0, antt=0.0, ends_ns={}, waiting_ns=None)
    demands = forecasts.demands
    starts = best.starts or (best.soon if best.soon_ns <= soon_ns else 0)
    return StartChoice(
        starts=tuple(demands[k].job for k in members(starts)),
        makespan_ns=best.makespan_ns,
        antt=best.antt,
        ends_ns={demands[k].job: ns for k, ns in enumerate(best.ends_ns) if k not in beyond},
        waiting_ns=still.makespan_ns if still is not None else None,
        soon=next((demands[k].job for k in members(best.soon & ~starts)), None),
        at_an_end=not best.starts and bool(starts),
    )


def _fits(forecasts: SetForecasts, running: int, job: int) -> bool:
    return forecasts.step_ns(running | job) is not None


def _fits_unplanned(forecasts: SetForecasts, running: int, job: int) -> bool:
    return _fits(forecasts, running, job) and forecasts.fit_unplanned(running | job)


def _without(moment: ScheduleMoment, job: int) -> ScheduleMoment:
    return ScheduleMoment(
        now_ns=moment.now_ns,
        running=moment.running,
        waiting=moment.waiting & ~(1 << job),
        startup_ns=moment.startup_ns,
        steps_left=moment.steps_left,
        ends_ns=moment.ends_ns,
    )


def _union(jobs: Iterable[int]) -> int:
    return sum([1 << k for k in jobs])


def _best(schedules: "list[_Schedule]") -> _Schedule | None:
    """Return the schedule with the least ANTT among those whose makespan is within the band above the least."""
    if not schedules:
        return None
    limit_ns = min(schedule.makespan_ns for schedule in schedules) * (1 + BAND)
    near = [schedule for schedule in schedules if schedule.makespan_ns <= limit_ns]
    return min(near, key=_rank)


def _best_on_free_device(schedules: "list[_Schedule]") -> _Schedule | None:
    """Return the best schedule, or one that is hardly longer and in which jobs end much earlier."""
    best = _best(schedules)
    if best is None:
        return None
    most_ns = min(schedule.makespan_ns for schedule in schedules) / (1 - _CLEAR_GAIN)
    earlier = [s for s in schedules if s.makespan_ns <= most_ns and not _is_worth_it(best, s)]
    return min(earlier, key=_rank, default=best)


def _rank(schedule: _Schedule) -> tuple[float, float, int, float]:
    return schedule.antt, schedule.makespan_ns, schedule.starts, schedule.soon_ns


def _is_worth_it(schedule: _Schedule, other: _Schedule) -> bool:
    """Return whether the schedule has about the ANTT of the other or a lower one, or a clearly better makespan."""
    return schedule.antt <= other.antt * (1 + MARGIN) or schedule.makespan_ns < other.makespan_ns * (1 - _CLEAR_GAIN)


def _is_better(schedule: _Schedule, other: _Schedule) -> bool:
    return schedule.makespan_ns < other.makespan_ns * (1 - MARGIN) or schedule.antt < other.antt * (1 - MARGIN)


@dataclass(slots=True)
class _Search:
    """The schedules that were foretold so far, and the bounds by which branches are cut.

    `nodes` is the number of moments that the depth-first search may still visit.
    """

    forecasts: SetForecasts
    nodes: int
    schedules: list[_Schedule] = field(default_factory=list)
    _least_ns: float = float("inf")
    _least_antt: float = float("inf")  # of schedules within the band
    _most_throughput: float = field(init=False)  # that any set of these jobs can have
    _rule: OvertakingRule = field(init=False)
    _tree: ScheduleTree = field(init=False)
    _lists: StartLists = field(init=False)
    _orders: tuple[tuple[int, ...], ...] = field(init=False)
    _earlier_equals: list[int] = field(init=False)
    _candidates: dict[int, list[int]] = field(default_factory=dict)  # sets that may start, by the waiting jobs

    def __post_init__(self) -> None:
        self._rule = OvertakingRule(self.forecasts)
        self._tree = ScheduleTree(self.forecasts)
        self._lists = StartLists(self._tree, self._rule.may_join, self._rule.may_start_soon)
        self._orders = job_orders(self.demands)
        self._earlier_equals = earlier_equals(self.demands)
        self._most_throughput = max(map(self._bound_of_size, range(1, len(self.demands) + 1)), default=1.0)

    @property
    def demands(self) -> tuple[JobDemand, ...]:
        return self.forecasts.demands

    # --- lists -------------------------------------------------------------------------------------------------

    def lists(self, moment: ScheduleMoment) -> None:
        """Foretell the schedules of all lists."""
        rules = (_fits, raises_throughput, _fits_unplanned)
        most = (moment.running | moment.waiting).bit_count()
        widths = [width for width in _WIDTHS if width <= most] or [1]
        for order in self._orders:
            for width in widths:
                for rule in rules if width > 1 else rules[:1]:  # a list of width 1 takes turns by any rule
                    self._keep_list(self._lists.follow(moment, order, rule, width))
            if any(moment.startup_ns[k] for k in members(moment.waiting)):
                for width in _SOON_WIDTHS:
                    if width < most:
                        self._keep_list(self._lists.follow(moment, order, _fits, width, soon=True))

    def _keep_list(self, followed: FollowedList | None) -> None:
        if followed is not None:
            self._keep(followed.end, followed.starts, followed.soon, followed.soon_ns)

    # --- branch and bound --------------------------------------------------------------------------------------

    def branch(self, moment: ScheduleMoment, starts: int | None) -> None:
        """Try all sets of jobs that may start at this moment, and all schedules after each of them."""
        if moment.is_over:
            self._keep(moment, starts or 0)
            return
        for jobs in self._subsets(moment):
            if self.nodes <= 0:
                return
            self.nodes -= 1
            following = self._tree.following(moment, jobs)
            if following is not None and self._may_improve(following):
                self.branch(following, jobs if starts is None else starts)

    def _subsets(self, moment: ScheduleMoment) -> Iterator[int]:
        """Yield the sets of waiting jobs that may start, larger sets first. Of equal jobs, the earlier ones start."""
        if not moment.waiting:
            yield 0
            return
        if moment.waiting not in self._candidates:
            self._candidates[moment.waiting] = list(dict.fromkeys(self._candidate_subsets(moment.waiting)))
        for jobs in self._candidates[moment.waiting]:
            present = moment.running | jobs
            if present and self._rule.may_start(moment, jobs) and self.forecasts.step_ns(present) is not None:
                yield jobs

    def _candidate_subsets(self, waiting: int) -> Iterator[int]:
        """Yield subsets of the waiting jobs, larger ones first, without those that skip an earlier equal job."""
        for jobs in self._subsets_of(waiting):
            if not any(self._earlier_equals[k] & waiting & ~jobs for k in members(jobs)):
                yield jobs

    def _subsets_of(self, waiting: int) -> Iterator[int]:
        numbers = members(waiting)
        if len(numbers) <= _ALL_SUBSETS:
            for size in range(len(numbers), -1, -1):
                yield from map(_union, combinations(numbers, size))
            return
        orders = [[k for k in order if waiting >> k & 1] for order in self._orders]
        for size in range(min(len(numbers), _WIDTHS[-1]), -1, -1):
            yield from (_union(order[:size]) for order in orders)
            if size <= 2:
                yield from map(_union, combinations(numbers, size))

    def _may_improve(self, moment: ScheduleMoment) -> bool:
        """Return whether a schedule through this moment can have the least makespan, or the least ANTT in the band.

        Operators of the jobs that are left take at least their time alone, and together the device's time at the
        highest throughput.
        """
        left = members(moment.running | moment.waiting)
        alone_ns, total_ns, closing_ns = self.forecasts.alone_ns, self.forecasts.total_ns, self.forecasts.closing_ns
        device_ns = sum([moment.steps_left[k] * alone_ns[k] for k in left])
        left_ns = [moment.left_ns(k, alone_ns[k]) + closing_ns[k] for k in left]
        soonest_ns = max(max(left_ns, default=0.0), device_ns / self._most_throughput)
        makespan_ns = max(moment.makespan_ns, moment.now_ns + soonest_ns)
        if makespan_ns > self._least_ns * (1 + BAND):
            return False
        if makespan_ns < self._least_ns:
            return True
        ends = zip(left, left_ns, strict=True)
        turnaround = moment.turnaround + sum([(moment.now_ns + ns) / total_ns[k] for k, ns in ends])
        return turnaround / len(self.demands) < self._least_antt

    def _bound_of_size(self, jobs: int) -> float:
        """Return a bound on the throughput of sets of this many jobs, as if each had all the memory."""
        points = [demand.trade_offs[0] for demand in self.demands]
        slowdowns = self.forecasts.device.contention.slowdowns(jobs, [point.compute_ns for point in points])
        pairs = zip(points, slowdowns, strict=True)
        speeds = (point.iteration_ns / point.beside_others_ns(slowdown) for point, slowdown in pairs)
        return sum(sorted(speeds, reverse=True)[:jobs])

    def _keep(self, moment: ScheduleMoment, starts: int, soon: int = 0, soon_ns: float = 0.0) -> None:
        antt = moment.turnaround / len(self.demands)
        makespan_ns, ends_ns = moment.makespan_ns, moment.ends_ns
        self.schedules.append(
            _Schedule(starts=starts, makespan_ns=makespan_ns, antt=antt, ends_ns=ends_ns, soon=soon, soon_ns=soon_ns)
        )
        if makespan_ns < self._least_ns:
            self._least_ns = makespan_ns
            near = [s.antt for s in self.schedules if s.makespan_ns <= makespan_ns * (1 + BAND)]
            self._least_antt = min(near)
        elif makespan_ns <= self._least_ns * (1 + BAND):
            self._least_antt = min(self._least_antt, antt)
