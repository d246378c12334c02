"""Compute how much of the pinned host pool plans use, and plan so that they fit it.

Each tensor that a plan moves has a buffer in the pool for as long as the job follows the plan, because nothing is
allocated inside an iteration. The same holds for uploaded tensors. TENSILE treats host memory as unlimited. If the
pool is too small, we plan again as if the link were slower. Copies are then worth less than recomputation, or than
leaving tensors on the device, and the planner's own trade-off decides which swaps to give up.

Jobs change plans one after another. A job reserves the larger of its old and its new plan's host bytes until it
follows the new plan. The sum of these must fit the pool, so that no job waits for host memory of a second job that
waits for device memory of the first.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set

from indb_tensile.scheduler.graph import Stage, StepGraph, TensorId
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.pieces import Piece, cuts_of, pieces_of
from indb_tensile.scheduler.plan import Infeasible, Plan
from indb_tensile.scheduler.plan_cache import PlanCache
from indb_tensile.scheduler.planner import JobPlan, Workload, foresee
from indb_tensile.scheduler.rewrite import effective

_POOLED_BYTES = 64  # buffer sizes in the pool are multiples of this (native/device/host_pool.cpp)
_PAGE_BYTES = 4096  # the sum of a job's buffers is a multiple of this
_SLOWER = (1, 4, 16, 64, 4096)  # At the last factor only copies that cannot be avoided remain.


def host_bytes(graphs: Sequence[StepGraph], plans: Sequence[Plan], cache: PlanCache | None = None) -> int:
    """Return an upper bound of the host pool bytes that a job uses under these plans, one plan for each graph.

    A persistent tensor has one buffer, whichever of the job's graphs swaps it. If the plans cut it into different
    pieces, each of these pieces has a buffer. The bound includes one more tensor, because tensors that have no buffer
    move between device and host one at a time when another graph follows. All graphs upload their batches from the
    same two sets of buffers, which fit the largest batch. A graph does not say which uploads are constants, so the
    bound counts every graph's uploads, and the largest again for the second set.
    """
    kept = PlanCache() if cache is None else cache
    pairs = tuple(zip(graphs, plans, strict=True))
    state = [pooled_bytes(tensor.size_bytes) for tensor in graphs[0].tensors if tensor.persistent]
    others_bytes = sum(size for graph, plan in pairs for size in _swapped_others(graph, plan, kept))
    needed_bytes = _state_bytes(pairs, kept) + others_bytes + _all_uploaded_bytes(graphs)
    return -(-(needed_bytes + max(state, default=0)) // _PAGE_BYTES) * _PAGE_BYTES


def pooled_bytes(size_bytes: int) -> int:
    """Return how many bytes of the pool a buffer of this size occupies."""
    return -(-size_bytes // _POOLED_BYTES) * _POOLED_BYTES


def pieces_bytes(pieces: Iterable[Piece]) -> int:
    """Return how many bytes of the pool the buffers of these pieces occupy."""
    return sum(pooled_bytes(piece.size_bytes) for piece in pieces)


def parked_bytes(graphs: Sequence[StepGraph]) -> int:
    """Return an upper bound of the host pool bytes that a job uses while it is parked: its state and its batches."""
    state_bytes = sum(pooled_bytes(tensor.size_bytes) for tensor in graphs[0].tensors if tensor.persistent)
    return -(-(state_bytes + _all_uploaded_bytes(graphs)) // _PAGE_BYTES) * _PAGE_BYTES


def away_bytes(
    away: Iterable[Piece], cuts: Sequence[Mapping[TensorId, tuple[Piece, ...]]], swapped: Set[Piece]
) -> int:
    """Return an upper bound of the host pool bytes of storages that are away, beyond the buffers of swapped pieces.

    `away` are the storages that wait in the pool while a graph runs that never accesses them. Such a storage has the
    pieces into which the last graph that accessed it has cut it. `cuts` are the pieces in each graph, `swapped` those
    that have a buffer in any case.
    """
    total_bytes = 0
    for storage in set(away):
        present = [cut[storage.tensor] for cut in cuts if storage.tensor in cut] or [(storage,)]
        total_bytes += max(pieces_bytes(piece for piece in cut if piece not in swapped) for cut in present)
    return total_bytes


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


def _state_bytes(pairs: Sequence[tuple[StepGraph, Plan]], cache: PlanCache) -> int:
    """Return the pool bytes of the pieces that these plans swap, and of the storages that they keep away."""
    pieces = [pieces_of(graph, plan, cache) for graph, plan in pairs]
    swapped: set[Piece] = set()
    away: set[Piece] = set()
    for (_, plan), piece_of in zip(pairs, pieces, strict=True):
        swapped.update(piece_of[swap.tensor] for swap in plan.swaps if swap.tensor in piece_of)
        away.update(piece_of[tensor] for tensor in plan.away)
    graphs = [effective(graph, plan, cache) for graph, plan in pairs]
    cuts = [cuts_of(graph, piece_of) for graph, piece_of in zip(graphs, pieces, strict=True)] if away else []
    return pieces_bytes(swapped) + away_bytes(away, cuts, swapped)


def _swapped_others(graph: StepGraph, plan: Plan, cache: PlanCache) -> Iterator[int]:
    """Yield the pool bytes of each tensor that the plan swaps and that does not persist."""
    tensors = effective(graph, plan, cache).tensors
    for tensor in {swap.tensor for swap in plan.swaps}:
        if not tensors[tensor].persistent:
            yield pooled_bytes(tensors[tensor].size_bytes)


def _all_uploaded_bytes(graphs: Sequence[StepGraph]) -> int:
    uploaded = [_uploaded_bytes(graph) for graph in graphs]
    return sum(uploaded) + max(uploaded, default=0)


def _uploaded_bytes(graph: StepGraph) -> int:
    uploads = (operator for operator in graph.operators if operator.stage is Stage.UPLOAD)
    return sum(pooled_bytes(graph.tensors[tensor].size_bytes) for operator in uploads for tensor in operator.writes)
