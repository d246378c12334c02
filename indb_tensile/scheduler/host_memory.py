"""Compute how much of the pinned host pool plans use, and plan so that they fit it.

Each tensor that a plan moves has a buffer in the pool for as long as the job follows the plan, because nothing is
allocated inside an iteration. The same holds for uploaded tensors. TENSILE treats host memory as unlimited. If the
pool is too small, we plan again as if the link were slower. Copies are then worth less than recomputation, or than
leaving tensors on the device, and the planner's own trade-off decides which swaps to give up.

Jobs change plans one after another. A job reserves the larger of its old and its new plan's host bytes until it
follows the new plan. The sum of these must fit the pool, so that no job waits for host memory of a second job that
waits for device memory of the first.
"""

from collections.abc import Callable, Iterator, Sequence

from indb_tensile.scheduler.graph import Stage, StepGraph
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.plan import Infeasible, Plan
from indb_tensile.scheduler.plan_cache import PlanCache
from indb_tensile.scheduler.planner import JobPlan, Workload, foresee
from indb_tensile.scheduler.rewrite import effective

_POOLED_BYTES = 64  # buffer sizes in the pool are multiples of this (native/device/host_pool.cpp)
_PAGE_BYTES = 4096  # the sum of a job's buffers is a multiple of this
_SLOWER = (1, 4, 16, 64, 4096)  # At the last factor only copies that cannot be avoided remain.


def host_bytes(graphs: Sequence[StepGraph], plans: Sequence[Plan], cache: PlanCache | None = None) -> int:
    """Return an upper bound of the host pool bytes that a job uses under these plans, one plan for each graph.

    A persistent tensor has one buffer, whichever of the job's graphs moves it. The bound includes one more tensor,
    because the state moves between device and host one tensor at a time when another graph follows. All graphs upload
    their batches from the same two sets of buffers, which fit the largest batch. A graph does not say which uploads
    are constants, so the bound counts every graph's uploads, and the largest again for the second set.
    """
    kept = PlanCache() if cache is None else cache
    pairs = tuple(zip(graphs, plans, strict=True))
    state = [pooled_bytes(tensor.size_bytes) for tensor in graphs[0].tensors if tensor.persistent]
    persistent_bytes = sum(size for graph, plan in pairs for size in _moved(graph, plan, kept, persistent=True))
    others_bytes = sum(size for graph, plan in pairs for size in _moved(graph, plan, kept, persistent=False))
    needed_bytes = min(sum(state), persistent_bytes) + others_bytes + _all_uploaded_bytes(graphs)
    return -(-(needed_bytes + max(state, default=0)) // _PAGE_BYTES) * _PAGE_BYTES


def pooled_bytes(size_bytes: int) -> int:
    """Return how many bytes of the pool a buffer of this size occupies."""
    return -(-size_bytes // _POOLED_BYTES) * _POOLED_BYTES


def parked_bytes(graphs: Sequence[StepGraph]) -> int:
    """Return an upper bound of the host pool bytes that a job uses while it is parked: its state and its batches."""
    state_bytes = sum(pooled_bytes(tensor.size_bytes) for tensor in graphs[0].tensors if tensor.persistent)
    return -(-(state_bytes + _all_uploaded_bytes(graphs)) // _PAGE_BYTES) * _PAGE_BYTES


def passing_bytes(workloads: Sequence[Workload], plans: Sequence[JobPlan], cache: PlanCache | None = None) -> int:
    """Return an upper bound of the host pool bytes that all jobs use while they change from their present plans to
    these.
    """
    return sum(max(w.host_bytes, host_bytes(w.graphs, p.plans, cache)) for w, p in zip(workloads, plans, strict=True))


def within_host(
    workloads: Sequence[Workload],
    plan_at: Callable[[Link], tuple[JobPlan, ...] | Infeasible],
    *,
    link: Link,
    limit_bytes: int,
    cache: PlanCache | None = None,
) -> tuple[JobPlan, ...] | Infeasible:
    """Return plans that fit the host pool together, made for the fastest link at which such plans exist.

    The forecasts of the returned plans are for the true link.
    """
    least_bytes = 0
    plans: tuple[JobPlan, ...] = ()
    for slower in _SLOWER:
        candidate_plans = plan_at(
            Link(out_bytes_per_s=link.out_bytes_per_s // slower, in_bytes_per_s=link.in_bytes_per_s // slower)
        )
        if isinstance(candidate_plans, Infeasible):
            return candidate_plans
        plans = candidate_plans
        used_bytes = passing_bytes(workloads, plans, cache)
        if used_bytes <= limit_bytes:
            return plans if slower == 1 else foresee(workloads, plans, link=link, cache=cache)
        least_bytes = min(least_bytes or used_bytes, used_bytes)
    # At the last factor the plan moves nothing and needs the device memory of a plan that only releases.
    return Infeasible(
        needed_bytes=sum(plan.liveness_peak_bytes for plan in plans),
        budget_bytes=sum(plan.peak_bytes for plan in plans),
        reason=f"swaps take {least_bytes} bytes of the host pool, which has {limit_bytes} (host_pool_bytes)",
    )


def _moved(graph: StepGraph, plan: Plan, cache: PlanCache, *, persistent: bool) -> Iterator[int]:
    tensors = effective(graph, plan, cache).tensors
    for tensor in {*(swap.tensor for swap in plan.swaps), *plan.away}:
        if tensors[tensor].persistent == persistent:
            yield pooled_bytes(tensors[tensor].size_bytes)


def _all_uploaded_bytes(graphs: Sequence[StepGraph]) -> int:
    uploaded = [_uploaded_bytes(graph) for graph in graphs]
    return sum(uploaded) + max(uploaded, default=0)


def _uploaded_bytes(graph: StepGraph) -> int:
    uploads = (operator for operator in graph.operators if operator.stage is Stage.UPLOAD)
    return sum(pooled_bytes(graph.tensors[tensor].size_bytes) for operator in uploads for tensor in operator.writes)
