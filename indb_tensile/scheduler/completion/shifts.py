"""Choose running jobs that leave the device for a while, so that waiting jobs can run in their place: a shift.

A waiting job may take the place only of jobs that come after it in fair order (fair_shares.py). Two foretold
schedules are compared. In the first, the running jobs stay. In the second, the set of jobs is chosen anew in fair
order, and every end is later by the copies of the states that leave. After that, jobs run to their ends in both. In
the second schedule, a running job that leaves comes back before the jobs that may not take its place: jobs about as
long as itself would only make the shift look costly. A shift is chosen

- if the mean completion gets better: some jobs gain more than `_GAIN_OVER_LOSS` times what the others lose, and more
  than the cost of the change; and the makespan grows by at most `BAND` and that cost. A shift gains no throughput: it
  lets short jobs finish first;
- if the first step of the waiting job that would start is overdue;
- or if that job would end later than with fair shares, and the jobs that leave belong to other owners.

A change of the estimates by a few per cent does not reverse a shift. To come back by the first rule, a job would have
to be shorter, by `_GAIN_OVER_LOSS` squared, than the job that took its place, and that job has less and less left.
The order in which the fair schedule ends jobs changes only if jobs come or go, apart from near ties, which `_TIE`
excludes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from indb_tensile.scheduler.completion.choose_starts import BAND, HORIZON
from indb_tensile.scheduler.completion.foretell import ScheduleMoment, ScheduleTree, first_moment
from indb_tensile.scheduler.completion.set_forecasts import SetForecasts, members
from indb_tensile.scheduler.completion.start_lists import StartLists
from indb_tensile.scheduler.completion.start_rules import raises_throughput

CHANGE_SHARE = 0.05  # the largest share of a job's quantum that a change of places takes (admission/shift_rule.py)
# How many times the loss the gain has to be. A small change of the estimates then does not reverse a shift.
_GAIN_OVER_LOSS = 1.2
_TIE = 0.05  # two jobs whose fair ends differ by less do not take each other's place
_WIDTHS = (1, 2, 3, 4, 8)  # how many jobs the schedules run side by side at most


@dataclass(frozen=True, slots=True, kw_only=True)
class ShiftQuestion:
    """All that a choice depends on. Sets of jobs are bit masks over the demands of `forecasts`.

    `order` has all jobs in fair order. `fair_ends_ns` is by job the time until the fair schedule ends it, and
    `change_ns` the time in which its state leaves the device and returns. `movable` are the running jobs that may
    leave, and `beginning` those that may leave only for one of the `new` jobs, which have not begun to train.
    `overdue` are the waiting jobs whose first step is overdue, and `kept` those of them that also precede jobs of
    higher priorities of their owners.
    """

    forecasts: SetForecasts
    order: tuple[int, ...]
    fair_ends_ns: tuple[float, ...]
    change_ns: tuple[float, ...]
    running: int
    movable: int
    beginning: int = 0
    new: int = 0
    overdue: int = 0
    kept: int = 0

    def displaces(self, job: int, other: int) -> bool:
        """Return whether the running job `other` may leave for the waiting job `job`."""
        leaves = self.movable >> other & 1 or (self.beginning >> other & 1 and self.new >> job & 1)
        return bool(leaves) and self.precedes(job, other)

    def precedes(self, job: int, other: int) -> bool:
        """Return whether `job` comes before `other` in fair order, by more than the error of estimates."""
        if self.kept >> job & 1:
            return True
        demand, other_demand = self.forecasts.demands[job], self.forecasts.demands[other]
        if demand.owner == other_demand.owner and demand.priority != other_demand.priority:
            return demand.priority > other_demand.priority
        if self.overdue >> job & 1:
            return True
        end_ns = self.fair_ends_ns[other]  # negative, if the job is late
        return self.fair_ends_ns[job] < end_ns - _TIE * abs(end_ns)

    @property
    def is_open(self) -> bool:
        """True if a running job may leave for a waiting one. Otherwise no shift is possible."""
        waiting = [k for k in self.order if not self.running >> k & 1][:HORIZON]
        return any(self.displaces(k, r) for k in waiting for r in members(self.movable | self.beginning))


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceShift:
    """The running jobs that leave, and the waiting job that starts first in their place."""

    leaving: int
    first: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Course:
    """A foretold schedule: its first set, its makespan, and the end of each job."""

    jobs: int
    makespan_ns: float
    ends_ns: tuple[float, ...]

    @property
    def sum_ns(self) -> float:
        return sum(self.ends_ns)


def choose_shift(question: ShiftQuestion) -> DeviceShift | None:
    """Return the shift that is worth its cost; None if all running jobs stay."""
    if not question.is_open:
        return None
    running = question.running
    stays = [course for course in _courses(question, running) if running & ~course.jobs == 0]
    changes = [course for course in _courses(question, 0) if _is_allowed(question, course)]
    if not stays or not changes:
        return None
    changes = [_delayed(question, course) for course in changes]
    stay = _best(stays)
    for change in sorted(changes, key=_rank):
        first = next(k for k in question.order if change.jobs & ~running & (1 << k))
        if _must(question, stay, change, first) or _pays(question, stay, change):
            return DeviceShift(leaving=running & ~change.jobs, first=first)
    return None


def _pays(question: ShiftQuestion, stay: _Course, change: _Course) -> bool:
    cost_ns = _cost_ns(question, change)
    if change.makespan_ns > stay.makespan_ns * (1 + BAND) + cost_ns:
        return False
    earlier = [old - new for old, new in zip(stay.ends_ns, change.ends_ns, strict=True)]
    gained_ns, lost_ns = sum(ns for ns in earlier if ns > 0), -sum(ns for ns in earlier if ns < 0)
    return gained_ns > _GAIN_OVER_LOSS * lost_ns and gained_ns > cost_ns


def _must(question: ShiftQuestion, stay: _Course, change: _Course, first: int) -> bool:
    """Return whether the first job must run now, even if the mean completion gets worse.

    It must if its first step is overdue. It must also if three things hold: without the shift it would end later than
    with fair shares, by more than a near tie and a quantum of its own; with the shift it ends earlier by more than a
    near tie; and the jobs that leave belong to other owners.
    """
    if question.overdue >> first & 1:
        return True
    demands = question.forecasts.demands
    owners = {demands[k].owner for k in members(question.running & ~change.jobs)}
    fair_ns = question.fair_ends_ns[first] * (1 + _TIE) + question.change_ns[first] / CHANGE_SHARE
    late = stay.ends_ns[first] > fair_ns and change.ends_ns[first] < (1 - _TIE) * stay.ends_ns[first]
    return late and demands[first].owner not in owners


def _is_allowed(question: ShiftQuestion, course: _Course) -> bool:
    """Return whether jobs leave, and each of them may leave for one of the jobs that come."""
    leaving, coming = question.running & ~course.jobs, course.jobs & ~question.running
    if not leaving or not coming:
        return False
    return all(any(question.displaces(k, r) for k in members(coming)) for r in members(leaving))


def _courses(question: ShiftQuestion, running: int) -> Iterator[_Course]:
    """Yield the schedules in which these jobs stay, and the others start in fair order, for several widths.

    A job that runs now starts before those that come directly before it in fair order without preceding it.
    """
    demands = question.forecasts.demands
    near = [k for k in question.order if not question.running >> k & 1][:HORIZON]
    known = question.running | sum(1 << k for k in near)
    order = tuple(_without_near_ties(question, [k for k in question.order if known >> k & 1]))
    lists = StartLists(ScheduleTree(question.forecasts))
    whole = first_moment(demands, running)
    moment = ScheduleMoment(
        now_ns=0.0,
        running=running,
        waiting=known & ~running,
        startup_ns=whole.startup_ns,
        steps_left=whole.steps_left,
        ends_ns=whole.ends_ns,
    )
    for width in _WIDTHS:
        if width > len(order):
            return
        followed = lists.follow(moment, order, raises_throughput, width)
        if followed is not None:
            last = followed.end
            yield _Course(jobs=running | followed.starts, makespan_ns=last.makespan_ns, ends_ns=last.ends_ns)


def _without_near_ties(question: ShiftQuestion, order: Sequence[int]) -> list[int]:
    """Return the order with each running job moved forward, past waiting jobs that do not precede it, as far as the
    next job that runs or precedes it.
    """
    ordered: list[int] = []
    for job in order:
        place = len(ordered)
        if question.running >> job & 1:
            while place and not question.running >> (k := ordered[place - 1]) & 1 and not question.precedes(k, job):
                place -= 1
        ordered.insert(place, job)
    return ordered


def _delayed(question: ShiftQuestion, course: _Course) -> _Course:
    """Return the schedule with the cost of the change added to every end."""
    cost_ns = _cost_ns(question, course)
    ends_ns = tuple(ns + cost_ns if ns else 0.0 for ns in course.ends_ns)
    return _Course(jobs=course.jobs, makespan_ns=course.makespan_ns + cost_ns, ends_ns=ends_ns)


def _cost_ns(question: ShiftQuestion, course: _Course) -> float:
    """Return the time of the change: the states of the jobs that leave are copied out and back in.

    The states of the jobs that come do not count, because they are copied to the device in either schedule.
    """
    return sum(question.change_ns[k] for k in members(question.running & ~course.jobs))


def _best(courses: Sequence[_Course]) -> _Course:
    limit_ns = min(course.makespan_ns for course in courses) * (1 + BAND)
    return min((course for course in courses if course.makespan_ns <= limit_ns), key=_rank)


def _rank(course: _Course) -> tuple[float, float, int]:
    return course.sum_ns, course.makespan_ns, course.jobs
