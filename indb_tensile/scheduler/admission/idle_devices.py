"""Hand a job over to a controller that has nothing to do.

A controller claims more jobs than run at once, so that the next one is prepared when another ends. If a second
controller comes, or is done with its own jobs, they would wait here while its device is idle. So the job that would
start last goes back into the queue, where the other controller finds it: this one leaves it to a device with less
work (tensile.better_worker). Each job is handed over like this at most once, before it has trained. So nobody makes
way for a job that may be handed over soon.

If all jobs have trained, but share the device or take turns, the one with the most work left saves a checkpoint in
the catalog and goes (`ParkJob.elsewhere`). It goes only if what is left, of this job and of the others, takes much
longer than the move: the other controller reads the table and captures the step again.
"""

from dataclasses import replace

from indb_tensile.job import Blame
from indb_tensile.scheduler.admission.decision import Decision
from indb_tensile.scheduler.admission.plan_targets import end_member
from indb_tensile.scheduler.admission.pool import Interrupted, JobStage, Member, PlanReason, Pool
from indb_tensile.scheduler.workload import least_bytes

# Heartbeats in a row at which another device was idle. A job of the queue is claimed sooner, within poll_s.
_REPORTS = 3
# A training moves only if both it and those that stay need longer than this with a device for themselves. The move
# takes some seconds, or about 10 s for a large network.
_LEAST_LEFT_NS = 30_000_000_000


def hand_over(decision: Decision, budget_bytes: int | None) -> None:
    """Give a job up once another device that could hold it has been idle for a few heartbeats.

    The job goes back into the queue, from which that device's controller claims it.
    `budget_bytes` is that device's budget, or None if no other device is idle.
    """
    reports = 0 if budget_bytes is None else decision.pool.idle_reports + 1
    decision.pool = replace(decision.pool, idle_reports=reports, idle_bytes=budget_bytes)
    if budget_bytes is None or reports < _REPORTS:
        return
    waiting = _last_to_start(decision.pool, budget_bytes)
    going = _longest_trained(decision.pool, budget_bytes) if waiting is None else waiting
    if going is None:
        return
    decision.pool = replace(decision.pool, idle_reports=0, idle_bytes=None)
    if waiting is None:
        decision.put(replace(going, moving=True))  # parking.py tells its trainer
    else:
        reason = "it waited here, and the device of another controller is idle"
        end_member(decision, waiting, Interrupted(reason=reason, blame=Blame.NOBODY), PlanReason.START)


def goes_soon(pool: Pool, member: Member) -> bool:
    """Return whether the job will be handed over at one of the next heartbeats if the other device stays idle."""
    if pool.idle_bytes is None:
        return False
    going = _last_to_start(pool, pool.idle_bytes)
    return going is not None and going.job.job == member.job.job


def _last_to_start(pool: Pool, budget_bytes: int) -> Member | None:
    if not pool.at(JobStage.RUNNING, JobStage.CALIBRATING):
        return None  # nothing keeps the waiting jobs from starting here
    waiting = pool.at(JobStage.WAITING, JobStage.UNMEASURED)
    return next((m for m in reversed(waiting) if _may_go(m) and _floor_bytes(m) <= budget_bytes), None)


def _longest_trained(pool: Pool, budget_bytes: int) -> Member | None:
    """Return the running job with the most work left, if both it and the others that would stay have enough of it."""
    if not pool.moves_trained or pool.at(JobStage.PARKING):
        return None
    sharing = [m for m in pool.at(JobStage.RUNNING, JobStage.PARKED, JobStage.WAITING) if not m.paused]
    going = max((m for m in sharing if _may_move(m) and _floor_bytes(m) <= budget_bytes), key=_left_ns, default=None)
    if going is None:
        return None
    staying_ns = sum(_left_ns(member) for member in sharing) - _left_ns(going)
    return going if min(_left_ns(going), staying_ns) >= _LEAST_LEFT_NS else None


def _may_move(member: Member) -> bool:
    follows_a_plan = member.stage is JobStage.RUNNING and member.settled and member.plan is not None
    return follows_a_plan and member.job.gang is None and not (member.set_aside or member.parked or member.stays)


def _left_ns(member: Member) -> float:
    return member.steps_left * member.alone_ns


def _may_go(member: Member) -> bool:
    """Return whether the job has never trained, and waits for this device and not for its owner or other devices."""
    return (
        member.job.gang is None
        and member.job.attempt == 1
        and member.generation == 0
        and not (member.paused or member.over_quota)
    )


def _floor_bytes(member: Member) -> int:
    """Return the least memory that the job may need. If it needs more, the other controller leaves it to a larger."""
    return member.need_bytes if member.workload is None else max(member.need_bytes, least_bytes(member.workload))
