"""Foretell when each of some jobs is done, if waiting jobs start at certain moments and then run to completion.

A foretold schedule is a list of sets of jobs. At its start, and whenever a job ends, waiting jobs may start. Between
two such moments each job of the present set trains at the speed that set_forecasts.py foretells.

- *Makespan*: the time until all jobs are done.
- *ANTT* (average normalised turnaround time, Eyerman and Eeckhout 2008): the mean over the jobs of the time until the
  job is done, divided by the time of the whole job alone with all the memory. What a job has already waited is left
  out. It would add the same number to every schedule.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from indb_tensile.scheduler.completion.demand import JobDemand
from indb_tensile.scheduler.completion.set_forecasts import SetForecasts, members


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleMoment:
    """The jobs at one moment of a schedule.

    `running` and `waiting` are bit masks over the demands. `steps_left` has one entry for each demand, 0 when the job
    is done. `turnaround` is the sum of the normalised turnaround times of the jobs that are done, and
    `turnaround_s` has none of the jobs that are not.
    """

    now_ns: float
    running: int
    waiting: int
    steps_left: tuple[float, ...]
    ends_ns: tuple[float, ...]  # of jobs that are done, else 0
    turnaround: float = 0.0

    @property
    def is_over(self) -> bool:
        """True if all jobs are done."""
        return not self.running and not self.waiting


def first_moment(demands: Sequence[JobDemand], running: int) -> ScheduleMoment:
    """Return the moment at which the jobs of the set `running` run and all other jobs wait."""
    return ScheduleMoment(
        now_ns=0.0,
        running=running,
        waiting=((1 << len(demands)) - 1) & ~running,
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
        steps_left=moment.steps_left,
        ends_ns=moment.ends_ns,
        turnaround=moment.turnaround,
    )


def until_next_end(moment: ScheduleMoment, forecasts: SetForecasts) -> ScheduleMoment | None:
    """Return the moment at which the first running job is done; None if the set cannot run."""
    times = forecasts.step_ns(moment.running)
    if times is None or not times:
        return None
    numbers = members(moment.running)
    left = moment.steps_left
    passed_ns = min(left[k] * ns for k, ns in zip(numbers, times, strict=True))
    now_ns = moment.now_ns + passed_ns
    steps_left, ends_ns = list(left), list(moment.ends_ns)
    running, turnaround = moment.running, moment.turnaround
    for k, ns in zip(numbers, times, strict=True):
        steps = left[k] - passed_ns / ns
        if steps <= 1e-9 * left[k]:
            steps = 0.0
            running &= ~(1 << k)
            ends_ns[k] = now_ns
            turnaround += now_ns / total_ns(forecasts.demands[k])
        steps_left[k] = steps
    return ScheduleMoment(
        now_ns=now_ns,
        running=running,
        waiting=moment.waiting,
        steps_left=tuple(steps_left),
        ends_ns=tuple(ends_ns),
        turnaround=turnaround,
    )


def total_ns(demand: JobDemand) -> float:
    """Return the time of the whole job alone with all the memory."""
    return demand.steps * demand.alone_ns
