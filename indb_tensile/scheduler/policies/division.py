"""How a device's budget is divided between jobs where a policy plans each job by itself.

The papers that plan one job at a time do not say how several share a device. Each job is given what its plan
needs at the least, and of what the budget leaves the same part of what it would still like to have.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from indb_tensile.scheduler.memory.peak import liveness_peak
from indb_tensile.scheduler.workload import Workload, least_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What one job can do with: the floor of its operators, the least that its policy reaches, all it would take."""

    floor_bytes: int
    least_bytes: int
    most_bytes: int


def demand(workload: Workload, reached_bytes: int) -> Demand:
    """The demand of a job whose policy comes down to `reached_bytes`; its own limit caps what it would take."""
    most = max(liveness_peak(graph) for graph in workload.graphs)
    if workload.limit_bytes is not None:
        most = min(most, workload.limit_bytes)
    floor = min(least_bytes(workload), most)
    return Demand(floor_bytes=floor, least_bytes=min(max(reached_bytes, floor), most), most_bytes=most)


def divide(demands: Sequence[Demand], budget_bytes: int) -> tuple[int, ...]:
    """Each job's limit; together within the budget, unless that is below all the floors."""
    floors = [d.floor_bytes for d in demands]
    leasts = [d.least_bytes for d in demands]
    mosts = [d.most_bytes for d in demands]
    if sum(leasts) <= budget_bytes:
        return _between(leasts, mosts, budget_bytes)
    return _between(floors, leasts, budget_bytes)


def _between(low: Sequence[int], high: Sequence[int], budget_bytes: int) -> tuple[int, ...]:
    room, wanted = max(0, budget_bytes - sum(low)), sum(high) - sum(low)
    if room >= wanted:
        return tuple(high)
    return tuple(a + (b - a) * room // wanted for a, b in zip(low, high, strict=True))
