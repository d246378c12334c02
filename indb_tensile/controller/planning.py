"""The planner as admission asks for it: with this device's link and the policy that the settings name."""

from dataclasses import dataclass, replace

from indb_tensile.scheduler.host_memory import passing_bytes, within_host
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.peak import peak
from indb_tensile.scheduler.placement import place_plan
from indb_tensile.scheduler.plan import Infeasible
from indb_tensile.scheduler.planner import JobPlan, foresee, improve, plan_jobs, renew
from indb_tensile.scheduler.policies import DEFAULT_POLICY, POLICIES
from indb_tensile.scheduler.search.descent import Heed, unhurried
from indb_tensile.scheduler.workload import Workload, least_bytes

_REACHING_THE_FLOOR = frozenset({"tensile+"})
_QUICKLY_PLANNED = 3_000  # operators up to which all effort is some seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyPlanner:
    """A `scheduler.pool.Planner`."""

    link: Link
    policy: str
    heed: Heed = unhurried  # called now and then while plans are improved
    host_bytes: int | None = None  # of the pinned pool, for all jobs together; None: as much as they like

    def plan(self, workloads: tuple[Workload, ...], *, budget_bytes: int) -> tuple[JobPlan, ...] | Infeasible:
        """Plans for all of them together; where the host pool is too small for them, such as swap less."""

        def plan_at(link: Link) -> tuple[JobPlan, ...] | Infeasible:
            return plan_jobs(_plain(workloads), budget_bytes=budget_bytes, link=link, policy=self.policy)

        if self.host_bytes is None:
            return plan_at(self.link)
        return within_host(workloads, plan_at, link=self.link, limit_bytes=self.host_bytes)

    def renew(
        self, workloads: tuple[Workload, ...], plans: tuple[JobPlan, ...], *, budget_bytes: int
    ) -> tuple[JobPlan, ...] | None:
        """The plans adjusted to new latencies; small jobs' improved with all effort, for which nobody waits.

        None under a policy whose plans are made anew.
        """
        if self.policy != DEFAULT_POLICY:
            return None
        small = sum(len(graph.operators) for w in workloads for graph in w.graphs) <= _QUICKLY_PLANNED
        jobs = _plain(workloads)
        if small:
            found = improve(jobs, plans, budget_bytes=budget_bytes, link=self.link, heed=self.heed)
        else:
            found = renew(jobs, plans, budget_bytes=budget_bytes, link=self.link)
        if found is None or self.host_bytes is None:
            return found
        return found if passing_bytes(workloads, found) <= self.host_bytes else None

    def foresee(self, workloads: tuple[Workload, ...], plans: tuple[JobPlan, ...]) -> tuple[JobPlan, ...]:
        """The plans with new forecasts."""
        return foresee(workloads, plans, link=self.link)

    def placed_bytes(self, workload: Workload, plan: JobPlan, *, region_bytes: int) -> int:
        """The largest of its graphs' placements: one block holds the tensors of any of them."""
        graphs = zip(workload.graphs, plan.plans, strict=True)
        return max(place_plan(graph, one, region_bytes=region_bytes).size_bytes for graph, one in graphs)

    def least_bytes(self, workload: Workload) -> int:
        """The floor, or, under a policy that may not reach it, the peak with nothing to spare and nobody beside it.

        TENSILE as published swaps only what nobody waits for, and recomputes only from what it never releases.
        """
        if self.policy in _REACHING_THE_FLOOR:
            return least_bytes(workload)
        alone = replace(workload, limit_bytes=None, max_swapping_rate=1.0)
        (plans,) = POLICIES[self.policy]((alone,), budget_bytes=0, link=self.link)
        return max(peak(graph, plan) for graph, plan in zip(workload.graphs, plans, strict=True))


def _plain(workloads: tuple[Workload, ...]) -> tuple[Workload, ...]:
    """As policies know them: host memory is not theirs to plan."""
    return tuple(replace(w, host_bytes=0) for w in workloads)
