"""A policy: an object that plans jobs under a budget.

A policy whose paper describes no more than "jobs, link and budget give plans" is a plain function, and
`FunctionPolicy` makes a policy of it. All other questions of a planner have a default in `Policy`, for policies that
have no better answer:

| question | default |
|---|---|
| plans for several budgets, or for jobs in phases (`budget_planner`) | plans anew for each budget |
| effort, work, cancellation, the way in which jobs compute (`PlanOptions`) | ignored |
| plans after latencies have changed (`renew`) | none: the caller plans anew |
| the smallest peak of a job (`least_bytes`) | the peak of its plan for a budget of 0 |
| the trade-off curve of one graph (`budget_curve`) | plans for a fixed list of budgets, timed by the simulator |
| gates between jobs (`schedules`) | those of phases/interleaved_schedule.py |

tensile+ (tensile_plus_policy.py) answers each of these itself, except for the gates; Zico has gates of its own.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from indb_tensile.job import JobId
from indb_tensile.scheduler.graph import StepGraph
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import floor, liveness_peak, peak
from indb_tensile.scheduler.phases.interleaved_schedule import Schedules, interleaved_schedule
from indb_tensile.scheduler.plan import Infeasible, Plan
from indb_tensile.scheduler.plan_cache import PlanCache
from indb_tensile.scheduler.policies.budget_curve import BudgetCurve, envelope
from indb_tensile.scheduler.search.candidate_plans import LIMIT_FRACTIONS
from indb_tensile.scheduler.search.local_search import CancellationCheck, Effort, never_cancel
from indb_tensile.scheduler.timing.job_runs import Compute
from indb_tensile.scheduler.workload import Workload

Plans = tuple[tuple[Plan, ...], ...]  # for each job one plan for each graph


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """The way in which a policy plans, besides jobs, link and budget. A policy ignores what it has no use for.

    `rewrites` says whether the plan's executor can run operators in another order than the captured one
    (`Plan.executions`). If it is False, a policy that would recompute does not. `compute` is the way in which the
    jobs share the compute units. `work` multiplies the work of the usual effort. `cancellation_check` is called at
    intervals; an exception that it raises cancels planning.
    """

    rewrites: bool = True
    compute: Compute = Compute.OVERLAP
    effort: Effort = Effort.USUAL
    work: float = 1
    cancellation_check: CancellationCheck = never_cancel


USUAL_OPTIONS = PlanOptions()


class BudgetPlanner(Protocol):
    """Plans some jobs for any number of budgets. Equal calls in equal order return equal plans."""

    def plans(self, budget_bytes: int) -> Plans:
        """Return plans for jobs that run side by side without gates."""
        ...

    def plans_in_phases(self, budget_bytes: int) -> Plans:
        """Return plans for jobs that will pass gates (phased_plans.py)."""
        ...


class Policy(ABC):
    """A policy by its name. Equal arguments give equal plans. The budget is a goal; the planner checks whether it is
    met.

    `cache` holds values that follow from the graphs alone. It never changes a plan.
    """

    def __init__(self, name: str, *, plans_jobs_apart: bool) -> None:
        self.name = name
        # True if the policy plans equal jobs alike: N equal jobs under N times the budget get the plan of one job
        # under the budget
        self.plans_jobs_apart = plans_jobs_apart

    @abstractmethod
    def budget_planner(
        self,
        workloads: Sequence[Workload],
        *,
        link: Link,
        options: PlanOptions = USUAL_OPTIONS,
        cache: PlanCache | None = None,
    ) -> BudgetPlanner:
        """Return a planner of these jobs."""

    def plan(
        self,
        workloads: Sequence[Workload],
        *,
        budget_bytes: int,
        link: Link,
        options: PlanOptions = USUAL_OPTIONS,
        cache: PlanCache | None = None,
    ) -> Plans:
        """Return for each job one plan for each graph."""
        return self.budget_planner(workloads, link=link, options=options, cache=cache).plans(budget_bytes)

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
        """Return plans for the workloads' present latencies, derived from the plans that the jobs follow; None if the
        policy has to plan anew.
        """
        del workloads, plans, budget_bytes, link, options, cache
        return None

    def least_bytes(self, workload: Workload, *, link: Link, cache: PlanCache | None = None) -> int:
        """Return the smallest peak with which the policy can run the job: that of a plan for the job alone with a
        budget of 0.

        Example: TENSILE as published swaps only where no operator waits for the copy, and recomputes only from
        tensors that it never releases. It does not reach the floor.
        """
        alone = replace(workload, limit_bytes=None, max_swapping_rate=1.0)
        (plans,) = self.plan((alone,), budget_bytes=0, link=link, cache=cache)
        return max(peak(graph, plan, cache) for graph, plan in zip(workload.graphs, plans, strict=True))

    def budget_curve(
        self, graph: StepGraph, latency_ns: tuple[int, ...], link: Link, *, cache: PlanCache | None = None
    ) -> BudgetCurve:
        """Return the best plans of one graph over a fixed list of budgets. A faster link may give a worse curve."""
        kept = PlanCache() if cache is None else cache
        workload = Workload(job=JobId(1), graphs=(graph,), latency_ns=(latency_ns,))
        planner = self.budget_planner((workload,), link=link, cache=kept)
        low, high = floor(graph, kept), liveness_peak(graph, kept)
        budgets = (high, *(low + round(fraction * (high - low)) for fraction in LIMIT_FRACTIONS))
        return envelope(graph, latency_ns, link, [planner.plans(budget)[0][0] for budget in budgets], cache=kept)

    def schedules(
        self,
        workloads: Sequence[Workload],
        plans: Plans,
        *,
        budget_bytes: int,
        link: Link,
        compute: Compute = Compute.OVERLAP,
        cache: PlanCache | None = None,
    ) -> Schedules | Infeasible:
        """Return the schedules, with jobs as positions, under which these plans keep to the budget in phases."""
        return interleaved_schedule(
            workloads, plans, budget_bytes=budget_bytes, link=link, compute=compute, cache=cache
        )


class PlanFunction(Protocol):
    """A policy as a plain function."""

    def __call__(
        self,
        workloads: Sequence[Workload],
        *,
        budget_bytes: int,
        link: Link,
        rewrites: bool = True,
        cache: PlanCache | None = None,
    ) -> Plans:
        """Return for each job one plan for each graph."""
        ...


class FunctionPolicy(Policy):
    """The policy of a plain function, with the defaults of `Policy` for everything else."""

    def __init__(self, name: str, function: PlanFunction, *, plans_jobs_apart: bool = True) -> None:
        super().__init__(name, plans_jobs_apart=plans_jobs_apart)
        self._function = function

    def budget_planner(
        self,
        workloads: Sequence[Workload],
        *,
        link: Link,
        options: PlanOptions = USUAL_OPTIONS,
        cache: PlanCache | None = None,
    ) -> BudgetPlanner:
        """Return a planner that calls the function for each budget."""
        return _AnewPlanner(self._function, workloads, link, options.rewrites, cache)


@dataclass(frozen=True, slots=True)
class _AnewPlanner:
    """Plans anew for each budget, in phases as without."""

    function: PlanFunction
    workloads: Sequence[Workload]
    link: Link
    rewrites: bool
    cache: PlanCache | None

    def plans(self, budget_bytes: int) -> Plans:
        return self.function(
            self.workloads, budget_bytes=budget_bytes, link=self.link, rewrites=self.rewrites, cache=self.cache
        )

    def plans_in_phases(self, budget_bytes: int) -> Plans:
        return self.plans(budget_bytes)
