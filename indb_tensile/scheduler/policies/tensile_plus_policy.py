"""tensile+ as a policy: it plans (tensile_plus.py), renews (replan.py) and has budget curves (candidate_curve.py)."""

from collections.abc import Sequence

from indb_tensile.scheduler.graph import StepGraph
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.plan_cache import PlanCache
from indb_tensile.scheduler.policies.budget_curve import BudgetCurve
from indb_tensile.scheduler.policies.candidate_curve import curve
from indb_tensile.scheduler.policies.fitting import excess_bytes
from indb_tensile.scheduler.policies.job_candidates import NAME
from indb_tensile.scheduler.policies.policy import USUAL_OPTIONS, PlanOptions, Plans, Policy
from indb_tensile.scheduler.policies.replan import replan
from indb_tensile.scheduler.policies.tensile_plus import JointBudgetPlanner, slowdown
from indb_tensile.scheduler.search.local_search import Effort
from indb_tensile.scheduler.workload import Workload, least_bytes


class TensilePlus(Policy):
    """The default policy. It plans all jobs together and uses every option."""

    def __init__(self) -> None:
        super().__init__(NAME, plans_jobs_apart=False)

    def budget_planner(
        self,
        workloads: Sequence[Workload],
        *,
        link: Link,
        options: PlanOptions = USUAL_OPTIONS,
        cache: PlanCache | None = None,
    ) -> JointBudgetPlanner:
        """Return a planner that makes the candidates of each graph once, for all budgets."""
        return JointBudgetPlanner(workloads, link=link, options=options, cache=cache)

    def renew(
        self,
        workloads: Sequence[Workload],
        plans: Plans,
        *,
        budget_bytes: int,
        link: Link,
        options: PlanOptions = USUAL_OPTIONS,
        cache: PlanCache | None = None,
    ) -> Plans | None:
        """Return plans derived from the present plans. With full effort also plan anew, and return the faster of the
        two.

        None if neither meets the budget and the jobs' limits.
        """
        kept = PlanCache() if cache is None else cache
        renewed = replan(workloads, plans, budget_bytes=budget_bytes, link=link, cache=kept)
        if options.effort is not Effort.FULL:
            return renewed
        anew = self.plan(workloads, budget_bytes=budget_bytes, link=link, options=options, cache=kept)
        fitting = [
            candidate
            for candidate in (renewed, anew)
            if candidate is not None and not excess_bytes(workloads, candidate, budget_bytes, kept)
        ]
        if len(fitting) < 2:
            return next(iter(fitting), None)
        return min(fitting, key=lambda candidate: slowdown(workloads, candidate, link, options.compute, cache=kept))

    def least_bytes(self, workload: Workload, *, link: Link, cache: PlanCache | None = None) -> int:
        """Return the floor of the job's graphs, which tensile+ reaches."""
        del link
        return least_bytes(workload, cache)

    def budget_curve(
        self, graph: StepGraph, latency_ns: tuple[int, ...], link: Link, *, cache: PlanCache | None = None
    ) -> BudgetCurve:
        """Return a curve that no larger budget and no faster link makes worse."""
        return curve(graph, latency_ns, link, cache=cache)
