"""Choose between the variants of a policy, from the fastest to the smallest, by the budget."""

from collections.abc import Iterable, Sequence

from indb_tensile.scheduler.memory.peak import peak
from indb_tensile.scheduler.plan import Plan
from indb_tensile.scheduler.plan_cache import PlanCache
from indb_tensile.scheduler.workload import Workload

Plans = tuple[tuple[Plan, ...], ...]  # for each job one plan for each graph


def first_fitting(
    workloads: Sequence[Workload], variants: Iterable[Plans], budget_bytes: int, cache: PlanCache | None = None
) -> Plans:
    """Return the first plans under which the jobs fit. If none fit, return the plans that exceed the budget and
    limits least.
    """
    best, least = None, 0
    for plans in variants:
        excess = excess_bytes(workloads, plans, budget_bytes, cache)
        if best is None or excess < least:
            best, least = plans, excess
        if not excess:
            break
    return best or ()


def excess_bytes(
    workloads: Sequence[Workload], plans: Plans, budget_bytes: int, cache: PlanCache | None = None
) -> int:
    """Return the bytes by which the jobs exceed the budget or, if that is more, their limits."""
    peaks = [
        max(peak(graph, plan, cache) for graph, plan in zip(workload.graphs, chosen, strict=True))
        for workload, chosen in zip(workloads, plans, strict=True)
    ]
    limits = [top if w.limit_bytes is None else w.limit_bytes for w, top in zip(workloads, peaks, strict=True)]
    over = sum(max(0, top - limit) for top, limit in zip(peaks, limits, strict=True))
    return max(0, sum(peaks) - budget_bytes, over)
