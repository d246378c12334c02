"""A job makes running jobs of its owner with lower priorities leave the device, if it would wait for them.

The lower jobs are set aside: their trainers park them at their next iteration's boundary (parking.py). As soon as no
job of a higher priority waits any more, they may return, and wait for admission like new jobs. Foretold completion
then decides whether they run beside the higher job or after it.

Priorities are compared between the jobs of one owner only. Otherwise any role could take the device from the others.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from indb_tensile.job import JobId
from indb_tensile.scheduler.admission.decision import Decision
from indb_tensile.scheduler.admission.parking import bring_back, set_aside
from indb_tensile.scheduler.admission.pool import JobStage, Member, PlanReason, Sharing


def change_priorities(decision: Decision, priorities: Mapping[JobId, int]) -> None:
    """Give jobs their new priorities, and divide the device anew if a job waits that they could concern."""
    for member in decision.pool.members:
        priority = priorities.get(member.job.job, member.job.priority)
        if priority != member.job.priority:
            decision.put(replace(member, job=replace(member.job, priority=priority)))
    if decision.pool.at(JobStage.WAITING) or any(member.set_aside for member in decision.pool.members):
        decision.plan_anew(PlanReason.START)


def make_way(decision: Decision, head: Member) -> None:
    """Set aside the running jobs of the same owner that have lower priorities than this job. It could run if they
    were away.
    """
    for member in decision.pool.at(JobStage.RUNNING):
        follows_a_plan = member.settled and member.adopted > 0
        if _is_lower(member, head) and follows_a_plan and not member.set_aside and member.job.gang is None:
            set_aside(decision, member)


def let_return(decision: Decision, waiting: Iterable[Member]) -> None:
    """Let jobs return that were set aside, unless one of these waiting jobs of their owners has a higher priority."""
    if decision.pool.sharing is not Sharing.COMPLETION:
        return
    heads = [m for m in waiting if not m.paused and not m.set_aside]
    for member in decision.pool.members:
        if member.set_aside and member.aside_for is None and not any(_is_lower(member, head) for head in heads):
            bring_back(decision, member)


def _is_lower(member: Member, other: Member) -> bool:
    return member.job.owner_oid == other.job.owner_oid and member.job.priority < other.job.priority
