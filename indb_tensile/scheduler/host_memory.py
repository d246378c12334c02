"""What plans keep in the pinned host pool, and how they are made to keep less.

A tensor that a plan moves has a buffer there for as long as the plan is followed, since none is allocated inside an
iteration; so has what an iteration uploads. TENSILE takes the host's memory for boundless. Where it is not, planning
goes on as if the link were slower: copies are then worth less than running operators again, or than leaving tensors
where they are, and the planner's own trade-off says which of them to give up.
"""

from collections.abc import Callable, Iterator, Sequence

from indb_tensile.scheduler.graph import Stage, StepGraph
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.plan import Infeasible, Plan
from indb_tensile.scheduler.planner import JobPlan, Workload, foresee
from indb_tensile.scheduler.rewrite import effective

_SLOWER = (1, 4, 16, 64, 4096)  # at the last nothing is copied that need not be


def host_bytes(graphs: Sequence[StepGraph], plans: Sequence[Plan]) -> int:
    """At most so much: what a job keeps between iterations has one buffer, whichever of its graphs moves it.

    And one tensor more: by so much at a time the state comes to the device, and back when another graph follows.
    """
    pairs = tuple(zip(graphs, plans, strict=True))
    state = [tensor.size_bytes for tensor in graphs[0].tensors if tensor.persistent]
    kept_bytes = sum(size for graph, plan in pairs for size in _moved(graph, plan, persistent=True))
    passing_bytes = sum(size for graph, plan in pairs for size in _moved(graph, plan, persistent=False))
    return min(sum(state), kept_bytes) + max(state, default=0) + passing_bytes + sum(map(_uploaded_bytes, graphs))


def within_host(
    workloads: Sequence[Workload],
    plan_at: Callable[[Link], tuple[JobPlan, ...] | Infeasible],
    *,
    link: Link,
    limit_bytes: int,
) -> tuple[JobPlan, ...] | Infeasible:
    """The plans that keep all jobs together within the host pool, at the fastest link for which there are any.

    Their forecasts are those of the link as it is.
    """
    least_bytes = 0
    plans: tuple[JobPlan, ...] = ()
    for slower in _SLOWER:
        found = plan_at(
            Link(out_bytes_per_s=link.out_bytes_per_s // slower, in_bytes_per_s=link.in_bytes_per_s // slower)
        )
        if isinstance(found, Infeasible):
            return found
        plans = found
        kept_bytes = sum(host_bytes(w.graphs, p.plans) for w, p in zip(workloads, plans, strict=True))
        if kept_bytes <= limit_bytes:
            return plans if slower == 1 else foresee(workloads, plans, link=link)
        least_bytes = min(least_bytes or kept_bytes, kept_bytes)
    # There is a plan that moves nothing, and needs the device memory of one that only releases.
    return Infeasible(
        needed_bytes=sum(plan.liveness_peak_bytes for plan in plans),
        budget_bytes=sum(plan.peak_bytes for plan in plans),
        reason=f"swaps take {least_bytes} bytes of the host pool, which has {limit_bytes} (host_pool_bytes)",
    )


def _moved(graph: StepGraph, plan: Plan, *, persistent: bool) -> Iterator[int]:
    tensors = effective(graph, plan).tensors
    for tensor in {*(swap.tensor for swap in plan.swaps), *plan.away}:
        if tensors[tensor].persistent == persistent:
            yield tensors[tensor].size_bytes


def _uploaded_bytes(graph: StepGraph) -> int:
    uploads = (operator for operator in graph.operators if operator.stage is Stage.UPLOAD)
    return sum(graph.tensors[tensor].size_bytes for operator in uploads for tensor in operator.writes)
