"""Undo a set of jobs that turns out slower than running fewer of them, and avoid this kind of set for a time.

The measured system throughput of the present set is compared with what running one job fewer would give, and that is
at least 1 (one job alone). If it stays below by more than `_MARGIN`, the job that gains least leaves the device, and
waits for admission like a new one. The slowdowns that were measured then replace the forecast for all sets of the
same kind, by the signatures of the jobs' graphs, for `_REMEMBERED_S`: long enough that the set is not formed again
soon, and short enough that a machine which was busy with other work gets another trial.

A rank of a job that several devices train does not leave: the other devices would wait for it.
"""

from dataclasses import replace

from indb_tensile.scheduler.admission.completion_rule import demand_of, shared_device
from indb_tensile.scheduler.admission.decision import Decision, planned
from indb_tensile.scheduler.admission.parking import free_places, set_aside
from indb_tensile.scheduler.admission.pool import JobStage, Member, Pool, Sharing
from indb_tensile.scheduler.admission.shift_costs import change_ns
from indb_tensile.scheduler.completion.set_forecasts import SetForecasts, SlowSet
from indb_tensile.scheduler.host_memory import parked_bytes

# Larger than the noise of reports, and than most errors of a time alone that is known from a calibration only.
_MARGIN = 0.1
_REPORTS = 3  # reports in a row of each job of the set that must all be too slow
_REMEMBERED_S = 3_600.0
_MOST_REMEMBERED = 32


def review(decision: Decision) -> None:
    """Judge the set that runs, after a measurement of one of its jobs, once all of them were measured."""
    pool = decision.pool
    speeds = dict(pool.running_set.speeds)
    if pool.sharing is not Sharing.COMPLETION or not 2 <= len(pool.running_set.jobs) == len(speeds):
        return
    running = pool.at(JobStage.RUNNING)
    if tuple(m.job.job for m in running) != pool.running_set.jobs or any(not m.trade_offs for m in running):
        return
    if any(m.disturbed for m in running):  # something else made this report slow (measurements.py)
        return
    low = sum(speeds.values()) < (1 - _MARGIN) * _of_fewer(pool, running)
    reports = pool.running_set.low_reports + 1 if low else 0
    decision.pool = replace(pool, running_set=replace(pool.running_set, low_reports=reports))
    if reports >= _REPORTS * len(running) and _is_undoable(pool, running):
        _undo(decision, running)


def _of_fewer(pool: Pool, running: tuple[Member, ...]) -> float:
    """Return the foretold throughput of the best set of one job fewer."""
    forecasts = SetForecasts(tuple(demand_of(pool, m) for m in running), shared_device(pool, pool.budget_bytes))
    everybody = (1 << len(running)) - 1
    return max(1.0, *(forecasts.throughput(everybody & ~(1 << k)) for k in range(len(running))))


def _is_undoable(pool: Pool, running: tuple[Member, ...]) -> bool:
    """Return whether a job can leave now, and the set would last for long enough to pay for that."""
    if free_places(pool) < 1 or pool.at(JobStage.PARKING) or not all(m.settled and m.adopted for m in running):
        return False
    if all(m.job.gang is not None for m in running):
        return False
    speeds = dict(pool.running_set.speeds)
    lasts_ns = min(m.steps_left * m.alone_ns / max(speeds[m.job.job], 1e-9) for m in running)
    leaving = _gains_least(pool, running)
    needed_bytes = parked_bytes(planned(leaving).graphs) - leaving.host_bytes
    return lasts_ns > change_ns(pool, leaving) and needed_bytes + pool.region_bytes <= pool.free_host_bytes


def _undo(decision: Decision, running: tuple[Member, ...]) -> None:
    pool = decision.pool
    speeds = dict(pool.running_set.speeds)
    rows = sorted((demand_of(pool, m).kind, 1 / max(speeds[m.job.job], 1e-9)) for m in running)
    slow = SlowSet(
        kinds=tuple(kind for kind, _ in rows),
        slowdowns=tuple(factor for _, factor in rows),
        until_s=pool.now_s + _REMEMBERED_S,
    )
    kept = tuple(known for known in pool.slow_sets if known.kinds != slow.kinds)
    decision.pool = replace(
        pool,
        slow_sets=(*kept, slow)[-_MOST_REMEMBERED:],
        running_set=replace(pool.running_set, low_reports=0),
    )
    set_aside(decision, _gains_least(pool, running))


def _gains_least(pool: Pool, running: tuple[Member, ...]) -> Member:
    """Return the job with the least speed relative to alone; of equal ones the lower priority, then the later."""
    speeds = dict(pool.running_set.speeds)
    single = [member for member in running if member.job.gang is None]
    return min(single, key=lambda m: (m.job.priority, speeds[m.job.job], -m.job.job))
