"""Plan all jobs of a device together: ask a policy for plans and evaluate its answer with the simulator."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from indb_tensile.errors import InvariantError
from indb_tensile.job import JobId
from indb_tensile.scheduler.exchange_times import ExchangeTime
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import liveness_peak, vanilla_peak
from indb_tensile.scheduler.phased_plans import Phased, budget_steps, fastest, forecasts, peaks, phased
from indb_tensile.scheduler.phases.round_part import RoundPart
from indb_tensile.scheduler.plan import Infeasible, Plan
from indb_tensile.scheduler.plan_cache import PlanCache
from indb_tensile.scheduler.policies import DEFAULT_POLICY, policy_named
from indb_tensile.scheduler.policies.policy import PlanOptions, Plans
from indb_tensile.scheduler.search.local_search import CancellationCheck, Effort, never_cancel
from indb_tensile.scheduler.timing.job_runs import Compute, Forecast, JobRun
from indb_tensile.scheduler.timing.rank_steps import PublishedStep
from indb_tensile.scheduler.timing.schedule import Schedule
from indb_tensile.scheduler.timing.simulate_ranks import RankRun, step_of_rank
from indb_tensile.scheduler.workload import Workload, least_bytes

__all__ = [
    "JobPlan",
    "Workload",
    "foresee",
    "least_bytes",
    "plan_jobs",
    "rank_step",
    "renew",
    "schedules_of",
    "together_bytes",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlan:
    """The plans of one job, with the figures without planning for comparison. Peaks are the largest of the job's
    graphs.
    """

    job: JobId
    plans: tuple[Plan, ...]  # one per graph
    forecast: Forecast  # of the training step, while all other jobs run
    vanilla_peak_bytes: int
    liveness_peak_bytes: int
    floor_bytes: int
    peak_bytes: int
    swaps: int  # in the training step
    swapped_bytes: int  # in the training step, to the host and back
    # The gates to pass. With a schedule jobs together need less than the sum of their peaks.
    schedule: Schedule | None = None
    part: RoundPart | None = None  # with a schedule that is executed: the job's part in it


def plan_jobs(
    workloads: Sequence[Workload],
    *,
    budget_bytes: int,
    link: Link,
    policy: str = DEFAULT_POLICY,
    rewrites: bool = True,
    phases: bool = False,
    compute: Compute = Compute.OVERLAP,
    effort: Effort = Effort.USUAL,
    cancellation_check: CancellationCheck = never_cancel,
    cache: PlanCache | None = None,
) -> tuple[JobPlan, ...] | Infeasible:
    """Return plans under which the jobs' peaks fit the budget together and each job keeps to its own limit.

    With `rewrites` a plan may run operators again, in another order or in parts. With `phases` the budget limits the
    sum of the jobs' loads at any time instead of the sum of their peaks. Jobs with a `schedule` then have to pass its
    gates; the same work takes no longer than in plans without gates. `rewrites`, `compute`, `effort` and
    `cancellation_check` are the options of the policy (`PlanOptions`). `cache` saves time if the same graphs are
    planned again. Raises MissingError for an unknown policy.
    """
    planning_policy = policy_named(policy)
    if budget_bytes < 0:
        raise InvariantError(f"budget_bytes is {budget_bytes}, which is negative")
    if len({workload.job for workload in workloads}) < len(workloads):
        raise InvariantError(f"a job is planned twice: {[workload.job for workload in workloads]}")
    kept = PlanCache() if cache is None else cache
    refusal = _below_floor(workloads, budget_bytes, phases=phases, cache=kept)
    if refusal is not None:
        return refusal

    options = PlanOptions(rewrites=rewrites, compute=compute, effort=effort, cancellation_check=cancellation_check)
    budget_planner = planning_policy.budget_planner(workloads, link=link, options=options, cache=kept)
    plans = budget_planner.plans(budget_bytes)
    if phases:
        for_phases = map(budget_planner.plans_in_phases, budget_steps(workloads, budget_bytes, cache=kept))
        chosen = _in_phases(workloads, (plans, *for_phases), budget_bytes, link, compute, policy, kept)
        return chosen if isinstance(chosen, Infeasible) else job_plans(workloads, chosen, kept)
    refusal = _over(workloads, plans, budget_bytes, policy, kept)
    if refusal is not None:
        return refusal
    forecast_list = forecasts(workloads, plans, link, compute, cache=kept)
    return job_plans(workloads, Phased(plans=plans, schedules=(), forecasts=forecast_list), kept)


def _in_phases(
    workloads: Sequence[Workload],
    planned: Sequence[Plans],
    budget_bytes: int,
    link: Link,
    compute: Compute,
    policy: str,
    cache: PlanCache,
) -> Phased | Infeasible:
    """Return the fastest of the plans that the policy made for this budget and, in phases, for larger budgets."""
    candidates: list[Phased] = []
    refusals: list[Infeasible] = []
    for plans in dict.fromkeys(planned):
        refusal = _over(workloads, plans, None, policy, cache)
        candidate = refusal or phased(
            workloads, plans, budget_bytes=budget_bytes, link=link, compute=compute, policy=policy, cache=cache
        )
        if isinstance(candidate, Infeasible):
            refusals.append(candidate)
        else:
            candidates.append(candidate)
    if not candidates:
        return min(refusals, key=lambda refusal: (refusal.shortfall_bytes, refusal.reason))
    return fastest(workloads, candidates)


def foresee(
    workloads: Sequence[Workload], plans: Sequence[JobPlan], *, link: Link, cache: PlanCache | None = None
) -> tuple[JobPlan, ...]:
    """Return the same plans with the simulator's forecasts for the workloads' present latencies."""
    ids = [plan.job for plan in plans]
    # without the schedules of jobs of which one has ended
    schedules = [s.among(ids) for s in schedules_of(plans) if set(s.jobs).issubset(ids)]
    forecast_list = forecasts(workloads, [plan.plans for plan in plans], link, schedules=schedules, cache=cache)
    return tuple(replace(plan, forecast=forecast) for plan, forecast in zip(plans, forecast_list, strict=True))


def rank_step(workload: Workload, plan: JobPlan, *, link: Link, cache: PlanCache | None = None) -> PublishedStep:
    """Return what the other ranks of a job need to know of the training step of this one under its plan.

    Times between exchanges are those of the rank alone on its device, stretched to the plan's forecast beside others.
    """
    graph, latency_ns = workload.graphs[0], workload.latency_ns[0]
    times = {o.awaits: ns for o, ns in zip(graph.operators, latency_ns, strict=True) if o.awaits is not None}
    run = JobRun(
        graph=graph,
        plan=plan.plans[0],
        latency_ns=latency_ns,
        batch=workload.batch,
        beside=workload.batch_beside,
        copy_loss=workload.copy_loss,
    )
    exchanges = tuple(ExchangeTime.free(times[number]) for number in sorted(times))
    step = step_of_rank(RankRun(run=run, exchanges=exchanges, link=link), cache=cache)
    return step.scaled(plan.forecast.iteration_ns - plan.forecast.exchange_ns)


def renew(
    workloads: Sequence[Workload],
    plans: Sequence[JobPlan],
    *,
    budget_bytes: int,
    link: Link,
    policy: str = DEFAULT_POLICY,
    effort: Effort = Effort.USUAL,
    cancellation_check: CancellationCheck = never_cancel,
    cache: PlanCache | None = None,
) -> tuple[JobPlan, ...] | None:
    """Return the policy's plans for the workloads' present latencies, renewed from the plans that the jobs follow.

    tensile+ derives them from the present plans in a fraction of the time of planning (policies/replan.py). With full
    effort it plans anew as well, and the faster plans are taken. None if all jobs have to be planned anew: under a
    policy that does not renew plans, in phases, or if the budget is not met.
    """
    kept = PlanCache() if cache is None else cache
    if any(plan.schedule is not None for plan in plans):
        return None
    if _below_floor(workloads, budget_bytes, phases=False, cache=kept) is not None:
        return None
    renewed = policy_named(policy).renew(
        workloads,
        tuple(plan.plans for plan in plans),
        budget_bytes=budget_bytes,
        link=link,
        options=PlanOptions(effort=effort, cancellation_check=cancellation_check),
        cache=kept,
    )
    if renewed is None or _over(workloads, renewed, budget_bytes, policy, kept) is not None:
        return None
    forecast_list = forecasts(workloads, renewed, link, cache=kept)
    return job_plans(workloads, Phased(plans=renewed, schedules=(), forecasts=forecast_list), kept)


def schedules_of(plans: Sequence[JobPlan]) -> tuple[Schedule, ...]:
    """Return the schedules that these jobs keep to, each of them once."""
    return tuple(dict.fromkeys(plan.schedule for plan in plans if plan.schedule is not None))


def together_bytes(plans: Sequence[JobPlan]) -> int:
    """Return the most bytes that the jobs need together: the budgets of the schedules plus the peaks of jobs without
    a schedule.
    """
    gated = sum(schedule.budget_bytes for schedule in schedules_of(plans))
    return gated + sum(plan.peak_bytes for plan in plans if plan.schedule is None)


def _below_floor(
    workloads: Sequence[Workload], budget_bytes: int, *, phases: bool, cache: PlanCache
) -> Infeasible | None:
    """Return a refusal if the operators' working sets alone exceed the budget. In phases only one job's operator runs
    at its peak at a time, so the largest counts.
    """
    floors = [least_bytes(workload, cache) for workload in workloads]
    for workload, least in zip(workloads, floors, strict=True):
        if workload.limit_bytes is not None and least > workload.limit_bytes:
            reason = f"the largest operator of job {workload.job} alone needs {least} bytes"
            return Infeasible(needed_bytes=least, budget_bytes=workload.limit_bytes, reason=reason)
    needed = max(floors, default=0) if phases else sum(floors)
    if needed > budget_bytes:
        together = len(floors) > 1 and not phases
        subject = "the largest operators of all jobs need" if together else "the largest operator alone needs"
        return Infeasible(needed_bytes=needed, budget_bytes=budget_bytes, reason=f"{subject} {needed} bytes")
    return None


def _over(
    workloads: Sequence[Workload],
    plans: Sequence[tuple[Plan, ...]],
    budget_bytes: int | None,
    policy: str,
    cache: PlanCache,
) -> Infeasible | None:
    """Return a refusal if a job exceeds its limit or, where there is a budget for the sum of the peaks, if all jobs
    exceed it.
    """
    tops = peaks(workloads, plans, cache)
    for workload, peak_bytes in zip(workloads, tops, strict=True):
        if workload.limit_bytes is not None and peak_bytes > workload.limit_bytes:
            reason = f"under policy {policy} job {workload.job} needs {peak_bytes} bytes"
            return Infeasible(needed_bytes=peak_bytes, budget_bytes=workload.limit_bytes, reason=reason)
    if budget_bytes is not None and sum(tops) > budget_bytes:
        subject = "the job needs" if len(tops) == 1 else f"{len(tops)} jobs together need"
        reason = f"under policy {policy} {subject} {sum(tops)} bytes"
        return Infeasible(needed_bytes=sum(tops), budget_bytes=budget_bytes, reason=reason)
    return None


def job_plans(
    workloads: Sequence[Workload], chosen: Phased, cache: PlanCache, parts: Sequence[RoundPart] = ()
) -> tuple[JobPlan, ...]:
    """Return the jobs' plans with their figures, and with their parts in a round if there is one."""
    ids = [workload.job for workload in workloads]
    schedules = {job: schedule.called(ids) for schedule in chosen.schedules for job in schedule.jobs}
    return tuple(
        JobPlan(
            job=workload.job,
            plans=plans,
            forecast=forecast,
            vanilla_peak_bytes=max(vanilla_peak(graph, cache) for graph in workload.graphs),
            liveness_peak_bytes=max(liveness_peak(graph, cache) for graph in workload.graphs),
            floor_bytes=least_bytes(workload, cache),
            peak_bytes=peak_bytes,
            swaps=len(plans[0].swaps),
            swapped_bytes=forecast.out_bytes + forecast.in_bytes,
            schedule=schedules.get(position),
            part=parts[position] if parts else None,
        )
        for position, (workload, plans, forecast, peak_bytes) in enumerate(
            zip(workloads, chosen.plans, chosen.forecasts, peaks(workloads, chosen.plans, cache), strict=True)
        )
    )
