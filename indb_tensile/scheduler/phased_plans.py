"""Plans and phases together: which plans jobs follow that share a budget by passing gates.

Where phases are controlled the budget holds for the most that the jobs' loads come to at any time, not for the sum of
their peaks. Then a job may be planned for more memory than its part of the budget, at less cost, and wait until the
others hold less. How much more is a choice between swapping and waiting: plans are made for a fixed ladder of budgets
up to what nobody has to be planned for, each is interleaved under the real budget, and the simulator says which lets
the device do most work, the plans that need no phases among them.

Zico (Lim et al.) has no plans, and its schedule is its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from indb_tensile.scheduler.graph import Stage
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import liveness_peak, peak
from indb_tensile.scheduler.phases.cycle import Cycle, coarse, cycle_of
from indb_tensile.scheduler.phases.phase_offsets import Shift, interleave, least_budget
from indb_tensile.scheduler.plan import Infeasible, Plan
from indb_tensile.scheduler.policies.zico import shifts
from indb_tensile.scheduler.timing.schedule import Schedule
from indb_tensile.scheduler.timing.simulate import Compute, Forecast, JobRun, simulate
from indb_tensile.scheduler.workload import Workload, least_bytes

Plans = tuple[tuple[Plan, ...], ...]  # for each job one plan per graph
Schedules = tuple[Schedule, ...]  # of positions among the jobs

_LITTLE = 0.01  # denser, for which more gates are not worth while
_BUDGETS = 2  # steps from the least budget to the whole
_STRETCHES = 48  # of an iteration: each in which more is held than before is a gate or two, and more gain nothing
_STEP = 0.75  # from one budget to the next one to plan for


@dataclass(frozen=True, slots=True, kw_only=True)
class Phased:
    """Plans, what enforces their phases, and what they are worth."""

    plans: Plans
    schedules: Schedules
    forecasts: tuple[Forecast, ...]


def rungs(workloads: Sequence[Workload], budget_bytes: int) -> tuple[int, ...]:
    """The budgets over this one to plan for; of a ladder that is the same for any budget, from the top down.

    Plans that need more than every job alone under this budget are of no use.
    """
    least = sum(least_bytes(workload) for workload in workloads)
    most = sum(max(liveness_peak(graph) for graph in workload.graphs) for workload in workloads)
    found = []
    rung = most
    while rung > max(budget_bytes, least):
        if rung <= budget_bytes * len(workloads):
            found.append(rung)
        rung = int(rung * _STEP)
    return tuple(found)


def phased(
    workloads: Sequence[Workload],
    plans: Plans,
    *,
    budget_bytes: int,
    link: Link,
    compute: Compute = Compute.OVERLAP,
    policy: str = "",
) -> Phased | Infeasible:
    """These plans in phases under the budget; as Zico phases them where that is the policy."""
    if sum(peaks(workloads, plans)) <= budget_bytes:
        return Phased(plans=plans, schedules=(), forecasts=forecasts(workloads, plans, link, compute))
    schedule = _zico if policy == "zico" else _interleaved
    schedules = schedule(workloads, plans, budget_bytes, link, compute)
    if isinstance(schedules, Infeasible):
        return schedules
    gated = tuple(one for one in schedules if one.gates)  # without gates peaks add up to no more than the budget
    return Phased(plans=plans, schedules=gated, forecasts=forecasts(workloads, plans, link, compute, gated))


def fastest(workloads: Sequence[Workload], found: Sequence[Phased]) -> Phased:
    """Under which the device does most work; of equal ones the first."""
    return max(found, key=lambda one: _work(workloads, one.forecasts))


def peaks(workloads: Sequence[Workload], plans: Sequence[tuple[Plan, ...]]) -> list[int]:
    """Each job's peak, the largest of its graphs."""
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
    """What the simulator says of all training steps side by side."""
    runs = [
        JobRun(graph=workload.graphs[0], plan=chosen[0], latency_ns=workload.latency_ns[0])
        for workload, chosen in zip(workloads, plans, strict=True)
    ]
    return simulate(runs, link, compute=compute, schedules=schedules) if runs else ()


def _work(workloads: Sequence[Workload], found: Sequence[Forecast]) -> float:
    """The captured operators' time that the device gets done in a unit of time."""
    pairs = zip(workloads, found, strict=True)
    return sum(_captured_ns(workload) / forecast.iteration_ns for workload, forecast in pairs)


def _captured_ns(workload: Workload) -> int:
    steps = zip(workload.graphs[0].operators, workload.latency_ns[0], strict=True)
    return sum(ns for operator, ns in steps if operator.stage is not Stage.UPLOAD)


def _interleaved(
    workloads: Sequence[Workload], plans: Plans, budget_bytes: int, link: Link, compute: Compute
) -> Schedules | Infeasible:
    """With the fewest gates of the densest schedules.

    Jobs that need not compute side by side may as well keep to less than the budget, down to the least with which
    one job at a time can be at its peak: fewer gates do, and memory is left.
    """
    cycles = _cycles(workloads, plans, link)
    whole = interleave(cycles, budget_bytes=budget_bytes, compute=compute)
    if isinstance(whole, Infeasible):
        return whole
    least = min(budget_bytes, least_budget(cycles))
    less = dict.fromkeys(least + (budget_bytes - least) * part // _BUDGETS for part in range(_BUDGETS))
    made = [(interleave(cycles, budget_bytes=budget, compute=compute), budget) for budget in less]
    found = [(shift, budget) for shift, budget in (*made, (whole, budget_bytes)) if isinstance(shift, Shift)]
    densest = max(shift.density for shift, _ in found)
    enough = [one for one in found if one[0].density >= densest * (1 - _LITTLE)]
    shift, budget = min(enough, key=lambda one: (len(one[0].gates), one[1]))
    return (shift.schedule(range(len(cycles)), budget),)


def _cycles(workloads: Sequence[Workload], plans: Plans, link: Link) -> list[Cycle]:
    """The jobs' iterations; those of equal jobs are found out once."""
    known: dict[tuple[object, ...], Cycle] = {}
    found = []
    for workload, chosen in zip(workloads, plans, strict=True):
        key = (*map(id, workload.graphs), *map(id, chosen), workload.latency_ns)
        if key not in known:
            known[key] = coarse(cycle_of(workload, chosen, link), _STRETCHES)
        found.append(known[key])
    return found


def _zico(
    workloads: Sequence[Workload], plans: Plans, budget_bytes: int, link: Link, compute: Compute
) -> Schedules | Infeasible:
    """As published, in pairs. The plans are those of liveness."""
    del plans
    groups = shifts(workloads, budget_bytes=budget_bytes, link=link, compute=compute)
    if isinstance(groups, Infeasible):
        return groups
    return tuple(group.shift.schedule(group.jobs, group.budget_bytes) for group in groups)
