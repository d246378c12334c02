"""The policy vanilla, the papers' baseline: nothing is freed before the iteration ends."""

from collections.abc import Sequence

from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import VANILLA
from indb_tensile.scheduler.plan import Plan
from indb_tensile.scheduler.plan_cache import PlanCache
from indb_tensile.scheduler.workload import Workload


def vanilla(
    workloads: Sequence[Workload],
    *,
    budget_bytes: int,
    link: Link,
    rewrites: bool = True,
    cache: PlanCache | None = None,
) -> tuple[tuple[Plan, ...], ...]:
    """Return the same plan for every graph, whatever the budget."""
    del budget_bytes, link, rewrites, cache
    return tuple((VANILLA,) * len(workload.graphs) for workload in workloads)
