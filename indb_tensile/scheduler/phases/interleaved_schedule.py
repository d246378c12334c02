"""The schedule of gates under which given plans keep to a budget in phases, with as few gates as possible."""

from collections.abc import Sequence

from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.phases.load_cycle import Cycle, cycle_of, merge_segments
from indb_tensile.scheduler.phases.phase_offsets import Shift, interleave, least_budget
from indb_tensile.scheduler.plan import Infeasible, Plan
from indb_tensile.scheduler.plan_cache import PlanCache
from indb_tensile.scheduler.timing.job_runs import Compute
from indb_tensile.scheduler.timing.schedule import Schedule
from indb_tensile.scheduler.workload import Workload

Schedules = tuple[Schedule, ...]  # with jobs as positions

_LITTLE = 0.01  # A schedule with fewer gates is preferred if its density is within 1 % of the best.
_BUDGETS = 2  # number of steps from the least budget to the whole budget
# segments of an iteration: each segment with a higher load than the one before adds a gate or two, and more gain
# nothing
MOST_SEGMENTS = 48


def interleaved_schedule(
    workloads: Sequence[Workload],
    plans: Sequence[tuple[Plan, ...]],
    *,
    budget_bytes: int,
    link: Link,
    compute: Compute = Compute.OVERLAP,
    cache: PlanCache | None = None,
) -> Schedules | Infeasible:
    """Return the schedule of these plans, with jobs as positions."""
    return schedule_cycles(_cycles(workloads, plans, link, cache), budget_bytes=budget_bytes, compute=compute)


def schedule_cycles(cycles: Sequence[Cycle], *, budget_bytes: int, compute: Compute) -> Schedules | Infeasible:
    """Return the schedule with the fewest gates of those with nearly the highest density.

    Jobs that need not compute side by side may keep to less than the budget, down to the least budget in which one
    job at a time can be at its peak. That takes fewer gates and leaves memory free.
    """
    whole = interleave(cycles, budget_bytes=budget_bytes, compute=compute)
    if isinstance(whole, Infeasible):
        return whole
    least = min(budget_bytes, least_budget(cycles))
    less = dict.fromkeys(least + (budget_bytes - least) * part // _BUDGETS for part in range(_BUDGETS))
    attempts = [(interleave(cycles, budget_bytes=budget, compute=compute), budget) for budget in less]
    feasible = [(shift, budget) for shift, budget in (*attempts, (whole, budget_bytes)) if isinstance(shift, Shift)]
    densest = max(shift.density for shift, _ in feasible)
    enough = [candidate for candidate in feasible if candidate[0].density >= densest * (1 - _LITTLE)]
    shift, budget = min(enough, key=lambda candidate: (len(candidate[0].gates), candidate[1]))
    return (shift.schedule(range(len(cycles)), budget),)


def _cycles(
    workloads: Sequence[Workload], plans: Sequence[tuple[Plan, ...]], link: Link, cache: PlanCache | None
) -> list[Cycle]:
    """Return the jobs' cycles. The cycle of equal jobs is computed once."""
    known: dict[tuple[object, ...], Cycle] = {}
    cycles = []
    for workload, chosen in zip(workloads, plans, strict=True):
        key = (*map(id, workload.graphs), *map(id, chosen), workload.latency_ns)
        if key not in known:
            known[key] = merge_segments(cycle_of(workload, chosen, link, cache), MOST_SEGMENTS)
        cycles.append(known[key])
    return cycles
