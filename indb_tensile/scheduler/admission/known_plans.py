"""Remember the plans of sets of jobs, so that the planner is asked once for each kind of set.

Planning a set takes 0.1 to 1 s of a processor. On a device without a GPU that time is taken from the jobs that
train, and no job can start meanwhile. Where jobs of one kind follow each other, such as the trials of a search, the
same sets return: when a job ends and an equal one starts, the plans of the set before hold for the new set. A job
that goes on then keeps the plan that it follows, and the new job gets the plan of the one that ended.

Plans are used again if the graphs are equal, and everything else that planning depends on: the memory, the jobs'
own limits, and that the host pool has room. The latencies may differ by as much as those of a running job may drift
before it is planned anew. Ranks are planned for the pace of other devices, and jobs in a round for each other's
phases; their plans are not remembered.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from indb_tensile.scheduler.graph import StepGraph
from indb_tensile.scheduler.planner import JobPlan
from indb_tensile.scheduler.timing.latency import drift
from indb_tensile.scheduler.workload import Workload

MOST_SETS = 16
# Fields of a workload on which plans do not depend, or which are compared in another way.
_APART = frozenset({"job", "graphs", "latency_ns", "host_bytes", "parked_host_bytes", "graph_share", "copy_loss"})
_RULES = tuple(field.name for field in fields(Workload) if field.name not in _APART)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedJob:
    """A job of a set that was planned, and its plan."""

    workload: Workload
    plan: JobPlan

    def serves(self, workload: Workload, most_drift: float) -> bool:
        """Return whether the plan holds for a job with this workload."""
        own = self.workload
        if any(getattr(own, name) != getattr(workload, name) for name in _RULES):
            return False
        pairs = zip(own.graphs, workload.graphs, strict=False)
        if len(own.graphs) != len(workload.graphs) or not all(are_equal(graph, other) for graph, other in pairs):
            return False
        rows = zip(own.latency_ns, workload.latency_ns, strict=True)
        return all(drift(old, new) <= most_drift for old, new in rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedSet:
    """Jobs that were planned together, for this memory."""

    budget_bytes: int
    jobs: tuple[PlannedJob, ...]

    def plans_for(
        self, workloads: Sequence[Workload], followed: Sequence[JobPlan | None], most_drift: float
    ) -> tuple[JobPlan, ...] | None:
        """Return the plans of the set for these jobs, in their order, or None if it is another kind of set.

        A job that follows a plan of the set already (`followed`) keeps it.
        """
        if len(workloads) != len(self.jobs):
            return None
        left, plans = list(self.jobs), list[JobPlan | None]([None] * len(workloads))
        follows = {place for place, plan in enumerate(followed) if plan is not None}
        for place in sorted(range(len(workloads)), key=lambda place: place not in follows):
            own = followed[place]
            serving = [planned for planned in left if planned.serves(workloads[place], most_drift)]
            if not serving:
                return None
            same = (planned for planned in serving if own is not None and planned.plan.plans == own.plans)
            chosen = next(same, serving[0])
            left.remove(chosen)
            plans[place] = replace(chosen.plan, job=workloads[place].job)
        return tuple(plan for plan in plans if plan is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownPlans:
    """The sets whose plans are remembered. The set that was planned or used last is the last one."""

    sets: tuple[PlannedSet, ...] = ()

    def of(
        self,
        workloads: Sequence[Workload],
        followed: Sequence[JobPlan | None],
        *,
        budget_bytes: int,
        most_drift: float,
    ) -> tuple[JobPlan, ...] | None:
        """Return the plans of an equal set in the same memory, with that set's forecasts; None if there is none."""
        if not all(map(_is_remembered, workloads)):
            return None
        for known in reversed(self.sets):
            if known.budget_bytes == budget_bytes:
                plans = known.plans_for(workloads, followed, most_drift)
                if plans is not None:
                    return plans
        return None

    def with_those_of(
        self, workloads: Sequence[Workload], plans: Sequence[JobPlan], *, budget_bytes: int
    ) -> "KnownPlans":
        """Return what is known after these jobs were planned together. An equal set is forgotten for this one."""
        phased = any(plan.schedule is not None or plan.part is not None for plan in plans)
        if phased or not all(map(_is_remembered, workloads)):
            return self
        jobs = tuple(PlannedJob(workload=w, plan=p) for w, p in zip(workloads, plans, strict=True))
        nobody, any_drift = [None] * len(jobs), float("inf")
        others = tuple(
            known
            for known in self.sets
            if known.budget_bytes != budget_bytes or known.plans_for(workloads, nobody, any_drift) is None
        )
        latest = PlannedSet(budget_bytes=budget_bytes, jobs=jobs)
        return KnownPlans(sets=(*others, latest)[-MOST_SETS:])

    @property
    def graphs(self) -> tuple[StepGraph, ...]:
        """The graphs of all jobs of these sets."""
        return tuple(graph for known in self.sets for planned in known.jobs for graph in planned.workload.graphs)


def are_equal(graph: StepGraph, other: StepGraph) -> bool:
    """Return whether two graphs are equal. The sizes and the signature tell most graphs apart; comparing all
    operators takes milliseconds.
    """
    if graph is other:
        return True
    sizes = (graph.signature, len(graph.operators), len(graph.tensors))
    return sizes == (other.signature, len(other.operators), len(other.tensors)) and graph == other


def _is_remembered(workload: Workload) -> bool:
    return not workload.others_ns and all(graph.signature for graph in workload.graphs)
