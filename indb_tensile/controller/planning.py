"""The planner as admission asks for it: with this device's link and the policy that the settings name."""

from dataclasses import dataclass, replace

from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.plan import Infeasible
from indb_tensile.scheduler.planner import JobPlan, foresee, plan_jobs
from indb_tensile.scheduler.workload import Workload, least_bytes

_NO_BUDGET_BYTES = 1 << 62
_SWAPPING = frozenset({"tensile+"})


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyPlanner:
    """A `scheduler.pool.Planner`."""

    link: Link
    policy: str

    def plan(self, workloads: tuple[Workload, ...], *, budget_bytes: int) -> tuple[JobPlan, ...] | Infeasible:
        """Plans for all of them together."""
        return plan_jobs(workloads, budget_bytes=budget_bytes, link=self.link, policy=self.policy)

    def foresee(self, workloads: tuple[Workload, ...], plans: tuple[JobPlan, ...]) -> tuple[JobPlan, ...]:
        """The plans with new forecasts."""
        return foresee(workloads, plans, link=self.link)

    def least_bytes(self, workload: Workload) -> int:
        """The floor, or, under a policy that does not swap, the one peak that it gives."""
        if self.policy in _SWAPPING:
            return least_bytes(workload)
        unbound = replace(workload, limit_bytes=None)
        plans = plan_jobs((unbound,), budget_bytes=_NO_BUDGET_BYTES, link=self.link, policy=self.policy)
        return least_bytes(workload) if isinstance(plans, Infeasible) else plans[0].peak_bytes
