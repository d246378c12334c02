"""Choose plans and phases together for jobs that share a budget by passing gates.

With controlled phases the budget limits the sum of the jobs' loads at any time, not the sum of their peaks. A job may
then be planned for more memory than its part of the budget, with less overhead, and wait until the other jobs occupy
less. The amount is a trade-off between swapping and waiting. Plans are made for a fixed list of budgets up to the
budget under which no job needs planning. Each set of plans is interleaved under the real budget, and the simulator
decides under which the device does most work. The plans that need no phases take part as well.

Zico (Lim et al.) has no plans, and its schedule is its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from indb_tensile.scheduler.graph import Stage
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import liveness_peak, peak
from indb_tensile.scheduler.phases.load_cycle import Cycle, cycle_of, merge_segments
from indb_tensile.scheduler.phases.phase_offsets import Shift, interleave, least_budget
from indb_tensile.scheduler.plan import Infeasible, Plan
from indb_tensile.scheduler.policies.zico import shifts
from indb_tensile.scheduler.timing.schedule import Schedule
from indb_tensile.scheduler.timing.simulate import Compute, Forecast, JobRun, simulate
from indb_tensile.scheduler.workload import Workload, least_bytes

Plans = tuple[tuple[Plan, ...], ...]  # for each job one plan for each graph
Schedules = tuple[Schedule, ...]  # with jobs as positions

_LITTLE = 0.01  # A schedule with fewer gates is preferred if its density is within 1 % of the best.
_BUDGETS = 2  # number of steps from the least budget to the whole budget
# segments of an iteration: each segment with a higher load than the one before adds a gate or two, and more gain
# nothing
_STRETCHES = 48
_STEP = 0.75  # ratio of one budget to plan for to the next higher one


@dataclass(frozen=True, slots=True, kw_only=True)
class Phased:
    """Plans, the schedules that enforce their phases, and their forecasts."""

    plans: Plans
    schedules: Schedules
    forecasts: tuple[Forecast, ...]


def rungs(workloads: Sequence[Workload], budget_bytes: int) -> tuple[int, ...]:
    """Return the budgets above this one to plan for, from the top down. They come from a list that is the same for
    any budget.

    Plans that need more than each job alone under this budget are of no use.
    """
    least = sum(least_bytes(workload) for workload in workloads)
    most = sum(max(liveness_peak(graph) for graph in workload.graphs) for workload in workloads)
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
    policy: str = "",
) -> Phased | Infeasible:
    """Return these plans in phases under the budget. With the policy zico the phases are Zico's."""
    if sum(peaks(workloads, plans)) <= budget_bytes:
        return Phased(plans=plans, schedules=(), forecasts=forecasts(workloads, plans, link, compute))
    schedule = _zico if policy == "zico" else _interleaved
    schedules = schedule(workloads, plans, budget_bytes, link, compute)
    if isinstance(schedules, Infeasible):
        return schedules
    # without gates the peaks add up to no more than the budget
    gated = tuple(candidate for candidate in schedules if candidate.gates)
    return Phased(plans=plans, schedules=gated, forecasts=forecasts(workloads, plans, link, compute, gated))


def fastest(workloads: Sequence[Workload], candidates: Sequence[Phased]) -> Phased:
    """Return the plans under which the device does most work. Of equal ones return the first."""
    return max(candidates, key=lambda candidate: _work(workloads, candidate.forecasts))


def peaks(workloads: Sequence[Workload], plans: Sequence[tuple[Plan, ...]]) -> list[int]:
    """Return each job's peak, the largest of its graphs."""
    return [
        max(peak(graph, plan) for graph, plan in zip(workload.graphs, chosen, strict=True))
        for workload, chosen in zip(workloads, plans, strict=True)
    ]


def forecasts(
    workloads: Sequence[Workload],
    plans: Sequence[tuple[Plan, ...]],
    link: Link,
    compute: Compute = Compute.OVERLAP,
    schedules: Sequence[Schedule] = (),
) -> tuple[Forecast, ...]:
    """Return the simulator's forecasts of all training steps side by side."""
    runs = [
        JobRun(graph=workload.graphs[0], plan=chosen[0], latency_ns=workload.latency_ns[0])
        for workload, chosen in zip(workloads, plans, strict=True)
    ]
    return simulate(runs, link, compute=compute, schedules=schedules) if runs else ()


def _work(workloads: Sequence[Workload], forecast_list: Sequence[Forecast]) -> float:
    """Return how much time of captured operators the device completes in a unit of time."""
    pairs = zip(workloads, forecast_list, strict=True)
    return sum(_captured_ns(workload) / forecast.iteration_ns for workload, forecast in pairs)


def _captured_ns(workload: Workload) -> int:
    steps = zip(workload.graphs[0].operators, workload.latency_ns[0], strict=True)
    return sum(ns for operator, ns in steps if operator.stage is not Stage.UPLOAD)


def _interleaved(
    workloads: Sequence[Workload], plans: Plans, budget_bytes: int, link: Link, compute: Compute
) -> Schedules | Infeasible:
    """Return the schedule with the fewest gates of those with nearly the highest density.

    Jobs that need not compute side by side may keep to less than the budget, down to the least budget in which one
    job at a time can be at its peak. That takes fewer gates and leaves memory free.
    """
    cycles = _cycles(workloads, plans, link)
    whole = interleave(cycles, budget_bytes=budget_bytes, compute=compute)
    if isinstance(whole, Infeasible):
        return whole
    least = min(budget_bytes, least_budget(cycles))
    less = dict.fromkeys(least + (budget_bytes - least) * part // _BUDGETS for part in range(_BUDGETS))
    shifts_made = [(interleave(cycles, budget_bytes=budget, compute=compute), budget) for budget in less]
    shifts_found = [
        (shift, budget) for shift, budget in (*shifts_made, (whole, budget_bytes)) if isinstance(shift, Shift)
    ]
    densest = max(shift.density for shift, _ in shifts_found)
    enough = [candidate for candidate in shifts_found if candidate[0].density >= densest * (1 - _LITTLE)]
    shift, budget = min(enough, key=lambda candidate: (len(candidate[0].gates), candidate[1]))
    return (shift.schedule(range(len(cycles)), budget),)


def _cycles(workloads: Sequence[Workload], plans: Plans, link: Link) -> list[Cycle]:
    """Return the jobs' cycles. The cycle of equal jobs is computed once."""
    known: dict[tuple[object, ...], Cycle] = {}
    cycles = []
    for workload, chosen in zip(workloads, plans, strict=True):
        key = (*map(id, workload.graphs), *map(id, chosen), workload.latency_ns)
        if key not in known:
            known[key] = merge_segments(cycle_of(workload, chosen, link), _STRETCHES)
        cycles.append(known[key])
    return cycles


def _zico(
    workloads: Sequence[Workload], plans: Plans, budget_bytes: int, link: Link, compute: Compute
) -> Schedules | Infeasible:
    """Return the schedules as published, in pairs. The plans are liveness plans."""
    del plans
    groups = shifts(workloads, budget_bytes=budget_bytes, link=link, compute=compute)
    if isinstance(groups, Infeasible):
        return groups
    return tuple(group.shift.schedule(group.jobs, group.budget_bytes) for group in groups)
