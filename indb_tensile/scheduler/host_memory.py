"""What plans keep in the pinned host pool, and how they are made to keep less.

A tensor that a plan moves has a buffer there for as long as the plan is followed, since none is allocated inside an
iteration; so has what an iteration uploads. TENSILE takes the host's memory for boundless. Where it is not, planning
goes on as if the link were slower: copies are then worth less than running operators again, or than leaving tensors
where they are, and the planner's own trade-off says which of them to give up.

Jobs go from plan to plan one after another, and each has the larger of both in the pool until it follows the new one.
So these are what has to fit: then no job waits for host memory of another that waits for device memory of the first.
"""

from collections.abc import Callable, Iterator, Sequence

from indb_tensile.scheduler.graph import Stage, StepGraph
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.plan import Infeasible, Plan
from indb_tensile.scheduler.planner import JobPlan, Workload, foresee
from indb_tensile.scheduler.rewrite import effective

_POOLED_BYTES = 64  # sizes in the pool are multiples of this (native/device/host_pool.cpp)
_PAGE_BYTES = 4096  # and all of a job's together of this
_SLOWER = (1, 4, 16, 64, 4096)  # at the last nothing is copied that need not be


def host_bytes(graphs: Sequence[StepGraph], plans: Sequence[Plan]) -> int:
    """At most so much: what a job keeps between iterations has one buffer, whichever of its graphs moves it.

    And one tensor more: by so much at a time the state comes to the device, and back when another graph follows.
    """
    pairs = tuple(zip(graphs, plans, strict=True))
    state = [pooled_bytes(tensor.size_bytes) for tensor in graphs[0].tensors if tensor.persistent]
    kept_bytes = sum(size for graph, plan in pairs for size in _moved(graph, plan, persistent=True))
    others_bytes = sum(size for graph, plan in pairs for size in _moved(graph, plan, persistent=False))
    needed_bytes = min(sum(state), kept_bytes) + others_bytes + sum(map(_uploaded_bytes, graphs))
    return -(-(needed_bytes + max(state, default=0)) // _PAGE_BYTES) * _PAGE_BYTES


def pooled_bytes(size_bytes: int) -> int:
    """What a buffer of this size takes of the pool."""
    return -(-size_bytes // _POOLED_BYTES) * _POOLED_BYTES


def passing_bytes(workloads: Sequence[Workload], plans: Sequence[JobPlan]) -> int:
    """What all have at most on their way from the plans that they follow to these."""
    return sum(max(w.host_bytes, host_bytes(w.graphs, p.plans)) for w, p in zip(workloads, plans, strict=True))


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
        kept_bytes = passing_bytes(workloads, plans)
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
            yield pooled_bytes(tensors[tensor].size_bytes)


def _uploaded_bytes(graph: StepGraph) -> int:
    uploads = (operator for operator in graph.operators if operator.stage is Stage.UPLOAD)
    return sum(pooled_bytes(graph.tensors[tensor].size_bytes) for operator in uploads for tensor in operator.writes)
