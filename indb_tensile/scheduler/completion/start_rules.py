"""Which waiting jobs may start before others, and the orders in which choose_starts.py tries to start jobs.

`demands` are in fair order: the first waiting job is the next to start. Jobs of one owner and one priority may start
in any order. A job of another owner, or of a lower priority, may overtake an earlier job only if the earlier job
cannot run beside the present set at all and the later job is done before the present set changes (backfilling).
Otherwise one owner's choice between its jobs would delay the jobs of others.

A job that has just made way for a job of its owner with a higher priority comes back beside such a job only if that
clearly raises the throughput. Otherwise it would come back at once, and its state would have been copied for nothing:
the mean turnaround is better if a job that has little left ends first.
"""

from collections.abc import Callable, Sequence

from indb_tensile.scheduler.completion.demand import JobDemand
from indb_tensile.scheduler.completion.foretell import ScheduleMoment
from indb_tensile.scheduler.completion.set_forecasts import SetForecasts, members

MARGIN = 0.03  # larger than the usual error of the forecasts of one set relative to another
# By how much a job and one of a higher priority have to raise the throughput together; or else the lower one leaves,
# or stays away. Foretold throughput is within a tenth of the measured one in most mixes.
_GAIN_BESIDE_HIGHER = 0.1


def raises_throughput(forecasts: SetForecasts, running: int, job: int) -> bool:
    """Return whether the job fits beside the running jobs and raises the throughput by `MARGIN`.

    `running` and `job` are bit masks.
    """
    return _gains(forecasts, running, job, MARGIN)


def is_worth_a_delay(forecasts: SetForecasts, running: int, job: int) -> bool:
    """Return whether the job beside the running jobs raises the throughput so clearly that jobs of different
    priorities may slow each other down.

    `running` and `job` are bit masks.
    """
    return _gains(forecasts, running, job, _GAIN_BESIDE_HIGHER)


class OvertakingRule:
    """Says which sets of waiting jobs may start. The relations between pairs of jobs are computed once."""

    def __init__(self, forecasts: SetForecasts) -> None:
        demands = forecasts.demands
        self._forecasts = forecasts
        # By job: the earlier jobs of other owners or priorities, as bit masks.
        self._others = [
            _earlier(demands, k, lambda demand, other: not _are_peers(demand, other)) for k in range(len(demands))
        ]
        # By job: the earlier jobs of its owner with higher priorities, if it has just made way.
        self._higher = [_earlier(demands, k, _makes_way) for k in range(len(demands))]

    def may_start(self, moment: ScheduleMoment, jobs: int) -> bool:
        """Return whether these waiting jobs may start now, before the waiting jobs that are not among them."""
        return all(self.may_join(moment, jobs, k) for k in members(jobs))

    def may_join(self, moment: ScheduleMoment, jobs: int, job: int) -> bool:
        """Return whether the waiting job may start now together with these jobs, which may start."""
        beside = (moment.running | jobs) & ~(1 << job)
        if beside & self._higher[job] and not is_worth_a_delay(self._forecasts, beside, 1 << job):
            return False
        return self.may_start_soon(moment, jobs, job)

    def may_start_soon(self, moment: ScheduleMoment, jobs: int, job: int) -> bool:
        """Return whether the job may start up beside these jobs, one of which leaves when it has."""
        overtaken = moment.waiting & ~jobs & self._others[job]
        return not overtaken or (self._is_blocked(moment, overtaken) and self._fills_a_gap(moment, job))

    def _is_blocked(self, moment: ScheduleMoment, jobs: int) -> bool:
        """Return whether none of these jobs can run beside the present set."""
        return all(self._forecasts.step_ns(moment.running | 1 << k) is None for k in members(jobs))

    def _fills_a_gap(self, moment: ScheduleMoment, job: int) -> bool:
        """Return whether the job can run beside the present set, and ends before the set changes."""
        together = moment.running | 1 << job
        times = self._forecasts.step_ns(together)
        if times is None:
            return False
        ends = {k: moment.left_ns(k, ns) for k, ns in zip(members(together), times, strict=True)}
        return all(ends[job] <= ns for ns in ends.values())


def job_orders(demands: Sequence[JobDemand]) -> tuple[tuple[int, ...], ...]:
    """Return all jobs in fair order, with the least remaining work first, and with the most first (Graham's rule for
    the makespan). Jobs with equal work are in fair order.
    """
    left_ns = [demand.startup_ns + demand.steps_left * demand.alone_ns + demand.closing_ns for demand in demands]
    shortest_first = sorted(range(len(demands)), key=lambda k: (left_ns[k], k))
    longest_first = sorted(range(len(demands)), key=lambda k: (-left_ns[k], k))
    return tuple(range(len(demands))), tuple(shortest_first), tuple(longest_first)


def earlier_equals(demands: Sequence[JobDemand]) -> list[int]:
    """Return for each job a bit mask of the earlier jobs that are equal to it in all that a schedule depends on."""
    return [_earlier(demands, k, _are_equal) for k in range(len(demands))]


def _gains(forecasts: SetForecasts, running: int, job: int, margin: float) -> bool:
    if forecasts.step_ns(running | job) is None:
        return False
    return forecasts.throughput(running | job) > forecasts.throughput(running) * (1 + margin)


def _earlier(demands: Sequence[JobDemand], job: int, relate: Callable[[JobDemand, JobDemand], bool]) -> int:
    return sum(1 << earlier for earlier in range(job) if relate(demands[job], demands[earlier]))


def _are_peers(demand: JobDemand, other: JobDemand) -> bool:
    return demand.owner == other.owner and demand.priority == other.priority


def _makes_way(demand: JobDemand, other: JobDemand) -> bool:
    return demand.has_left and demand.owner == other.owner and demand.priority < other.priority


def _are_equal(demand: JobDemand, other: JobDemand) -> bool:
    return _needs(demand) == _needs(other)


def _needs(demand: JobDemand) -> tuple[object, ...]:
    times_ns = (demand.startup_ns, demand.closing_ns)
    return (
        demand.owner,
        demand.priority,
        demand.has_left,
        demand.steps,
        demand.steps_left,
        demand.trade_offs,
        times_ns,
    )
