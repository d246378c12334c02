"""Which waiting jobs may start before others, and the lists in which jobs are started when the search begins.

`demands` are in fair order: the first waiting job is the next to start. Jobs of one owner and one priority may start
in any order. A job of another owner, or of a lower priority, may overtake an earlier job only if the earlier job
cannot run beside the present set at all and the later job is done before the present set changes (backfilling).
Otherwise one owner's choice between its jobs would delay the jobs of others.
"""

from collections.abc import Callable, Sequence

from indb_tensile.scheduler.completion.demand import JobDemand
from indb_tensile.scheduler.completion.foretell import ScheduleMoment
from indb_tensile.scheduler.completion.set_forecasts import SetForecasts, members


def may_start(moment: ScheduleMoment, jobs: int, forecasts: SetForecasts) -> bool:
    """Return whether these waiting jobs may start now, before the waiting jobs that are not among them."""
    left_behind = moment.waiting & ~jobs
    for k in members(jobs):
        for earlier in members(left_behind & ((1 << k) - 1)):
            if not _are_peers(forecasts.demands[k], forecasts.demands[earlier]) and not _fills_a_gap(
                moment, k, earlier, forecasts
            ):
                return False
    return True


def in_fair_order(demands: Sequence[JobDemand], waiting: int) -> list[int]:
    """Return the waiting jobs in fair order."""
    del demands
    return list(members(waiting))


def shortest_first(demands: Sequence[JobDemand], waiting: int) -> list[int]:
    """Return the waiting jobs, those with the least remaining work first."""
    return sorted(members(waiting), key=lambda k: (demands[k].steps_left * demands[k].alone_ns, k))


def longest_first(demands: Sequence[JobDemand], waiting: int) -> list[int]:
    """Return the waiting jobs, those with the most remaining work first (Graham's rule for the makespan)."""
    return shortest_first(demands, waiting)[::-1]


JobOrder = Callable[[Sequence[JobDemand], int], list[int]]
JOB_ORDERS: tuple[JobOrder, ...] = (in_fair_order, shortest_first, longest_first)


def _are_peers(demand: JobDemand, other: JobDemand) -> bool:
    return demand.owner == other.owner and demand.priority == other.priority


def _fills_a_gap(moment: ScheduleMoment, job: int, earlier: int, forecasts: SetForecasts) -> bool:
    """Return whether the earlier job cannot run beside the present set, and this job ends before the set changes."""
    if forecasts.step_ns(moment.running | 1 << earlier) is not None:
        return False
    together = moment.running | 1 << job
    times = forecasts.step_ns(together)
    if times is None:
        return False
    left = moment.steps_left
    ends = {k: left[k] * ns for k, ns in zip(members(together), times, strict=True)}
    return all(ends[job] <= ns for ns in ends.values())
