"""Foretell when each of some jobs is done, if waiting jobs start at certain moments and then run to completion.

A foretold schedule is a list of sets of jobs. At its start, and whenever a job leaves the device, waiting jobs may
start. A job starts up, does its steps, and closes (demand.py). While it starts up, it has its memory and does not
compute: the other jobs of the set train as fast as without it, in the memory that it leaves
(`SetForecasts.part_step_ns`). After its last step it gives back its memory at once, and it is done when it has
closed. So a set has stretches of constant speed, which end where a job begins to compute or does its last step. If
few jobs run side by side, the device is idle until the first step of the next job. Two schedules fill these gaps: one
with more jobs side by side, and one in which the next job starts *soon*, so that its start-up ends with the last step
of a job that leaves.

Where the device is made of processors (`SharedDevice.prepares_jobs`), a job that starts up or closes uses one of them
(an *edge*, contention.py), is slowed down by others and slows them down. Otherwise jobs that start up together would
seem to do so in a part of the time, and the steps of one would seem to hide the start-up of another at no cost. For
how long a job closes is foretold when it leaves the device, as if a waiting job then began to start up in its place.

- *Makespan*: the time until all jobs are done.
- *ANTT* (average normalised turnaround time, Eyerman and Eeckhout 2008): the mean over the jobs of the time until the
  job is done, divided by the time of the whole job alone with all the memory. The time for which a job has already
  waited is left out, because it would add the same number to every schedule.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from indb_tensile.scheduler.completion.demand import JobDemand
from indb_tensile.scheduler.completion.set_forecasts import SetForecasts, members

_ROUNDING = 1e-9  # a remainder below this part of the previous remainder is a rounding error and counts as done


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)  # a key of dictionaries, by identity
class ScheduleMoment:
    """The jobs at one moment of a schedule.

    `running` and `waiting` are bit masks over the demands. `startup_ns` and `steps_left` have one entry for each
    demand, 0 after that phase of the job. `ends_ns` are the moments at which the jobs that have left the device are
    done, or will be, and `turnaround` is the sum of their normalised turnaround times.
    """

    now_ns: float
    running: int
    waiting: int
    startup_ns: tuple[float, ...]
    steps_left: tuple[float, ...]
    ends_ns: tuple[float, ...]  # of jobs that have left the device, else 0
    turnaround: float = 0.0

    @property
    def is_over(self) -> bool:
        """True if all jobs have left the device."""
        return not self.running and not self.waiting

    @property
    def makespan_ns(self) -> float:
        """The moment at which the last of the jobs that have left the device is done."""
        return max(self.ends_ns, default=0.0)

    def left_ns(self, job: int, step_ns: float) -> float:
        """Return the time until this job leaves the device, if its steps take so long from now on."""
        return self.startup_ns[job] + self.steps_left[job] * step_ns


def first_moment(demands: Sequence[JobDemand], running: int) -> ScheduleMoment:
    """Return the moment at which the jobs of the set `running` run and all other jobs wait."""
    return ScheduleMoment(
        now_ns=0.0,
        running=running,
        waiting=((1 << len(demands)) - 1) & ~running,
        startup_ns=tuple(demand.startup_ns for demand in demands),
        steps_left=tuple(demand.steps_left for demand in demands),
        ends_ns=(0.0,) * len(demands),
    )


def start(moment: ScheduleMoment, jobs: int) -> ScheduleMoment:
    """Return the moment after these waiting jobs were started."""
    if not jobs:
        return moment
    return ScheduleMoment(  # dataclasses.replace takes four times as long, and a choice makes thousands of moments
        now_ns=moment.now_ns,
        running=moment.running | jobs,
        waiting=moment.waiting & ~jobs,
        startup_ns=moment.startup_ns,
        steps_left=moment.steps_left,
        ends_ns=moment.ends_ns,
        turnaround=moment.turnaround,
    )


def until_one_leaves(
    moment: ScheduleMoment, forecasts: SetForecasts, until_ns: float = inf, soon: int = 0
) -> ScheduleMoment | None:
    """Return the moment at which the first running job does its last step, or `until_ns` if that is earlier.

    `soon` is the set of running jobs that have started in the place of those that leave. None if the set cannot run.
    """
    running, waiting, now_ns = moment.running, moment.waiting, moment.now_ns
    if not running or forecasts.step_ns(running) is None:
        return None
    numbers = members(running)
    startup_ns, steps_left = list(moment.startup_ns), list(moment.steps_left)
    ends_ns, turnaround = list(moment.ends_ns), moment.turnaround
    while running == moment.running and now_ns < until_ns:
        step_ns, factor, next_ns = _speeds(forecasts, now_ns, running, startup_ns, ends_ns)
        next_ns = min(next_ns, until_ns)
        left_ns = [startup_ns[k] * factor if startup_ns[k] else steps_left[k] * step_ns[k] for k in numbers]
        passed_ns = min([*left_ns, next_ns - now_ns])
        now_ns = next_ns if passed_ns == next_ns - now_ns else now_ns + passed_ns
        for k in numbers:
            if startup_ns[k]:
                startup_ns[k] = _less(startup_ns[k], passed_ns / factor)
                continue
            steps_left[k] = _less(steps_left[k], passed_ns / step_ns[k])
            if not steps_left[k]:
                running &= ~(1 << k)
        if left := members(moment.running & ~running):
            computing, later_ns = _busy(forecasts, now_ns, running, startup_ns, ends_ns)
            next_jobs = min(max(0, len(left) - soon.bit_count()), waiting.bit_count())  # that may start up meanwhile
            edges = (running & ~computing).bit_count() + len(later_ns) + len(left) + next_jobs
            factor = forecasts.edge_slowdown(computing, edges)
        for k in left:
            ends_ns[k] = now_ns + forecasts.closing_ns[k] * factor
            turnaround += ends_ns[k] / forecasts.total_ns[k]
    return ScheduleMoment(
        now_ns=now_ns,
        running=running,
        waiting=waiting,
        startup_ns=tuple(startup_ns),
        steps_left=tuple(steps_left),
        ends_ns=tuple(ends_ns),
        turnaround=turnaround,
    )


class ScheduleTree:
    """The moments of the schedules that one choice compares. Schedules that begin alike share their moments."""

    def __init__(self, forecasts: SetForecasts) -> None:
        self.forecasts = forecasts
        self._following: dict[tuple[ScheduleMoment, int, int], ScheduleMoment | None] = {}

    def following(self, moment: ScheduleMoment, jobs: int, soon: int = 0) -> ScheduleMoment | None:
        """Return the moment at which the next job leaves if these waiting jobs start at `moment`; None if the set
        cannot run.

        `soon` are further waiting jobs, which start so much earlier than the next job leaves as they start up for
        meanwhile.
        """
        begin = (moment, jobs, soon)
        if begin not in self._following:
            self._following[begin] = self._follow(moment, jobs, soon)
        return self._following[begin]

    def _follow(self, moment: ScheduleMoment, jobs: int, soon: int) -> ScheduleMoment | None:
        begun = start(moment, jobs)
        at_ns = self.soon_ns(moment, jobs, soon) if soon else moment.now_ns
        before = until_one_leaves(begun, self.forecasts, at_ns) if at_ns > moment.now_ns else begun
        return None if before is None else until_one_leaves(start(before, soon), self.forecasts, soon=soon)

    def soon_ns(self, moment: ScheduleMoment, jobs: int, soon: int) -> float:
        """Return when the jobs `soon` start if `jobs` start at `moment`; infinite if these cannot run."""
        leaves = self.following(moment, jobs)
        if leaves is None:
            return inf
        lead = self.forecasts.startup_lead((moment.running | jobs).bit_count(), soon.bit_count())
        return max(moment.now_ns, leaves.now_ns - lead * max(moment.startup_ns[k] for k in members(soon)))


def _speeds(
    forecasts: SetForecasts, now_ns: float, running: int, startup_ns: Sequence[float], ends_ns: Sequence[float]
) -> tuple[dict[int, float], float, float]:
    """Return the time of a step of each job that computes, by how much longer the others start up, and until when
    this holds if no job begins to compute or leaves: jobs that close may slow others down.
    """
    computing, later_ns = _busy(forecasts, now_ns, running, startup_ns, ends_ns)
    edges = (running & ~computing).bit_count() + len(later_ns) if forecasts.device.prepares_jobs else 0
    step_ns = dict(zip(members(computing), forecasts.part_step_ns(running, computing, edges) or (), strict=True))
    return step_ns, forecasts.edge_slowdown(computing, edges), min(later_ns, default=inf)


def _busy(
    forecasts: SetForecasts, now_ns: float, running: int, startup_ns: Sequence[float], ends_ns: Sequence[float]
) -> tuple[int, list[float]]:
    """Return the running jobs that compute, as a set, and when those that close on the device's processors are done.

    The other running jobs start up.
    """
    computing = 0
    for k in members(running):
        if not startup_ns[k]:
            computing |= 1 << k
    if not forecasts.device.prepares_jobs:
        return computing, []
    return computing, [ns for ns in (*ends_ns, *forecasts.device.closing_ns) if ns > now_ns]


def _less(left: float, passed: float) -> float:
    """Return `left` less `passed`, and 0 where the rest is a rounding error."""
    rest = left - passed
    return 0.0 if rest <= _ROUNDING * left else rest
