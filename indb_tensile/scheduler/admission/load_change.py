"""Lets forecasts know what other programs use of the device's processor cores, and chooses again when they have left.

A choice to let a job wait may rest on a load that has gone since: without it, the jobs would gain from running side
by side. No other event would make the choice again before a running job ends, so a load that has fallen by much does.
A load that has risen does not: jobs that run side by side stay so (set_review.py undoes a set that is too slow). So
between two other choices, the load makes four at most, however often it rises and falls.
"""

from dataclasses import replace

from indb_tensile.scheduler.admission.decision import Decision
from indb_tensile.scheduler.admission.pool import JobStage, PlanReason
from indb_tensile.scheduler.completion.other_load import CoreUse

# The share of the cores that has to become free. With less, hardly any job that waits would start.
_MUCH = 0.25


def note_load(decision: Decision, use: CoreUse | None) -> None:
    """Count the cores that other programs use, if they have changed by more than noise. None: they are as before."""
    pool = decision.pool
    if use is None:
        return
    decision.pool = pool = replace(pool, contention=pool.contention.beside(use))
    if pool.due is not None or pool.asked or pool.last_choice is None or not pool.at(JobStage.WAITING):
        return
    load = pool.contention.load
    if pool.last_choice.device.contention.load.used_cores - load.used_cores > _MUCH * load.cores:
        decision.pool = replace(pool, last_choice=None)
        decision.plan_anew(PlanReason.START)
