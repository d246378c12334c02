"""Lend running jobs memory beside their plans for their next batches, while nobody else can use that memory.

A job uploads its next batch while the present one is trained on. Where its plan has no bytes to spare for that
(memory/next_batch.py), an iteration waits for its batch: a fifth of its time in a small perceptron. If device memory
is free, the job is lent the bytes of one batch, in whole regions.

A loan is no part of the division of the memory: plans, targets and the waiting of jobs are decided as if it were
free. It is given to jobs that have settled, in the order of their claims, and taken back as soon as anything may need
memory: when a job is on its way in, when all jobs are to be planned anew, and while a plan waits for bytes. A job
takes seconds to be read and captured, so the loans have usually returned before it needs memory. A drift alone takes
nothing back, since its plans are made from the same memory.

The trainer gives the loan back at the end of an iteration and says so. It also gives it back on its own with every
change of plans, when it leaves the device, and when it has done its last step. The bytes count as the job's until
then, so the grants, loans included, never exceed the budget together. A trainer that never answers is ended as
stalled. A loan keeps to the job's limit and to its owner's quota, and is not charged to the owner.
"""

from dataclasses import replace

from indb_tensile.scheduler.admission.admission_orders import LendForBatch
from indb_tensile.scheduler.admission.decision import Decision, corrected, planned
from indb_tensile.scheduler.admission.events import BatchLoan
from indb_tensile.scheduler.admission.plan_targets import held_bytes, renew_forecasts
from indb_tensile.scheduler.admission.pool import JobStage, Member, PlanReason, Pool
from indb_tensile.scheduler.memory.next_batch import batch_tensors, buffer_bytes

# Share of an iteration that a loan has to save. The forecast's own error is about as large.
_LEAST_GAIN = 0.01
_LEAST_LEFT_NS = (
    1_000_000_000  # a job that trains for less gets no loan: it may have ended before it can give it back
)
_NEEDING = (JobStage.CLAIMED, JobStage.CAPTURING, JobStage.UNMEASURED, JobStage.CALIBRATING)


def keep_batch_loans(decision: Decision) -> None:
    """Take all loans back if anything may need the memory, or lend what is free if nothing does."""
    if not decision.pool.batch:
        return
    if _is_needed(decision.pool):
        _take_back(decision)
    elif _is_quiet(decision.pool):
        _lend(decision)


def loan_changed(decision: Decision, event: BatchLoan) -> None:
    """Note what the trainer has of its loan now. What it gave back is free as soon as the ledger confirms that."""
    member = decision.pool.of_trainer(event.trainer)
    if member is None or member.stage is not JobStage.RUNNING or not member.lent_bytes or event.size_bytes:
        return
    if event.number != member.loans and not (member.returning and event.number == member.loans - 1):
        return  # it is about an earlier loan
    refused = 0 if member.returning else member.generation  # it cannot use a loan under this plan, or has ended
    member = decision.put(replace(member, lent_bytes=0, returning=False, refused_loan=refused))
    if not member.in_flight:  # the grant then covers the old plan and the new one, until this one is adopted
        decision.put(replace(decision.grant(member, member.planned_bytes), returned=True))


def expect_free(pool: Pool) -> Pool:
    """Return the pool without waiting any longer for the ledger to confirm that returned loans are free."""
    members = tuple(replace(m, returned=False) if m.returned else m for m in pool.members)
    return replace(pool, members=members)


def _is_needed(pool: Pool) -> bool:
    """Return whether a job may need what is lent: one on its way in, or one whose plan waits for bytes."""
    due = pool.due not in (None, PlanReason.DRIFT) or pool.round is not None
    return due or bool(pool.at(*_NEEDING)) or any(m.target is not None for m in pool.at(JobStage.RUNNING))


def _is_quiet(pool: Pool) -> bool:
    """Return whether all jobs on the device follow their plans, and nothing is about to change that."""
    settled = all(m.settled and m.trains and not m.parked for m in pool.at(JobStage.RUNNING))
    return settled and pool.due is None and not pool.asked and not pool.at(JobStage.PARKING)


def _take_back(decision: Decision) -> None:
    for member in decision.pool.at(JobStage.RUNNING):
        if member.lent_bytes and not member.returning and not member.in_flight and member.trainer is not None:
            number = member.loans + 1
            decision.order(LendForBatch(trainer=member.trainer, number=number, size_bytes=0))
            decision.put(replace(member, loans=number, returning=True))


def _lend(decision: Decision) -> None:
    for member in decision.pool.at(JobStage.RUNNING):
        if not _waits_for_batches(member):
            continue
        size_bytes = _batch_bytes(decision.pool, member)
        loan_bytes = decision.pool.regions(size_bytes)
        if not 0 < loan_bytes <= _most_bytes(decision.pool, member):
            continue
        if not _gains(decision, member):
            decision.put(replace(member, refused_loan=member.generation))
            continue
        member = decision.grant(member, member.granted_bytes + loan_bytes)
        assert member.trainer is not None
        number = member.loans + 1
        decision.order(LendForBatch(trainer=member.trainer, number=number, size_bytes=size_bytes))
        decision.put(replace(member, loans=number, lent_bytes=loan_bytes))
        renew_forecasts(decision)


def _waits_for_batches(member: Member) -> bool:
    """Return whether the job waits for its batches for long enough, has no loan, and has not refused one."""
    if member.lent_bytes or member.refused_loan == member.generation or member.trainer is None or member.plan is None:
        return False
    forecast = member.plan.forecast
    lasts = member.steps_left * forecast.iteration_ns >= _LEAST_LEFT_NS
    return lasts and member.plan.part is None and forecast.upload_ns >= _LEAST_GAIN * forecast.iteration_ns


def _batch_bytes(pool: Pool, member: Member) -> int:
    graph = planned(member).graphs[0]
    return buffer_bytes(graph, batch_tensors(graph, pool.batch))


def _most_bytes(pool: Pool, member: Member) -> int:
    """Return the most that the job may be lent: of the free memory, its own limit, and its owner's quota."""
    own_bytes, quota_bytes = member.job.spec.memory_limit_bytes, member.job.owner_limit_bytes
    most_bytes = pool.free_bytes
    if own_bytes is not None:
        most_bytes = min(most_bytes, own_bytes - member.planned_bytes)
    if quota_bytes is not None:
        owned = [m for m in pool.members if m.job.owner_oid == member.job.owner_oid]
        most_bytes = min(most_bytes, quota_bytes - sum(held_bytes(m) + m.lent_bytes for m in owned))
    return most_bytes


def _gains(decision: Decision, member: Member) -> bool:
    """Return whether iterations become shorter by enough, by the simulator."""
    followed = [(m, m.plan) for m in decision.pool.at(JobStage.RUNNING) if m.plan is not None]
    workloads = [
        replace(corrected(m), batch_beside=m.lent_bytes > 0 or m.job.job == member.job.job) for m, _ in followed
    ]
    expected = decision.planner.foresee(tuple(workloads), tuple(plan for _, plan in followed))
    (after,) = (plan.forecast for plan in expected if plan.job == member.job.job)
    (before,) = (plan.forecast for m, plan in followed if m.job.job == member.job.job)
    return after.iteration_ns <= (1 - _LEAST_GAIN) * before.iteration_ns
