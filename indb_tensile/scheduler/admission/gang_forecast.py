"""Foretell a rank of a job that several devices train together with the other ranks (timing/rank_steps.py).

All ranks are as slow as the slowest. So a rank lets the others know its step whenever its plan, or the time that it
takes, has changed, and foretells its iteration from the steps of all. A plan that is faster than the others gains
nothing: its trade-offs, and the division of its device's memory, count no iteration as shorter than the others need
(`TradeOff.waiting_for`, `Workload.others_ns`). So memory goes to other jobs of its device first.

A rank that yields memory in this way counts for the others with the time of its fastest plan. Otherwise two ranks
could keep each other slow: each would gain nothing as long as the other one is slow.

What is not known of another rank changes nothing: its rank is then foretold as if it had no effect. Nothing waits for
such knowledge.
"""

from dataclasses import replace

from indb_tensile.scheduler.admission.admission_orders import PublishStep
from indb_tensile.scheduler.admission.decision import Decision, planned, true_latencies
from indb_tensile.scheduler.admission.pool import JobStage, Member, PlanReason, Pool
from indb_tensile.scheduler.planner import JobPlan
from indb_tensile.scheduler.timing.job_runs import Forecast
from indb_tensile.scheduler.timing.rank_steps import (
    MOST_EXCHANGES,
    GangForecast,
    OtherRanks,
    PublishedStep,
    iteration_together,
)

_NEWS = 0.1  # share of a step by which its times change before the others are told, beside changes of plans
_NEAR = 1.05  # an iteration that is longer by less counts as equal


def hear_ranks(decision: Decision, member: Member, steps: tuple[tuple[int, PublishedStep], ...]) -> Member:
    """Return the member with what other ranks have let be known."""
    if member.job.gang is None:
        return member
    own = member.job.gang.rank
    others = OtherRanks.of([row for row in steps if row[0] != own], member.step)
    return decision.put(replace(member, others=others))


def plan_for_others(decision: Decision, member: Member) -> None:
    """Plan all jobs of the device anew if the other ranks are so much slower or faster now that memory should go to
    other jobs, or come back from them.
    """
    pool = decision.pool
    others = [m for m in pool.at(JobStage.RUNNING, JobStage.WAITING) if m.job.claim != member.job.claim]
    running = pool.at(JobStage.RUNNING)
    if pool.due is not None or member.stage is not JobStage.RUNNING or member.plan is None or not others:
        return
    if not all(m.settled for m in running):
        return  # a transition between two divisions is not interrupted
    least_ns = max(1, _least_ns(pool, member, member.plan.forecast.iteration_ns))
    before_ns, after_ns = (max(ns, least_ns) for ns in (planned(member).others_ns, member.others.needed_ns))
    if abs(after_ns - before_ns) > pool.drift_threshold * before_ns:
        decision.plan_anew(PlanReason.DRIFT)


def step_under(decision: Decision, member: Member, plan: JobPlan) -> PublishedStep | None:
    """Return the step of a rank under a plan that it does not follow yet; None for a job of one device."""
    workload = planned(member)
    exchanges = sum(operator.starts is not None for operator in workload.graphs[0].operators)
    if member.job.gang is None or exchanges > MOST_EXCHANGES:
        return None
    return _completed(decision.pool, member, decision.planner.rank_step(workload, plan), plan.forecast)


def renew_step(decision: Decision, member: Member) -> Member:
    """Return the member with its step by the latest forecast of its plan. Let the others know if it has changed."""
    if member.step is None or member.plan is None:
        return member
    step = _completed(decision.pool, member, member.step, member.plan.forecast)
    return publish_step(decision, member, step)


def publish_step(decision: Decision, member: Member, step: PublishedStep | None) -> Member:
    """Return the member with this step, which the other ranks get to know if it is news."""
    if step is None:
        return member
    if member.published is None or _is_news(member.published, step):
        decision.order(PublishStep(job=member.job.job, claim=member.job.claim, step=step))
        member = replace(member, published=step)
    return replace(member, step=step, others=OtherRanks.of(member.others.steps, step))


def forecast_together(member: Member, step: PublishedStep | None, forecast: Forecast) -> Forecast:
    """Return the forecast of this rank's iteration with its waits for the other ranks, as far as they are known."""
    gang = gang_forecast(member, step)
    if gang is None:
        return forecast
    late_ns = max(0, gang.iteration_ns - forecast.iteration_ns)
    return replace(forecast, iteration_ns=forecast.iteration_ns + late_ns, exchange_ns=forecast.exchange_ns + late_ns)


def gang_forecast(member: Member, step: PublishedStep | None) -> GangForecast | None:
    """Return what is foretold of all ranks that are known; None if there are no others."""
    if step is None or member.job.gang is None:
        return None
    ranks = member.others.with_own(member.job.gang.rank, step)
    return iteration_together(ranks) if len(ranks) > 1 else None


def gang_text(member: Member) -> str:
    """Return in words how long an iteration of all devices of the job is foretold to take, and which is the slowest.

    Empty for a job of one device, and as long as nothing is known of the others.
    """
    gang = gang_forecast(member, member.step)
    if gang is None or member.job.gang is None:
        return ""
    slowest = "" if gang.slowest is None else f", of which rank {gang.slowest} is the slowest"
    return (
        f"job {member.job.job} trains on {member.job.gang.ranks} devices{slowest}, and an iteration of it is "
        f"foretold to take {gang.iteration_ns / 1e6:.3g} ms"
    )


def _completed(pool: Pool, member: Member, step: PublishedStep, forecast: Forecast) -> PublishedStep:
    """Return the step with the times of this forecast, and what the other ranks have to know beside them."""
    workload = planned(member)
    latency_ns = member.corrected_ns if member.measured else workload.latency_ns[0]
    pairs = zip(workload.graphs[0].operators, latency_ns, strict=True)
    awaited = sorted((operator.awaits, ns) for operator, ns in pairs if operator.awaits is not None)
    step = replace(step, exchange_ns=tuple(ns for _, ns in awaited), measured=member.measured)
    step = step.scaled(forecast.iteration_ns - forecast.exchange_ns)
    own_ns = forecast.iteration_ns
    least_ns = min(own_ns, _least_ns(pool, member, own_ns))
    yields = least_ns * _NEAR < own_ns <= workload.others_ns * _NEAR
    return replace(step, iteration_ns=own_ns, least_ns=least_ns, yields=yields)


def _least_ns(pool: Pool, member: Member, own_ns: int) -> int:
    """Return the iteration under the fastest plan that fits the device alone."""
    fitting = [point.iteration_ns for point in member.trade_offs if point.peak_bytes <= pool.budget_bytes]
    if fitting:
        return fitting[0]
    workload = planned(member)
    return min(own_ns, replace(workload, latency_ns=(true_latencies(member), *workload.latency_ns[1:])).step_ns)


def _is_news(before: PublishedStep, step: PublishedStep) -> bool:
    if (before.events, before.yields, before.measured) != (step.events, step.yields, step.measured):
        return True
    least_ns = _NEWS * max(1, before.iteration_ns)
    changes_ns = (
        sum(step.work_ns) - sum(before.work_ns),
        step.iteration_ns - before.iteration_ns,
        # a slower network, and waits for another rank: these matter less, and change more
        (sum(step.exchange_ns) - sum(before.exchange_ns)) / 3,
    )
    return any(abs(change_ns) > least_ns for change_ns in changes_ns)
