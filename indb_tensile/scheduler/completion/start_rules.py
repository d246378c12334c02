"""Which waiting jobs may start before others, and the orders in which choose_starts.py tries to start jobs.

`demands` are in fair order: the first waiting job is the next to start. Jobs of one owner and one priority may start
in any order. A job of another owner, or of a lower priority, may overtake an earlier job only if the earlier job
cannot run beside the present set at all and the later job is done before the present set changes (backfilling).
Otherwise one owner's choice between its jobs would delay the jobs of others.
"""

from collections.abc import Callable, Sequence

from indb_tensile.scheduler.completion.demand import JobDemand
from indb_tensile.scheduler.completion.foretell import ScheduleMoment
from indb_tensile.scheduler.completion.set_forecasts import SetForecasts, members


class OvertakingRule:
    """Says which sets of waiting jobs may start. The relations between pairs of jobs are computed once."""

    def __init__(self, forecasts: SetForecasts) -> None:
        demands = forecasts.demands
        self._forecasts = forecasts
        # By job: the earlier jobs of other owners or priorities, as bit masks.
        self._others = [
            _earlier(demands, k, lambda demand, other: not _are_peers(demand, other)) for k in range(len(demands))
        ]

    def may_start(self, moment: ScheduleMoment, jobs: int) -> bool:
        """Return whether these waiting jobs may start now, before the waiting jobs that are not among them."""
        return all(self.may_join(moment, jobs, k) for k in members(jobs))

    def may_join(self, moment: ScheduleMoment, jobs: int, job: int) -> bool:
        """Return whether the waiting job may start now together with these jobs, which may start."""
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


def _earlier(demands: Sequence[JobDemand], job: int, relate: Callable[[JobDemand, JobDemand], bool]) -> int:
    return sum(1 << earlier for earlier in range(job) if relate(demands[job], demands[earlier]))


def _are_peers(demand: JobDemand, other: JobDemand) -> bool:
    return demand.owner == other.owner and demand.priority == other.priority


def _are_equal(demand: JobDemand, other: JobDemand) -> bool:
    return _needs(demand) == _needs(other)


def _needs(demand: JobDemand) -> tuple[object, ...]:
    times_ns = (demand.startup_ns, demand.closing_ns)
    return demand.owner, demand.priority, demand.steps, demand.steps_left, demand.trade_offs, times_ns
