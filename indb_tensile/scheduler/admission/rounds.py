"""Decide when jobs share the device in phases: they join a round, run in it, and leave it together.

    looked for -- plans that are faster --> forming -- all have joined --> running -- other plans --> leaving -- over

A round is looked for in the background, after the ready plans were sent and improved, if the jobs run for long enough
(sharing.py). A job joins when it adopts its plan for the round. From then on it has its base as its grant, and the
rest comes from the round's pool of regions. The pool is filled as the jobs shrink to their bases. A job that has
joined waits for regions that are not there yet, and for gates of jobs that have not joined yet; these jobs wait for
nobody, so all join within one iteration of the slowest.

Whatever needs other plans (a job comes, ends or parks, the budget or the latencies change) is planned as ever while
the round goes on. When the plans are there, all jobs leave at the end of their iterations. Plans without a round are
sent only when it is over and its regions are free, so the grants and the pool never exceed the budget together.

The others never wait for a job that does not iterate: its own trainer plays its part, or the controller does if the
trainer has ended, or has never joined (device/round_member.py).

Jobs of different owners do not share a round, because its regions pass from job to job without being wiped. A rank of
a job for several devices is in no round: its iterations wait for other devices. A job whose full batches have several
lengths is in none either: only one of its graphs could pass gates, and the others would wait while it runs the rest.
"""

from dataclasses import replace

from indb_tensile.scheduler.admission.admission_orders import (
    AskPlanner,
    BeginRound,
    EndRound,
    LeaveRound,
    PlayPart,
    SetRoundPool,
)
from indb_tensile.scheduler.admission.decision import Decision, planned
from indb_tensile.scheduler.admission.events import RoundLeft
from indb_tensile.scheduler.admission.pool import ActiveRound, JobStage, Member, PlanReason, Pool, Target, TrainerId
from indb_tensile.scheduler.admission.questions import Unanswered
from indb_tensile.scheduler.admission.region_fit import beside
from indb_tensile.scheduler.admission.sharing import advance, is_worth_improving, left_ns
from indb_tensile.scheduler.host_memory import host_bytes
from indb_tensile.scheduler.planner import JobPlan
from indb_tensile.scheduler.timing.job_runs import Compute

_SETTLED = (
    JobStage.CLAIMED,
    JobStage.CAPTURING,
    JobStage.WAITING,
    JobStage.RUNNING,
    JobStage.PARKED,
    JobStage.CLOSING,
)


def keep_round(decision: Decision) -> None:
    """Take every step of the present round that is possible now, or look for a round."""
    if decision.pool.round is None:
        _look(decision)
    current = decision.pool.round
    if current is None:
        return
    after = _leave(decision, _fill(decision, _play(decision, current)))
    decision.pool = replace(decision.pool, round=after)
    if after is None:
        advance(decision)


def round_left(decision: Decision, event: RoundLeft) -> None:
    """Note that a trainer has left the round."""
    current = decision.pool.round
    if current is not None and current.number == event.number:
        decision.pool = replace(decision.pool, round=replace(current, left=current.left | {event.trainer}))


def _look(decision: Decision) -> None:
    """Ask the planner for a round of the jobs that run, once for their present plans."""
    pool = decision.pool
    running = pool.at(JobStage.RUNNING)
    generations = tuple((m.job.job, m.generation) for m in running)
    idle = pool.due is None and not pool.asked and generations != pool.looked_for
    if not pool.phases or not idle or not _may_share(pool, running) or left_ns(pool) < pool.phases_ns:
        return
    if pool.improvable and is_worth_improving(pool):
        return
    present = tuple(member.plan.plans for member in running if member.plan is not None)
    compute = Compute.TURNS if pool.contention.slowdown(len(running)) > (1 + len(running)) / 2 else Compute.OVERLAP
    try:
        plans = decision.planner.plan_round(
            tuple(replace(beside(pool, planned(member)), graph_share=member.graph_share) for member in running),
            present,
            budget_bytes=pool.whole(pool.budget_bytes),
            region_bytes=pool.region_bytes,
            compute=compute,
        )
    except Unanswered as unanswered:
        decision.pool = replace(pool, asked=True)
        decision.order(AskPlanner(question=unanswered.question))
        return
    decision.pool = replace(pool, looked_for=generations)
    if plans is not None:
        _begin(decision, running, plans)


def _may_share(pool: Pool, running: tuple[Member, ...]) -> bool:
    """Return whether these jobs follow their plans, belong to one owner, and no job is about to need the device."""
    owners = {member.job.owner_oid for member in running}
    follow = all(m.settled and m.plan is not None and not m.parked and m.job.gang is None for m in running)
    follow = follow and not any(member.alternates for member in running)
    others = all(member.stage in _SETTLED for member in pool.members)
    return len(running) > 1 and len(owners) == 1 and follow and others


def _begin(decision: Decision, running: tuple[Member, ...], plans: tuple[JobPlan, ...]) -> None:
    pool = decision.pool
    trainers = tuple(member.trainer for member in running if member.trainer is not None)
    parts = tuple(plan.part for plan in plans if plan.part is not None)
    number = pool.rounds + 1
    pool_bytes = pool.whole(pool.budget_bytes) - sum(part.base_bytes for part in parts)
    decision.pool = replace(
        pool, rounds=number, round=ActiveRound(number=number, trainers=trainers, pool_bytes=pool_bytes)
    )
    decision.order(BeginRound(number=number, trainers=trainers, parts=parts))
    for member, plan, part in zip(running, plans, parts, strict=True):
        pinned_bytes = host_bytes(planned(member).graphs, plan.plans)
        target = Target(plan=plan, grant_bytes=part.base_bytes, host_bytes=pinned_bytes, reason=PlanReason.DRIFT)
        decision.put(replace(member, target=target))
    advance(decision)


def _play(decision: Decision, current: ActiveRound) -> ActiveRound:
    """Have the parts played of trainers that have ended, or will not iterate in the round."""
    for trainer in current.trainers:
        if trainer not in current.played and not _plays_itself(decision.pool, trainer):
            decision.order(PlayPart(trainer=trainer))
            current = replace(current, played=current.played | {trainer})
    return current


def _plays_itself(pool: Pool, trainer: TrainerId) -> bool:
    """Return whether the trainer iterates in the round, or will join it, or leaves the device and plays its part."""
    member = pool.of_trainer(trainer)
    if member is None or member.stage not in (JobStage.RUNNING, JobStage.PARKING):
        return False
    return any(plan is not None and plan.part is not None for plan in (member.plan, _target_plan(member)))


def _target_plan(member: Member) -> JobPlan | None:
    return None if member.target is None else member.target.plan


def _fill(decision: Decision, current: ActiveRound) -> ActiveRound:
    """Give the round what its members have given up, as far as no member's own grant still needs it."""
    pool = decision.pool
    promised_bytes = sum(max(member.held_bytes, _base_bytes(member)) for member in pool.members)
    room_bytes = max(0, pool.whole(pool.budget_bytes) - promised_bytes)
    wanted_bytes = min(current.pool_bytes, room_bytes)
    if wanted_bytes <= current.pooled_bytes:
        return current
    decision.order(SetRoundPool(size_bytes=wanted_bytes))
    return replace(current, pooled_bytes=wanted_bytes)


def _base_bytes(member: Member) -> int:
    """Return the base that a member will have, if it has not been sent its plan for the round yet."""
    plan = _target_plan(member)
    return 0 if plan is None or plan.part is None else plan.part.base_bytes


def _leave(decision: Decision, current: ActiveRound) -> ActiveRound | None:
    """Leave the round when all have joined and other plans are there. Return None when it is over."""
    members = [(trainer, decision.pool.of_trainer(trainer)) for trainer in current.trainers]
    present = [(t, m) for t, m in members if m is not None and m.stage is JobStage.RUNNING and t not in current.left]
    if not current.leaving:
        if decision.pool.forming or not _is_due(decision.pool, current):
            return current
        for trainer, member in present:
            if member.plan is not None and member.plan.part is not None:
                decision.order(LeaveRound(trainer=trainer, number=current.number))
        current = replace(current, leaving=True)
    if any(_may_hold(m) and t not in current.left for t, m in members):
        return current
    decision.order(EndRound(number=current.number))
    decision.order(SetRoundPool(size_bytes=0))
    return None


def _other_plan(member: Member) -> bool:
    """Return whether a plan without the round waits for the member."""
    plan = _target_plan(member)
    return plan is not None and plan.part is None


def _is_due(pool: Pool, current: ActiveRound) -> bool:
    """Return whether jobs have to leave: plans without the round are there, or nobody is left to share with."""
    waiting = any(_other_plan(member) for member in pool.at(JobStage.RUNNING))
    return waiting or not any(_may_hold(pool.of_trainer(t)) for t in current.trainers if t not in current.left)


def _may_hold(member: Member | None) -> bool:
    """Return whether a member that has not left may hold regions of the round: until it ends or leaves the device."""
    if member is None or member.stage not in (JobStage.RUNNING, JobStage.ENDING, JobStage.PARKING):
        return False
    return member.plan is not None and member.plan.part is not None
