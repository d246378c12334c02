"""Plans for all jobs of a device together: asks a policy, then judges what it answers by one cost model."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from indb_tensile.errors import InvariantError, MissingError
from indb_tensile.job import JobId
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import liveness_peak, vanilla_peak
from indb_tensile.scheduler.phased_plans import Phased, Plans, fastest, forecasts, peaks, phased, rungs
from indb_tensile.scheduler.plan import Infeasible, Plan
from indb_tensile.scheduler.policies import DEFAULT_POLICY, POLICIES
from indb_tensile.scheduler.policies.tensile_plus import Climb
from indb_tensile.scheduler.replan import replan
from indb_tensile.scheduler.search.descent import Effort, Heed, unhurried
from indb_tensile.scheduler.timing.schedule import Schedule
from indb_tensile.scheduler.timing.simulate import Compute, Forecast
from indb_tensile.scheduler.workload import Workload, least_bytes

__all__ = [
    "JobPlan",
    "Workload",
    "foresee",
    "improve",
    "least_bytes",
    "plan_jobs",
    "renew",
    "schedules_of",
    "together_bytes",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlan:
    """What one job is to do, beside what it would need without planning. Peaks are the largest of its graphs."""

    job: JobId
    plans: tuple[Plan, ...]  # one per graph
    forecast: Forecast  # of the training step, beside all the others
    vanilla_peak_bytes: int
    liveness_peak_bytes: int
    floor_bytes: int
    peak_bytes: int
    swaps: int  # in the training step
    swapped_bytes: int  # in the training step, both ways
    schedule: Schedule | None = None  # the gates to pass, which let jobs together need less than their peaks' sum


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
    heed: Heed = unhurried,
) -> tuple[JobPlan, ...] | Infeasible:
    """Plans under which the jobs' peaks fit the budget together and each keeps to its own limit.

    With `rewrites` a plan may run operators again, in another order or in parts. With `phases` the budget is for the
    most that the jobs' loads come to at any time, and jobs have to pass the gates of their `schedule`, where they
    have one; their work takes no longer than without. The default policy minds the `effort`, and calls `heed` now and
    then: what that raises ends this. Raises MissingError for a policy that is not there.
    """
    if policy not in POLICIES:
        raise MissingError(f"there is no policy '{policy}'", hint=f"Policies are: {', '.join(sorted(POLICIES))}.")
    if budget_bytes < 0:
        raise InvariantError(f"budget_bytes is {budget_bytes}, less than nothing")
    if len({workload.job for workload in workloads}) < len(workloads):
        raise InvariantError(f"a job is planned twice: {[workload.job for workload in workloads]}")
    refusal = _below_floor(workloads, budget_bytes, phases=phases)
    if refusal is not None:
        return refusal

    climb = Climb(workloads, link=link, rewrites=rewrites, compute=compute, effort=effort, heed=heed)

    def asked(budget_bytes: int) -> Plans:
        if policy == DEFAULT_POLICY:
            return climb.plans(budget_bytes)
        return POLICIES[policy](workloads, budget_bytes=budget_bytes, link=link, rewrites=rewrites)

    plans = asked(budget_bytes)
    if phases:
        more = rungs(workloads, budget_bytes)
        for_phases = map(climb.plans_in_phases if policy == DEFAULT_POLICY else asked, more)
        chosen = _in_phases(workloads, (plans, *for_phases), budget_bytes, link, compute, policy)
        if isinstance(chosen, Infeasible):
            return chosen
        return _job_plans(workloads, chosen)
    refusal = _over(workloads, plans, budget_bytes, policy)
    if refusal is not None:
        return refusal
    found = forecasts(workloads, plans, link, compute)
    return _job_plans(workloads, Phased(plans=plans, schedules=(), forecasts=found))


def _in_phases(
    workloads: Sequence[Workload],
    asked: Sequence[Plans],
    budget_bytes: int,
    link: Link,
    compute: Compute,
    policy: str,
) -> Phased | Infeasible:
    """The fastest of what the policy planned for this budget and, in phases, for larger ones."""
    found: list[Phased] = []
    refusals: list[Infeasible] = []
    for plans in dict.fromkeys(asked):
        refusal = _over(workloads, plans, None, policy)
        one = refusal or phased(
            workloads, plans, budget_bytes=budget_bytes, link=link, compute=compute, policy=policy
        )
        if isinstance(one, Infeasible):
            refusals.append(one)
        else:
            found.append(one)
    if not found:
        return min(refusals, key=lambda refusal: (refusal.shortfall_bytes, refusal.reason))
    return fastest(workloads, found)


def foresee(workloads: Sequence[Workload], plans: Sequence[JobPlan], *, link: Link) -> tuple[JobPlan, ...]:
    """The same plans, and what the simulator says of them with the workloads' present latencies."""
    ids = [plan.job for plan in plans]
    schedules = [schedule.among(ids) for schedule in schedules_of(plans)]
    found = forecasts(workloads, [plan.plans for plan in plans], link, schedules=schedules)
    return tuple(replace(plan, forecast=forecast) for plan, forecast in zip(plans, found, strict=True))


def renew(
    workloads: Sequence[Workload], plans: Sequence[JobPlan], *, budget_bytes: int, link: Link
) -> tuple[JobPlan, ...] | None:
    """Plans for the workloads' present latencies, gone on from those that are followed: quick (search/replan.py).

    None where all jobs have to be planned anew: under another policy, in phases, or where the budget is not met.
    """
    if any(plan.schedule is not None for plan in plans):
        return None
    found = replan(workloads, tuple(plan.plans for plan in plans), budget_bytes=budget_bytes, link=link)
    if found is None or _over(workloads, found, budget_bytes, DEFAULT_POLICY) is not None:
        return None
    return _job_plans(workloads, Phased(plans=found, schedules=(), forecasts=forecasts(workloads, found, link)))


def improve(
    workloads: Sequence[Workload],
    plans: Sequence[JobPlan],
    *,
    budget_bytes: int,
    link: Link,
    heed: Heed = unhurried,
) -> tuple[JobPlan, ...] | None:
    """Better plans while these are followed: gone on from them, or made anew with all effort, whichever is faster.

    For tensile+ alone, with `heed` as in `plan_jobs`. None where that finds no plans within the budget, or the jobs
    are in phases.
    """
    if any(plan.schedule is not None for plan in plans):
        return None
    renewed = renew(workloads, plans, budget_bytes=budget_bytes, link=link)
    anew = plan_jobs(workloads, budget_bytes=budget_bytes, link=link, effort=Effort.FULL, heed=heed)
    found = [one for one in (renewed, anew) if one is not None and not isinstance(one, Infeasible)]
    return min(found, key=lambda one: _slowdown(workloads, one), default=None)


def _slowdown(workloads: Sequence[Workload], plans: Sequence[JobPlan]) -> float:
    """How much longer the jobs' iterations take than without waits, summed."""
    return sum(p.forecast.iteration_ns / sum(w.latency_ns[0]) for w, p in zip(workloads, plans, strict=True))


def schedules_of(plans: Sequence[JobPlan]) -> tuple[Schedule, ...]:
    """The schedules that these jobs keep to, each once."""
    return tuple(dict.fromkeys(plan.schedule for plan in plans if plan.schedule is not None))


def together_bytes(plans: Sequence[JobPlan]) -> int:
    """What jobs under these plans need together at most: a schedule's budget, and the peaks of those without one."""
    gated = sum(schedule.budget_bytes for schedule in schedules_of(plans))
    return gated + sum(plan.peak_bytes for plan in plans if plan.schedule is None)


def _below_floor(workloads: Sequence[Workload], budget_bytes: int, *, phases: bool) -> Infeasible | None:
    """No plan can help: operators alone need more, in phases one job's at a time."""
    floors = [least_bytes(workload) for workload in workloads]
    for workload, least in zip(workloads, floors, strict=True):
        if workload.limit_bytes is not None and least > workload.limit_bytes:
            reason = f"the largest operator of job {workload.job} alone needs {least} bytes"
            return Infeasible(needed_bytes=least, budget_bytes=workload.limit_bytes, reason=reason)
    needed = max(floors, default=0) if phases else sum(floors)
    if needed > budget_bytes:
        together = len(floors) > 1 and not phases
        who = "the largest operators of all jobs need" if together else "the largest operator alone needs"
        return Infeasible(needed_bytes=needed, budget_bytes=budget_bytes, reason=f"{who} {needed} bytes")
    return None


def _over(
    workloads: Sequence[Workload], plans: Sequence[tuple[Plan, ...]], budget_bytes: int | None, policy: str
) -> Infeasible | None:
    """A job over its limit or, where there is a budget for the sum of their peaks, all together over that."""
    tops = peaks(workloads, plans)
    for workload, peak_bytes in zip(workloads, tops, strict=True):
        if workload.limit_bytes is not None and peak_bytes > workload.limit_bytes:
            reason = f"under policy {policy} job {workload.job} needs {peak_bytes} bytes"
            return Infeasible(needed_bytes=peak_bytes, budget_bytes=workload.limit_bytes, reason=reason)
    if budget_bytes is not None and sum(tops) > budget_bytes:
        who = "the job needs" if len(tops) == 1 else f"{len(tops)} jobs together need"
        reason = f"under policy {policy} {who} {sum(tops)} bytes"
        return Infeasible(needed_bytes=sum(tops), budget_bytes=budget_bytes, reason=reason)
    return None


def _job_plans(workloads: Sequence[Workload], chosen: Phased) -> tuple[JobPlan, ...]:
    ids = [workload.job for workload in workloads]
    schedules = {job: one.called(ids) for one in chosen.schedules for job in one.jobs}
    return tuple(
        JobPlan(
            job=workload.job,
            plans=plans,
            forecast=forecast,
            vanilla_peak_bytes=max(vanilla_peak(graph) for graph in workload.graphs),
            liveness_peak_bytes=max(liveness_peak(graph) for graph in workload.graphs),
            floor_bytes=least_bytes(workload),
            peak_bytes=peak_bytes,
            swaps=len(plans[0].swaps),
            swapped_bytes=forecast.out_bytes + forecast.in_bytes,
            schedule=schedules.get(position),
        )
        for position, (workload, plans, forecast, peak_bytes) in enumerate(
            zip(workloads, chosen.plans, chosen.forecasts, peaks(workloads, chosen.plans), strict=True)
        )
    )
