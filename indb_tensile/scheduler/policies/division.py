"""Divide a device's budget between jobs for policies that plan each job by itself.

The papers that plan one job at a time do not say how several jobs share a device. Each job gets the least that its
plan needs. Of the rest of the budget each job gets the same fraction of what it could still use.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from indb_tensile.scheduler.memory.peak import liveness_peak
from indb_tensile.scheduler.plan_cache import PlanCache
from indb_tensile.scheduler.workload import Workload, least_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """The memory demand of one job: the floor of its operators, the least that its policy reaches, and the most it
    can use.
    """

    floor_bytes: int
    least_bytes: int
    most_bytes: int


def demand(workload: Workload, reached_bytes: int, cache: PlanCache | None = None) -> Demand:
    """Return the demand of a job whose policy reaches `reached_bytes`. The job's own limit caps what it can use."""
    most = max(liveness_peak(graph, cache) for graph in workload.graphs)
    if workload.limit_bytes is not None:
        most = min(most, workload.limit_bytes)
    floor = min(least_bytes(workload, cache), most)
    return Demand(floor_bytes=floor, least_bytes=min(max(reached_bytes, floor), most), most_bytes=most)


def divide(demands: Sequence[Demand], budget_bytes: int) -> tuple[int, ...]:
    """Return each job's limit. The limits fit the budget together, unless the budget is below the sum
    of all floors.
    """
    floors = [d.floor_bytes for d in demands]
    leasts = [d.least_bytes for d in demands]
    mosts = [d.most_bytes for d in demands]
    if sum(leasts) <= budget_bytes:
        return _between(leasts, mosts, budget_bytes)
    return _between(floors, leasts, budget_bytes)


def _between(low: Sequence[int], high: Sequence[int], budget_bytes: int) -> tuple[int, ...]:
    room, demand_bytes = max(0, budget_bytes - sum(low)), sum(high) - sum(low)
    if room >= demand_bytes:
        return tuple(high)
    return tuple(a + (b - a) * room // demand_bytes for a, b in zip(low, high, strict=True))
