"""The planner that admission calls: plans under the configured policy, with the rates of this device's link."""

from dataclasses import dataclass, field, replace

from indb_tensile.scheduler.completion.demand import TradeOff
from indb_tensile.scheduler.host_memory import passing_bytes, within_host
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.tensor_placement import place_plan
from indb_tensile.scheduler.plan import Infeasible
from indb_tensile.scheduler.plan_cache import PlanCache
from indb_tensile.scheduler.planner import JobPlan, foresee, plan_jobs, rank_step, renew
from indb_tensile.scheduler.policies import DEFAULT_POLICY, policy_named
from indb_tensile.scheduler.policies.policy import Plans
from indb_tensile.scheduler.round_plans import LEAST_GAIN, plan_round
from indb_tensile.scheduler.search.local_search import CancellationCheck, Effort, never_cancel
from indb_tensile.scheduler.timing.job_runs import Compute
from indb_tensile.scheduler.timing.rank_steps import PublishedStep
from indb_tensile.scheduler.trade_offs import trade_offs
from indb_tensile.scheduler.workload import Workload

_SMALL_OPERATORS = 3_000  # operators in all; up to this number, improving plans with full effort takes seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyPlanner:
    """Implements `scheduler.admission.pool.Planner`. It owns the cache of the values that follow from the graphs."""

    link: Link
    policy: str
    # called regularly while plans are improved; raises an exception to cancel
    cancellation_check: CancellationCheck = never_cancel
    least_gain: float = LEAST_GAIN  # of a round of jobs
    boundary_ns: int = 0  # for which the device stands still between two segments of a job in a round
    host_bytes: int | None = None  # limit of the pinned host pool for all jobs together; None: no limit
    cache: PlanCache = field(default_factory=PlanCache, compare=False, repr=False)

    def plan(self, workloads: tuple[Workload, ...], *, budget_bytes: int) -> tuple[JobPlan, ...] | Infeasible:
        """Plan all jobs together. If the host pool is too small for the plans, plan again with fewer swaps.

        Several jobs are planned with little effort, because a job waits for the plans: some hundredths of a second
        in place of several seconds, for iterations that take a few per cent longer. `renew` improves them.
        """

        def plan_at(link: Link) -> tuple[JobPlan, ...] | Infeasible:
            jobs = _without_host_bytes(workloads)
            return plan_jobs(
                jobs,
                budget_bytes=budget_bytes,
                link=link,
                policy=self.policy,
                effort=Effort.QUICK if len(jobs) > 1 else Effort.USUAL,
                cache=self.cache,
            )

        limit_bytes = self._left_host_bytes(workloads)
        if limit_bytes is None:
            return plan_at(self.link)
        return within_host(workloads, plan_at, link=self.link, limit_bytes=limit_bytes, cache=self.cache)

    def trade_offs(self, workload: Workload) -> tuple[TradeOff, ...]:
        """Return the memory and time of the job's plans alone on the device."""
        return trade_offs(replace(workload, host_bytes=0), link=self.link, policy=self.policy, cache=self.cache)

    def renew(
        self, workloads: tuple[Workload, ...], plans: tuple[JobPlan, ...], *, budget_bytes: int, thorough: bool = True
    ) -> tuple[JobPlan, ...] | None:
        """Return the plans adjusted to new latencies, or None.

        The result is None if the policy must plan again, or if the adjusted plans exceed the host pool. The plans of
        small jobs are improved with full effort if `thorough`, because no job waits for the result.
        """
        small = thorough and sum(len(graph.operators) for w in workloads for graph in w.graphs) <= _SMALL_OPERATORS
        renewed = renew(
            _without_host_bytes(workloads),
            plans,
            budget_bytes=budget_bytes,
            link=self.link,
            policy=self.policy,
            effort=Effort.FULL if small else Effort.USUAL,
            cancellation_check=self.cancellation_check,
            cache=self.cache,
        )
        limit_bytes = self._left_host_bytes(workloads)
        if renewed is None or limit_bytes is None:
            return renewed
        return renewed if passing_bytes(workloads, renewed, self.cache) <= limit_bytes else None

    def plan_round(
        self,
        workloads: tuple[Workload, ...],
        plans: Plans,
        *,
        budget_bytes: int,
        region_bytes: int,
        compute: Compute,
    ) -> tuple[JobPlan, ...] | None:
        """Return plans for a round that is faster than these plans side by side and fits the host pool, or None.

        Other policies than our own are for comparison, and run as published.
        """
        if self.policy != DEFAULT_POLICY:
            return None
        planned = plan_round(
            _without_host_bytes(workloads),
            plans,
            budget_bytes=budget_bytes,
            region_bytes=region_bytes,
            link=self.link,
            policy=self.policy,
            compute=compute,
            least_gain=self.least_gain,
            boundary_ns=self.boundary_ns,
            cancellation_check=self.cancellation_check,
            cache=self.cache,
        )
        limit_bytes = self._left_host_bytes(workloads)
        if planned is None or limit_bytes is None:
            return planned
        return planned if passing_bytes(workloads, planned, self.cache) <= limit_bytes else None

    def foresee(self, workloads: tuple[Workload, ...], plans: tuple[JobPlan, ...]) -> tuple[JobPlan, ...]:
        """Return the plans with new forecasts."""
        return foresee(workloads, plans, link=self.link, cache=self.cache)

    def rank_step(self, workload: Workload, plan: JobPlan) -> PublishedStep:
        """Return what the other ranks of the job need to know of this one."""
        return rank_step(workload, plan, link=self.link, cache=self.cache)

    def placed_bytes(self, workload: Workload, plan: JobPlan, *, region_bytes: int) -> int:
        """Return the largest size of the graphs' placements: one block of memory serves all graphs in turn."""
        graphs = zip(workload.graphs, plan.plans, strict=True)
        return max(
            place_plan(graph, graph_plan, region_bytes=region_bytes, cache=self.cache).size_bytes
            for graph, graph_plan in graphs
        )

    def least_bytes(self, workload: Workload) -> int:
        """Return the smallest peak memory with which the policy can run the job."""
        return policy_named(self.policy).least_bytes(workload, link=self.link, cache=self.cache)

    def _left_host_bytes(self, workloads: tuple[Workload, ...]) -> int | None:
        """Return the bytes of the host pool that parked jobs leave to these jobs; None if there is no limit.

        A job that is planned because it may return is parked too, and counts with its own bytes only. The others'
        workloads contain its bytes, so the least share is that of the jobs that stay parked.
        """
        if self.host_bytes is None:
            return None
        return max(0, self.host_bytes - min((w.parked_host_bytes for w in workloads), default=0))


def _without_host_bytes(workloads: tuple[Workload, ...]) -> tuple[Workload, ...]:
    """Return the workloads without host memory, which policies do not plan."""
    return tuple(replace(w, host_bytes=0, parked_host_bytes=0) for w in workloads)
