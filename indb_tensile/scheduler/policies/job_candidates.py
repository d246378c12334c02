"""The candidate plans of the jobs that tensile+ plans together, for each of their graphs.

The candidates of a graph do not depend on the budget, so they are made once and used for all budgets. Equal graphs on
equal shares of the lanes have the same candidates.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import liveness_peak
from indb_tensile.scheduler.plan import Plan
from indb_tensile.scheduler.plan_cache import PlanCache
from indb_tensile.scheduler.policies.policy import PlanOptions
from indb_tensile.scheduler.search.candidate import CandidatePlan
from indb_tensile.scheduler.search.candidate_plans import CandidatePlans
from indb_tensile.scheduler.search.local_search import Effort
from indb_tensile.scheduler.workload import Workload

NAME = "tensile+"


@dataclass(slots=True)
class GraphCandidates:
    """The candidate plans of one graph, and its budget curve once that is known."""

    candidates: CandidatePlans
    _curve: tuple[CandidatePlan, ...] = ()

    def curve(self) -> tuple[CandidatePlan, ...]:
        """Return the curve. The first call computes it."""
        self._curve = self._curve or self.candidates.curve()
        return self._curve


@dataclass(slots=True)
class JobCandidates:
    """One job's graphs, each with its candidate plans."""

    workload: Workload
    graph_candidates: list[GraphCandidates]
    cache: PlanCache

    def curve(self) -> tuple[CandidatePlan, ...]:
        """Return the training step's curve. A job of several graphs needs as much as the largest of them."""
        return self.graph_candidates[0].curve()

    def is_as_fast_within(self, cap_bytes: int) -> bool:
        """Return whether the training step takes no longer within this memory than with all that it can use, or than
        other ranks of its job need.
        """
        step = self.graph_candidates[0].candidates
        return step.best(cap_bytes).iteration_ns <= max(step.top.iteration_ns, self.workload.others_ns)

    def plans(self, cap_bytes: int) -> tuple[Plan, ...]:
        """Return a plan for each graph within this memory, or the plans with the least memory if none fits."""
        if cap_bytes >= max(liveness_peak(graph, self.cache) for graph in self.workload.graphs):
            return (Plan(policy=NAME),) * len(self.graph_candidates)  # no tensor moves without need
        return tuple(graph.candidates.within(cap_bytes, NAME) for graph in self.graph_candidates)


def job_candidates(
    workloads: Sequence[Workload],
    link: Link,
    shares: Sequence[float],
    options: PlanOptions,
    cache: PlanCache,
) -> list[JobCandidates]:
    """Return each job's candidate plans for each graph. Equal graphs on equal shares use the same candidates."""
    known: dict[tuple[int, tuple[int, ...], float], GraphCandidates] = {}
    jobs = []
    for workload, share in zip(workloads, shares, strict=True):
        candidates = []
        for number, (graph, latency_ns) in enumerate(zip(workload.graphs, workload.latency_ns, strict=True)):
            key = (id(graph), latency_ns, share)
            if key not in known:
                made = CandidatePlans(
                    graph,
                    latency_ns,
                    link,
                    share=share,
                    rewrites=options.rewrites,
                    effort=options.effort if number == 0 else Effort.QUICK,
                    work=options.work,
                    cancellation_check=options.cancellation_check,
                    cache=cache,
                )
                known[key] = GraphCandidates(made)
            candidates.append(known[key])
        jobs.append(JobCandidates(workload, candidates, cache))
    return jobs
