"""Plans that jobs are to follow, and the steps in which jobs get there without ever exceeding the budget.

A *target* is a plan that a job is to follow next. A job that shrinks is sent its plan at once and keeps its old grant
until it has adopted the new plan. A job that grows is sent its plan when the bytes are free, and then a new job is.
The ledger therefore covers the old and the new plan of every job at every moment, and the grants never add up to more
than the budget. No order of adoptions can block: once every job that shrinks has shrunk, the sum of targets fits, so
each growing job finds its bytes.
"""

from dataclasses import replace

from indb_tensile.errors import InvariantError
from indb_tensile.scheduler.admission.admission_orders import (
    EndMethod,
    RecordForecast,
    RecordPlan,
    SendPlans,
)
from indb_tensile.scheduler.admission.decision import Decision, corrected, planned
from indb_tensile.scheduler.admission.gang_forecast import (
    forecast_together,
    publish_step,
    renew_step,
    step_under,
)
from indb_tensile.scheduler.admission.pool import (
    JobStage,
    Member,
    Outcome,
    PlanReason,
    Pool,
    Target,
)
from indb_tensile.scheduler.admission.region_fit import beside, fit, grant_of
from indb_tensile.scheduler.host_memory import host_bytes
from indb_tensile.scheduler.plan import Infeasible
from indb_tensile.scheduler.planner import JobPlan
from indb_tensile.sizes import size


def send_plans(decision: Decision) -> None:
    """Send every target that is safe to follow now: those of jobs that shrink, that grow, that start."""
    for member in _unsent(decision.pool):
        if member.target is not None and member.target.grant_bytes <= member.granted_bytes:
            _send(decision, member, member.target)
    for member in sorted(_unsent(decision.pool), key=lambda m: m.generation == 0):
        if member.target is None or _awaits_loan(decision.pool, member):
            continue
        if member.target.grant_bytes - member.held_bytes <= decision.pool.free_bytes:
            _send(decision, member, member.target)


def _awaits_loan(pool: Pool, member: Member) -> bool:
    """Return whether another job of the owner still has a loan that counts against the owner's quota."""
    others = (m for m in pool.at(JobStage.RUNNING) if m.job.claim != member.job.claim and m.lent_bytes)
    return member.job.owner_limit_bytes is not None and any(m.job.owner_oid == member.job.owner_oid for m in others)


def fit_members(
    decision: Decision, members: tuple[Member, ...], budget_bytes: int
) -> tuple[JobPlan, ...] | Infeasible:
    """Return plans for these members that fit into the budget together: those of an equal set that was planned
    before, or else the planner's, which are remembered.
    """
    pool, workloads = decision.pool, tuple(planned(m) for m in members)
    followed = [m.plan if m.target is None else m.target.plan for m in members]
    known = pool.plans.of(workloads, followed, budget_bytes=budget_bytes, most_drift=pool.drift_threshold)
    if known is not None and _fit_host_pool(pool, members, known):
        return decision.planner.foresee(tuple(beside(pool, w) for w in workloads), known)
    plans = fit(decision.planner, pool, workloads, budget_bytes=budget_bytes)
    if not isinstance(plans, Infeasible):
        remember_plans(decision, members, plans, budget_bytes)
    return plans


def remember_plans(
    decision: Decision, members: tuple[Member, ...], plans: tuple[JobPlan, ...], budget_bytes: int
) -> None:
    """Remember these plans for sets of equal jobs in the same memory."""
    known = decision.pool.plans.with_those_of([planned(m) for m in members], plans, budget_bytes=budget_bytes)
    decision.pool = replace(decision.pool, plans=known)


def _fit_host_pool(pool: Pool, members: tuple[Member, ...], plans: tuple[JobPlan, ...]) -> bool:
    """Return whether these plans have room in the host pool beside what the other members have there."""
    if pool.host_pool_bytes is None:
        return True
    jobs = {member.job.job for member in members}
    others_bytes = sum(m.host_bytes for m in pool.members if m.job.job not in jobs)
    pairs = zip(members, plans, strict=True)
    own_bytes = sum(max(m.host_bytes, host_bytes(planned(m).graphs, plan.plans)) for m, plan in pairs)
    return own_bytes + others_bytes <= pool.host_pool_bytes


def renew_forecasts(decision: Decision) -> None:
    """Renew the forecasts of the present plans with the latest latencies, without planning anew."""
    followed = [(m, m.plan) for m in decision.pool.at(JobStage.RUNNING) if m.plan is not None]
    workloads = tuple(replace(corrected(member), batch_beside=member.lent_bytes > 0) for member, _ in followed)
    expected = decision.planner.foresee(workloads, tuple(plan for _, plan in followed))
    for (member, _), plan in zip(followed, expected, strict=True):
        decision.put(_renew_forecast(decision, member, plan))


def set_targets(
    decision: Decision, members: tuple[Member, ...], plans: tuple[JobPlan, ...], reason: PlanReason
) -> None:
    """Make these plans the members' targets, except where a member follows the plan already."""
    for member, plan in zip(members, plans, strict=True):
        grant_bytes = grant_of(decision.planner, decision.pool, planned(member), plan)
        same = (
            member.plan is not None
            and member.plan.part is None  # otherwise it needs the same plan without a round
            and (member.plan.plans, member.planned_bytes) == (plan.plans, grant_bytes)
        )
        target = None
        if same and not member.outdated:
            member = member if member.lent_bytes else _renew_forecast(decision, member, plan)
        else:
            pinned_bytes = host_bytes(planned(member).graphs, plan.plans)
            target = Target(plan=plan, grant_bytes=grant_bytes, host_bytes=pinned_bytes, reason=reason)
        decision.put(replace(member, stage=JobStage.RUNNING, target=target))
    if decision.pool.lent_bytes:
        renew_forecasts(decision)  # the plans' own forecasts know of no loan


def _renew_forecast(decision: Decision, member: Member, plan: JobPlan) -> Member:
    """Record a new forecast for the same plan, if newer latencies have changed it."""
    if member.plan is None:
        return member
    before = member.recorded or member.plan.forecast
    job, member = member.job, renew_step(decision, replace(member, plan=plan))
    forecast = forecast_together(member, member.step, plan.forecast)
    if forecast == before:
        return member
    decision.order(RecordForecast(job=job.job, claim=job.claim, generation=member.generation, forecast=forecast))
    return replace(member, recorded=None if member.step is None else forecast)


def _send(decision: Decision, member: Member, target: Target) -> None:
    """Send the plan, unless a job that is leaving still has host memory that the plan needs. The member's own memory
    suffices until then.
    """
    if target.host_bytes - member.host_bytes > decision.pool.free_host_bytes:
        return
    member = decision.grant(member, max(member.granted_bytes, target.grant_bytes))
    step = step_under(decision, member, target.plan)
    forecast = forecast_together(member, step, target.plan.forecast)
    if member.trainer is None:
        raise InvariantError(f"job {member.job.job} has a plan and no trainer")
    generation = member.generation + 1
    decision.order(
        SendPlans(
            trainer=member.trainer,
            generation=generation,
            grant_bytes=target.grant_bytes,
            plans=target.plan.plans,
            correction=member.correction,
            round=None if target.plan.part is None else decision.pool.rounds,
        )
    )
    decision.order(
        RecordPlan(
            job=member.job.job,
            claim=member.job.claim,
            generation=generation,
            reason=target.reason,
            grant_bytes=target.grant_bytes,
            plan=replace(target.plan, forecast=forecast),
        )
    )
    decision.put(
        replace(
            publish_step(decision, member, step),
            generation=generation,
            plan=target.plan,
            recorded=None if step is None else forecast,
            planned_bytes=target.grant_bytes,
            planned_host_bytes=target.host_bytes,
            host_bytes=max(member.host_bytes, target.host_bytes),
            planned_correction=member.correction,
            resend=False,
            sent_s=member.sent_s if member.generation else decision.pool.now_s,
            target=None,
        )
    )


def _unsent(pool: Pool) -> tuple[Member, ...]:
    """Return the members to which a plan may be sent. During a round only the plans of the round may."""
    return tuple(
        m
        for m in pool.at(JobStage.RUNNING)
        if m.target is not None and not m.in_flight and (pool.round is None or m.target.plan.part is not None)
    )


def promise_bytes(member: Member) -> int:
    """Return the grant that the member has, or will have when its target is reached."""
    return member.planned_bytes if member.target is None else member.target.grant_bytes


def promised_bytes(pool: Pool) -> int:
    """Return the memory that all jobs have, or will have when their targets are reached."""
    return sum(promise_bytes(m) for m in pool.at(JobStage.RUNNING)) + reserved_bytes(pool) + pool.round_bytes


def reserved_bytes(pool: Pool) -> int:
    """Return the memory of calibrations, which no plan can have."""
    return sum(m.granted_bytes for m in pool.at(JobStage.CALIBRATING))


def held_bytes(member: Member) -> int:
    """Return the memory that the job has, or will have if that is more. A loan for its next batch does not count."""
    return max(member.held_bytes - member.lent_bytes, promise_bytes(member))


def waits_for_memory(decision: Decision, least_bytes: int, shortfall_bytes: int) -> str:
    """Return the text that `stat_queue` shows: the memory that is needed, the memory that is missing, and the jobs
    that hold it.
    """
    holders = [f"job {m.job.job} ({size(held_bytes(m))})" for m in decision.pool.members if held_bytes(m)]
    text = f"at least {size(least_bytes)} of device memory, held by {' and '.join(holders)}"
    if shortfall_bytes > 0:
        text += f": {size(shortfall_bytes)} more than the budget of {size(decision.pool.budget_bytes)}"
    return f"{text}; {size(decision.pool.free_bytes + decision.pool.lent_bytes)} are free"


def end_member(decision: Decision, member: Member, outcome: Outcome, reason: PlanReason) -> None:
    """End the job of a member that no plan can fit. This stands, whatever has to be asked about the other members."""
    decision.end(member, outcome, EndMethod.TERMINATE)
    decision.plan_anew(reason)
