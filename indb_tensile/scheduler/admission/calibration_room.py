"""Give a job with unmeasured operators the memory in which they are measured: one job at a time, out of the free
memory. If too little is free, the other jobs are planned for less first.
"""

from dataclasses import replace

from indb_tensile.scheduler.admission.admission_orders import (
    GrantCalibration,
)
from indb_tensile.scheduler.admission.decision import Decision, planned
from indb_tensile.scheduler.admission.oversized_job import least_limit, too_large
from indb_tensile.scheduler.admission.plan_targets import (
    end_member,
    fit_members,
    promise_bytes,
    set_targets,
    waits_for_memory,
)
from indb_tensile.scheduler.admission.pool import (
    JobStage,
    Member,
    PlanReason,
    Pool,
)
from indb_tensile.scheduler.admission.trainer_assignment import holds_queue
from indb_tensile.scheduler.plan import Infeasible


def make_room(decision: Decision, head: Member, reason: PlanReason) -> bool:
    """Make room for the calibration. Return True if the job will have the room, or was ended."""
    pool = decision.pool
    limit_bytes = least_limit(head.job.spec.memory_limit_bytes, head.job.owner_limit_bytes)
    most_bytes = pool.whole(pool.budget_bytes)
    if limit_bytes is not None:
        most_bytes = min(most_bytes, pool.regions(limit_bytes))
    if head.need_bytes > most_bytes:
        needs = Infeasible(needed_bytes=head.need_bytes, budget_bytes=most_bytes, reason="largest operator")
        end_member(decision, head, too_large(decision, head, needs), reason)
        return True
    running = pool.at(JobStage.RUNNING)
    plans = fit_members(decision, running, pool.budget_bytes - head.need_bytes)
    if isinstance(plans, Infeasible):
        decision.wait(head, waits_for_memory(decision, head.need_bytes, plans.shortfall_bytes))
        return False
    decision.wait(head, None)
    room_bytes = pool.budget_bytes - head.need_bytes
    promised_bytes = sum(map(promise_bytes, running)) + pool.round_bytes
    if promised_bytes > room_bytes or any(m.outdated for m in running):
        set_targets(decision, running, plans, PlanReason.CALIBRATION)
        decision.pool = replace(decision.pool, shrunk=True)
    return True


def calibrate(decision: Decision) -> None:
    """Give the calibration all free memory, if the other jobs have settled and that memory suffices."""
    pool = decision.pool
    if pool.at(JobStage.CALIBRATING) or not all(m.settled for m in pool.at(JobStage.RUNNING)):
        return
    if any(m.lent_bytes or m.returned for m in pool.at(JobStage.RUNNING)):
        return  # that memory is about to be free too (batch_loans.py)
    head = _next_to_calibrate(pool)
    if head is None or head.trainer is None:
        return
    limit_bytes = planned(head).limit_bytes
    grant_bytes = pool.free_bytes if limit_bytes is None else min(pool.free_bytes, pool.regions(limit_bytes))
    trainer = head.trainer
    head = decision.grant(decision.wait(head, None), grant_bytes)
    decision.order(GrantCalibration(trainer=trainer, grant_bytes=grant_bytes))
    decision.put(replace(head, stage=JobStage.CALIBRATING))


def _next_to_calibrate(pool: Pool) -> Member | None:
    """Return the first unmeasured job for which there is room, unless an earlier job blocks the queue."""
    free_bytes = pool.free_bytes
    for member in pool.at(JobStage.WAITING, JobStage.UNMEASURED):
        if member.stage is JobStage.UNMEASURED:
            limit_bytes = least_limit(free_bytes, planned(member).limit_bytes) or 0
            if member.need_bytes <= pool.regions(limit_bytes):
                return member
        if holds_queue(member):
            return None
    return None
