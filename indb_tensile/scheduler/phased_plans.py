"""Choose plans and phases together for jobs that share a budget by passing gates.

With controlled phases the budget limits the sum of the jobs' loads at any time, not the sum of their peaks. A job may
then be planned for more memory than its part of the budget, with less overhead, and wait until the other jobs occupy
less. The amount is a trade-off between swapping and waiting. Plans are made for a fixed list of budgets up to the
budget under which no job needs planning. Each set of plans is interleaved under the real budget, and the simulator
decides under which the device does most work. The plans that need no phases take part as well.

The gates are those of the policy (`Policy.schedules`): Zico (Lim et al.) has its own, all others are interleaved
(phases/interleaved_schedule.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from indb_tensile.scheduler.exchange_times import blocking_ns
from indb_tensile.scheduler.graph import Stage
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import liveness_peak, peak
from indb_tensile.scheduler.phases.interleaved_schedule import Schedules
from indb_tensile.scheduler.plan import Infeasible, Plan
from indb_tensile.scheduler.plan_cache import PlanCache
from indb_tensile.scheduler.policies import DEFAULT_POLICY, POLICIES
from indb_tensile.scheduler.policies.policy import Plans
from indb_tensile.scheduler.timing.job_runs import Compute, Forecast, JobRun
from indb_tensile.scheduler.timing.schedule import Schedule
from indb_tensile.scheduler.timing.simulate import simulate
from indb_tensile.scheduler.workload import Workload, least_bytes

_STEP = 0.75  # ratio of one budget to plan for to the next higher one


@dataclass(frozen=True, slots=True, kw_only=True)
class Phased:
    """Plans, the schedules that enforce their phases, and their forecasts."""

    plans: Plans
    schedules: Schedules
    forecasts: tuple[Forecast, ...]


def budget_steps(
    workloads: Sequence[Workload], budget_bytes: int, *, cache: PlanCache | None = None
) -> tuple[int, ...]:
    """Return the budgets above this one to plan for, from the top down. They come from a list that is the same for
    any budget.

    Plans that need more than each job alone under this budget are of no use.
    """
    least = sum(least_bytes(workload, cache) for workload in workloads)
    most = sum(max(liveness_peak(graph, cache) for graph in workload.graphs) for workload in workloads)
    budgets = []
    candidate_bytes = most
    while candidate_bytes > max(budget_bytes, least):
        if candidate_bytes <= budget_bytes * len(workloads):
            budgets.append(candidate_bytes)
        candidate_bytes = int(candidate_bytes * _STEP)
    return tuple(budgets)


def phased(
    workloads: Sequence[Workload],
    plans: Plans,
    *,
    budget_bytes: int,
    link: Link,
    compute: Compute = Compute.OVERLAP,
    policy: str = DEFAULT_POLICY,
    cache: PlanCache | None = None,
) -> Phased | Infeasible:
    """Return these plans in phases under the budget, with the policy's gates."""
    if sum(peaks(workloads, plans, cache)) <= budget_bytes:
        return Phased(plans=plans, schedules=(), forecasts=forecasts(workloads, plans, link, compute, cache=cache))
    schedules = POLICIES[policy].schedules(
        workloads, plans, budget_bytes=budget_bytes, link=link, compute=compute, cache=cache
    )
    if isinstance(schedules, Infeasible):
        return schedules
    # without gates the peaks add up to no more than the budget
    gated = tuple(candidate for candidate in schedules if candidate.gates)
    return Phased(
        plans=plans, schedules=gated, forecasts=forecasts(workloads, plans, link, compute, gated, cache=cache)
    )


def fastest(workloads: Sequence[Workload], candidates: Sequence[Phased]) -> Phased:
    """Return the plans under which the device does most work. Of equal ones return the first."""
    return max(candidates, key=lambda candidate: work_of(workloads, candidate.forecasts))


def peaks(
    workloads: Sequence[Workload], plans: Sequence[tuple[Plan, ...]], cache: PlanCache | None = None
) -> list[int]:
    """Return each job's peak, the largest of its graphs."""
    return [
        max(peak(graph, plan, cache) for graph, plan in zip(workload.graphs, chosen, strict=True))
        for workload, chosen in zip(workloads, plans, strict=True)
    ]


def forecasts(
    workloads: Sequence[Workload],
    plans: Sequence[tuple[Plan, ...]],
    link: Link,
    compute: Compute = Compute.OVERLAP,
    schedules: Sequence[Schedule] = (),
    *,
    cache: PlanCache | None = None,
) -> tuple[Forecast, ...]:
    """Return the simulator's forecasts of all training steps side by side."""
    runs = [
        JobRun(
            graph=workload.graphs[0],
            plan=chosen[0],
            latency_ns=workload.latency_ns[0],
            batch=workload.batch,
            beside=workload.batch_beside,
            copy_loss=workload.copy_loss,
        )
        for workload, chosen in zip(workloads, plans, strict=True)
    ]
    return simulate(runs, link, compute=compute, schedules=schedules, cache=cache) if runs else ()


def work_of(workloads: Sequence[Workload], forecast_list: Sequence[Forecast]) -> float:
    """Return how much time of captured operators the device completes in a unit of time."""
    pairs = zip(workloads, forecast_list, strict=True)
    return sum(_captured_ns(workload) / forecast.iteration_ns for workload, forecast in pairs)


def _captured_ns(workload: Workload) -> int:
    graph = workload.graphs[0]
    steps = zip(graph.operators, blocking_ns(graph, workload.latency_ns[0]), strict=True)
    return sum(ns for operator, ns in steps if operator.stage is not Stage.UPLOAD)
