"""The policy liveness, our baseline: every tensor is freed after its last use, as eager PyTorch does, and nothing
else.
"""

from collections.abc import Sequence

from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import LIVENESS
from indb_tensile.scheduler.plan import Plan
from indb_tensile.scheduler.plan_cache import PlanCache
from indb_tensile.scheduler.workload import Workload


def liveness(
    workloads: Sequence[Workload],
    *,
    budget_bytes: int,
    link: Link,
    rewrites: bool = True,
    cache: PlanCache | None = None,
) -> tuple[tuple[Plan, ...], ...]:
    """Return the same plan for every graph, whatever the budget."""
    del budget_bytes, link, rewrites, cache
    return tuple((LIVENESS,) * len(workload.graphs) for workload in workloads)
