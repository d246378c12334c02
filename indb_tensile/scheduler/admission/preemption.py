"""A job of a higher priority makes running jobs of lower priorities leave the device, if it would wait for them.

The lower jobs are set aside: their trainers park them at their next iteration's boundary (parking.py). As soon as no
job of a higher priority waits any more, they may return, and wait for admission like new jobs. Foretold completion
then decides whether they run beside the higher job or after it.

Priorities are compared between all jobs of the controller. tensile_set_quota limits the priority that a role may use.
"""

from collections.abc import Iterable

from indb_tensile.scheduler.admission.decision import Decision
from indb_tensile.scheduler.admission.parking import bring_back, set_aside
from indb_tensile.scheduler.admission.pool import JobStage, Member, Sharing


def make_way(decision: Decision, head: Member) -> None:
    """Set aside the running jobs of lower priorities than this job, which could run if they were away."""
    for member in decision.pool.at(JobStage.RUNNING):
        follows_a_plan = member.settled and member.adopted > 0
        if member.job.priority < head.job.priority and follows_a_plan and not member.set_aside:
            set_aside(decision, member)


def let_return(decision: Decision, waiting: Iterable[Member]) -> None:
    """Let jobs return that were set aside, unless one of these waiting jobs has a higher priority."""
    if decision.pool.sharing is not Sharing.COMPLETION:
        return
    highest = max((m.job.priority for m in waiting if not m.paused and not m.set_aside), default=None)
    for member in decision.pool.members:
        if member.set_aside and member.aside_for is None and (highest is None or highest <= member.job.priority):
            bring_back(decision, member)
