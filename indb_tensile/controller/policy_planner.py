"""The planner that admission calls: plans under the configured policy, with the rates of this device's link."""

from dataclasses import dataclass, replace

from indb_tensile.scheduler.host_memory import passing_bytes, within_host
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import peak
from indb_tensile.scheduler.memory.placement import place_plan
from indb_tensile.scheduler.plan import Infeasible
from indb_tensile.scheduler.planner import JobPlan, foresee, improve, plan_jobs, renew
from indb_tensile.scheduler.policies import DEFAULT_POLICY, POLICIES
from indb_tensile.scheduler.search.local_search import CancellationCheck, never_cancel
from indb_tensile.scheduler.workload import Workload, least_bytes

_POLICIES_REACHING_FLOOR = frozenset({"tensile+"})
_SMALL_OPERATORS = 3_000  # operators in all; up to this number, improving plans with full effort takes seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyPlanner:
    """Implements `scheduler.admission.pool.Planner`."""

    link: Link
    policy: str
    heed: CancellationCheck = never_cancel  # called regularly while plans are improved; raises an exception to cancel
    host_bytes: int | None = None  # limit of the pinned host pool for all jobs together; None: no limit

    def plan(self, workloads: tuple[Workload, ...], *, budget_bytes: int) -> tuple[JobPlan, ...] | Infeasible:
        """Plan all jobs together. If the host pool is too small for the plans, plan again with fewer swaps."""

        def plan_at(link: Link) -> tuple[JobPlan, ...] | Infeasible:
            return plan_jobs(_without_host_bytes(workloads), budget_bytes=budget_bytes, link=link, policy=self.policy)

        if self.host_bytes is None:
            return plan_at(self.link)
        return within_host(workloads, plan_at, link=self.link, limit_bytes=self.host_bytes)

    def renew(
        self, workloads: tuple[Workload, ...], plans: tuple[JobPlan, ...], *, budget_bytes: int
    ) -> tuple[JobPlan, ...] | None:
        """Return the plans adjusted to new latencies, or None.

        The result is None if the policy must plan again, or if the adjusted plans exceed the host pool. The plans of
        small jobs are improved with full effort, because no job waits for the result.
        """
        if self.policy != DEFAULT_POLICY:
            return None
        small = sum(len(graph.operators) for w in workloads for graph in w.graphs) <= _SMALL_OPERATORS
        jobs = _without_host_bytes(workloads)
        if small:
            renewed = improve(jobs, plans, budget_bytes=budget_bytes, link=self.link, heed=self.heed)
        else:
            renewed = renew(jobs, plans, budget_bytes=budget_bytes, link=self.link)
        if renewed is None or self.host_bytes is None:
            return renewed
        return renewed if passing_bytes(workloads, renewed) <= self.host_bytes else None

    def foresee(self, workloads: tuple[Workload, ...], plans: tuple[JobPlan, ...]) -> tuple[JobPlan, ...]:
        """Return the plans with new forecasts."""
        return foresee(workloads, plans, link=self.link)

    def placed_bytes(self, workload: Workload, plan: JobPlan, *, region_bytes: int) -> int:
        """Return the largest size of the graphs' placements: one block of memory serves all graphs in turn."""
        graphs = zip(workload.graphs, plan.plans, strict=True)
        return max(
            place_plan(graph, graph_plan, region_bytes=region_bytes).size_bytes for graph, graph_plan in graphs
        )

    def least_bytes(self, workload: Workload) -> int:
        """Return the smallest peak memory with which the policy can run the job.

        That is the floor if the policy can reach it. Otherwise it is the peak of a plan for the job alone with a
        budget of 0: TENSILE as published swaps only where no operator waits for the copy, and recomputes only from
        tensors that it never releases.
        """
        if self.policy in _POLICIES_REACHING_FLOOR:
            return least_bytes(workload)
        alone = replace(workload, limit_bytes=None, max_swapping_rate=1.0)
        (plans,) = POLICIES[self.policy]((alone,), budget_bytes=0, link=self.link)
        return max(peak(graph, plan) for graph, plan in zip(workload.graphs, plans, strict=True))


def _without_host_bytes(workloads: tuple[Workload, ...]) -> tuple[Workload, ...]:
    """Return the workloads without host memory, which policies do not plan."""
    return tuple(replace(w, host_bytes=0) for w in workloads)
