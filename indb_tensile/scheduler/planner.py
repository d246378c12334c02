"""Plans for all jobs of a device together: asks a policy, then judges what it answers by one cost model."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from indb_tensile.errors import InvariantError, MissingError
from indb_tensile.job import JobId
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.peak import liveness_peak, peak, vanilla_peak
from indb_tensile.scheduler.plan import Infeasible, Plan
from indb_tensile.scheduler.policies import DEFAULT_POLICY, POLICIES
from indb_tensile.scheduler.simulate import Forecast, JobRun, simulate
from indb_tensile.scheduler.workload import Workload, least_bytes

__all__ = ["JobPlan", "Workload", "foresee", "least_bytes", "plan_jobs"]


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


def plan_jobs(
    workloads: Sequence[Workload],
    *,
    budget_bytes: int,
    link: Link,
    policy: str = DEFAULT_POLICY,
    rewrites: bool = False,
) -> tuple[JobPlan, ...] | Infeasible:
    """Plans under which the jobs' peaks fit the budget together and each keeps to its own limit.

    With `rewrites` a plan may run operators again, in another order or in parts. Raises MissingError for
    a policy that is not there.
    """
    if policy not in POLICIES:
        raise MissingError(f"there is no policy '{policy}'", hint=f"Policies are: {', '.join(sorted(POLICIES))}.")
    if budget_bytes < 0:
        raise InvariantError(f"budget_bytes is {budget_bytes}, less than nothing")
    if len({workload.job for workload in workloads}) < len(workloads):
        raise InvariantError(f"a job is planned twice: {[workload.job for workload in workloads]}")
    refusal = _below_floor(workloads, budget_bytes)
    if refusal is not None:
        return refusal
    plans = POLICIES[policy](workloads, budget_bytes=budget_bytes, link=link, rewrites=rewrites)
    peaks = [
        max(peak(graph, plan) for graph, plan in zip(workload.graphs, chosen, strict=True))
        for workload, chosen in zip(workloads, plans, strict=True)
    ]
    return _over(workloads, peaks, budget_bytes, policy) or _job_plans(workloads, plans, peaks, link)


def foresee(workloads: Sequence[Workload], plans: Sequence[JobPlan], *, link: Link) -> tuple[JobPlan, ...]:
    """The same plans, and what the simulator says of them with the workloads' present latencies."""
    forecasts = _forecasts(workloads, [plan.plans for plan in plans], link)
    return tuple(replace(plan, forecast=forecast) for plan, forecast in zip(plans, forecasts, strict=True))


def _below_floor(workloads: Sequence[Workload], budget_bytes: int) -> Infeasible | None:
    """No plan can help: operators alone need more."""
    floors = [least_bytes(workload) for workload in workloads]
    for workload, least in zip(workloads, floors, strict=True):
        if workload.limit_bytes is not None and least > workload.limit_bytes:
            reason = f"the largest operator of job {workload.job} alone needs {least} bytes"
            return Infeasible(needed_bytes=least, budget_bytes=workload.limit_bytes, reason=reason)
    if sum(floors) > budget_bytes:
        who = "the largest operator alone needs" if len(floors) == 1 else "the largest operators of all jobs need"
        reason = f"{who} {sum(floors)} bytes"
        return Infeasible(needed_bytes=sum(floors), budget_bytes=budget_bytes, reason=reason)
    return None


def _over(workloads: Sequence[Workload], peaks: Sequence[int], budget_bytes: int, policy: str) -> Infeasible | None:
    for workload, peak_bytes in zip(workloads, peaks, strict=True):
        if workload.limit_bytes is not None and peak_bytes > workload.limit_bytes:
            reason = f"under policy {policy} job {workload.job} needs {peak_bytes} bytes"
            return Infeasible(needed_bytes=peak_bytes, budget_bytes=workload.limit_bytes, reason=reason)
    if sum(peaks) > budget_bytes:
        who = "the job needs" if len(peaks) == 1 else f"{len(peaks)} jobs together need"
        reason = f"under policy {policy} {who} {sum(peaks)} bytes"
        return Infeasible(needed_bytes=sum(peaks), budget_bytes=budget_bytes, reason=reason)
    return None


def _job_plans(
    workloads: Sequence[Workload], plans: Sequence[tuple[Plan, ...]], peaks: Sequence[int], link: Link
) -> tuple[JobPlan, ...]:
    return tuple(
        JobPlan(
            job=workload.job,
            plans=chosen,
            forecast=forecast,
            vanilla_peak_bytes=max(vanilla_peak(graph) for graph in workload.graphs),
            liveness_peak_bytes=max(liveness_peak(graph) for graph in workload.graphs),
            floor_bytes=least_bytes(workload),
            peak_bytes=peak_bytes,
            swaps=len(chosen[0].swaps),
            swapped_bytes=forecast.out_bytes + forecast.in_bytes,
        )
        for workload, chosen, forecast, peak_bytes in zip(
            workloads, plans, _forecasts(workloads, plans, link), peaks, strict=True
        )
    )


def _forecasts(workloads: Sequence[Workload], plans: Sequence[tuple[Plan, ...]], link: Link) -> tuple[Forecast, ...]:
    """What the simulator says of all training steps side by side."""
    runs = [
        JobRun(graph=workload.graphs[0], plan=chosen[0], latency_ns=workload.latency_ns[0])
        for workload, chosen in zip(workloads, plans, strict=True)
    ]
    return simulate(runs, link) if runs else ()
