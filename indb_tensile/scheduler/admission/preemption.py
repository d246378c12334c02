"""A job makes running jobs of its owner with lower priorities leave the device, if it would wait for them.

The lower jobs are set aside: their trainers park them at their next iteration's boundary (parking.py). As soon as no
job of a higher priority waits any more, they may return, and wait for admission like new jobs. Foretold completion
then decides whether they run beside the higher job or after it.

A job that waited for its first step for `first_step_s` trains for a quantum (shift_costs.py) before it makes way: it
went before the higher jobs, and if they displaced it at once, it would have waited for nothing. Each job has one such
turn, so two jobs cannot displace each other again and again.

Priorities are compared between the jobs of one owner only. Otherwise any role could take the device from the others.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from indb_tensile.job import JobId
from indb_tensile.scheduler.admission.decision import Decision
from indb_tensile.scheduler.admission.fair_turns import keeps_place
from indb_tensile.scheduler.admission.parking import bring_back, set_aside
from indb_tensile.scheduler.admission.pool import JobStage, Member, PlanReason, Pool, Sharing
from indb_tensile.scheduler.admission.shift_costs import is_in_quantum, is_worth_a_change, quantum_ns


def change_priorities(decision: Decision, priorities: Mapping[JobId, int]) -> None:
    """Give jobs their new priorities, and divide the device anew if a job waits that they could concern."""
    for member in decision.pool.members:
        priority = priorities.get(member.job.job, member.job.priority)
        if priority != member.job.priority:
            decision.put(replace(member, job=replace(member.job, priority=priority)))
    if decision.pool.at(JobStage.WAITING) or any(member.set_aside for member in decision.pool.members):
        decision.plan_anew(PlanReason.START)


def make_way(decision: Decision, head: Member) -> bool:
    """Set aside the running jobs of the same owner that have lower priorities than this job. It could run if they
    were away. Return whether any was set aside.

    A job that ends before its state had left the device and returned goes on: a change would cost more than it gives.
    A job that leaves does not come back beside higher ones for a quantum, unless that clearly raises the throughput
    (completion/start_rules.py). So changes take at most a twentieth of its time, as in shifts.
    If this job keeps its place although a higher one waits as well, jobs leave as they would for the higher one.
    """
    pool = decision.pool
    heads = [head]
    if keeps_place(pool, head):
        heads += [m for m in pool.at(JobStage.WAITING) if not (m.paused or m.set_aside or m.over_quota)]
    leaving = [
        member
        for member in pool.at(JobStage.RUNNING)
        if any(_is_lower(member, other) for other in heads) and _may_leave(pool, member)
    ]
    for member in leaving:
        quantum_s = quantum_ns(pool, member) / 1e9 if pool.link is not None else 0.0
        decision.put(replace(set_aside(decision, member), away_until_s=pool.now_s + quantum_s))
    return bool(leaving)


def has_first_turn(pool: Pool, member: Member) -> bool:
    """Return whether the running job has its first quantum, after its first step had been overdue.

    Where the speed of the link is not known, and so neither what a change costs, it has its first step.
    """
    if member.stage is not JobStage.RUNNING or member.parks or member.ready_s is None:
        return False
    if member.sent_s - member.ready_s < pool.first_step_s:
        return False
    return is_in_quantum(pool, member) if pool.link is not None else member.steps_left >= member.turn_steps


def end_first_turn(decision: Decision, before: Member) -> None:
    """Divide the memory anew if the first turn of this job is over since `before`, and a higher job waits."""
    member = decision.pool.of_job(before.job.job)
    if member is None or not has_first_turn(decision.pool, before) or has_first_turn(decision.pool, member):
        return
    if any(_is_lower(member, other) for other in decision.pool.at(JobStage.WAITING)):
        decision.plan_anew(PlanReason.START)


def let_return(decision: Decision, waiting: Iterable[Member]) -> None:
    """Let jobs return that were set aside, unless one of these waiting jobs of their owners has a higher priority."""
    if decision.pool.sharing is not Sharing.COMPLETION:
        return
    heads = [m for m in waiting if not m.paused and not m.set_aside]
    for member in decision.pool.members:
        if member.set_aside and member.aside_for is None and not any(_is_lower(member, head) for head in heads):
            bring_back(decision, member)


def higher_that_leaves(pool: Pool, member: Member) -> Member | None:
    """Return a job of the same owner with a higher priority that is leaving the device and will wait for it then.

    The waiting job goes after it, although it is not among the waiting jobs for the moment. None for a waiting job
    that goes before higher ones, because its first step is overdue or the other leaves for it.
    """
    if keeps_place(pool, member):
        return None
    leaving = (m for m in pool.at(JobStage.PARKING) if not (m.paused or m.moving) and m.aside_for != member.job.job)
    return next((m for m in leaving if _is_lower(member, m)), None)


def _may_leave(pool: Pool, member: Member) -> bool:
    """Return whether the running job may leave now. The cost of a change counts once the link's speed is known."""
    if not member.settled or not member.adopted or member.set_aside or member.job.gang is not None:
        return False
    return not has_first_turn(pool, member) and (pool.link is None or is_worth_a_change(pool, member))


def _is_lower(member: Member, other: Member) -> bool:
    return member.job.owner_oid == other.job.owner_oid and member.job.priority < other.job.priority
