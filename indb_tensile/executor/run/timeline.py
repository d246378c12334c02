"""Lists the events at each boundary of an iteration under a plan: memory freed and taken, copies, waits.

The module is pure: it turns a graph and a plan into events. Boundary `n` closes the iteration of `n` operators. For
swaps it is the same as the next iteration's boundary 0. Between two iterations exactly the persistent tensors that
the plan keeps for operator 0 are on the device: the plan's *home state*.
"""

from dataclasses import dataclass, replace

from indb_tensile.errors import InvariantError
from indb_tensile.scheduler.graph import StepGraph, TensorId
from indb_tensile.scheduler.plan import Plan, Swap
from indb_tensile.scheduler.plan_cache import PlanCache
from indb_tensile.scheduler.rewrite import effective


@dataclass(frozen=True, slots=True, kw_only=True)
class UnrolledSwap:
    """A swap with its times unrolled: times in the next iteration are `n` or more."""

    swap: Swap
    free_at: int
    in_at: int
    needed_by: int

    @property
    def tensor(self) -> TensorId:
        """The swapped tensor."""
        return self.swap.tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundary:
    """The events at boundary k, in this order, and after operator k.

    `frees`: wait for the copy out, then free the memory. `freed_bytes`, `taken_bytes`: the one `move` of the ledger.
    `ins`: take memory and start the copy back. `needs`: wait for the copy back. Then operator k runs. `outs`: start
    the copy to the host.
    """

    frees: tuple[UnrolledSwap, ...] = ()
    freed_bytes: int = 0
    taken_bytes: int = 0
    ins: tuple[UnrolledSwap, ...] = ()
    needs: tuple[UnrolledSwap, ...] = ()
    outs: tuple[UnrolledSwap, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """One iteration, boundary by boundary, with the state that it requires before and leaves after it.

    `home`: persistent tensors on the device at the start. `outgoing`: gaps whose copy out continues across the end of
    the iteration. `incoming`: gaps whose copy back does. `copied`: persistent tensors whose host copy must be valid
    at the start. `validated` and `invalidated`: host copies that the iteration leaves valid and stale.
    """

    boundaries: tuple[Boundary, ...]
    home: frozenset[TensorId]
    outgoing: tuple[UnrolledSwap, ...]
    incoming: tuple[UnrolledSwap, ...]
    copied: frozenset[TensorId]
    validated: frozenset[TensorId]
    invalidated: frozenset[TensorId]
    swapped: frozenset[TensorId]


def unroll(graph: StepGraph, plan: Plan, cache: PlanCache | None = None) -> Timeline:
    """Apply `plan` to one iteration of `graph`, in the plan's order. Tensors are those of the graph that then runs.

    Raises InvariantError for a swap whose times are out of order or that relies on a stale host copy.
    """
    graph = effective(graph, plan, cache)
    count = len(graph.operators)
    gaps = tuple(_gap(swap, count) for swap in plan.swaps)
    boundaries = [Boundary() for _ in range(count + 1)]
    for gap in gaps:
        _place(boundaries, gap, graph.tensors[gap.tensor].size_bytes, count)
    _add_lifetimes(boundaries, graph, plan)
    persistent = frozenset(t.id for t in graph.tensors if t.persistent)
    persistent_gaps = [gap for gap in gaps if gap.tensor in persistent]
    absent = {gap.tensor for gap in persistent_gaps if gap.free_at <= count < gap.in_at}
    copied, validated, invalidated = _host_copies(graph, persistent_gaps, persistent)
    return Timeline(
        boundaries=tuple(boundaries),
        home=persistent - plan.away - absent,
        outgoing=tuple(gap for gap in persistent_gaps if gap.free_at > count),
        incoming=tuple(gap for gap in persistent_gaps if gap.in_at <= count <= gap.needed_by),
        copied=copied,
        validated=validated,
        invalidated=invalidated,
        swapped=frozenset(gap.tensor for gap in gaps),
    )


def _gap(swap: Swap, count: int) -> UnrolledSwap:
    start = swap.out_after + 1

    def after(boundary: int) -> int:
        return start + (boundary - start) % count

    gap = UnrolledSwap(
        swap=swap, free_at=after(swap.free_at), in_at=after(swap.in_at), needed_by=after(swap.needed_by)
    )
    if not gap.free_at < gap.in_at <= gap.needed_by:
        raise InvariantError(
            f"swap is out of order: {swap}", hint="free_at must be before in_at, and in_at not after needed_by."
        )
    return gap


def _place(boundaries: list[Boundary], gap: UnrolledSwap, size_bytes: int, count: int) -> None:
    def at(time: int) -> int:
        return time if time <= count else time - count

    def change(index: int, **added: int | tuple[UnrolledSwap, ...]) -> None:
        boundary = boundaries[index]
        boundaries[index] = replace(
            boundary, **{name: getattr(boundary, name) + more for name, more in added.items()}
        )

    change(gap.swap.out_after, outs=(gap,))
    change(at(gap.free_at), frees=(gap,), freed_bytes=size_bytes)
    change(at(gap.in_at), ins=(gap,), taken_bytes=size_bytes)
    change(gap.needed_by % count, needs=(gap,))


def _add_lifetimes(boundaries: list[Boundary], graph: StepGraph, plan: Plan) -> None:
    """Add the memory of tensors that do not persist, until their release, and of workspaces."""
    count = len(graph.operators)
    freed = [b.freed_bytes for b in boundaries]
    taken = [b.taken_bytes for b in boundaries]
    for tensor_id, (first, last) in lifetimes(graph).items():
        size_bytes = graph.tensors[tensor_id].size_bytes
        taken[first] += size_bytes
        freed[last + 1 if plan.release else count] += size_bytes
    for k, operator in enumerate(graph.operators):
        taken[k] += operator.workspace_bytes
        freed[k + 1] += operator.workspace_bytes
    for k, boundary in enumerate(boundaries):
        boundaries[k] = replace(boundary, freed_bytes=freed[k], taken_bytes=taken[k])


def lifetimes(graph: StepGraph) -> dict[TensorId, tuple[int, int]]:
    """Return the first and last operator that accesses each tensor that does not persist."""
    access_range: dict[TensorId, tuple[int, int]] = {}
    for k, operator in enumerate(graph.operators):
        for tensor_id in (*operator.reads, *operator.writes):
            if not graph.tensors[tensor_id].persistent:
                access_range[tensor_id] = (access_range.get(tensor_id, (k, k))[0], k)
    return access_range


def _host_copies(
    graph: StepGraph, gaps: list[UnrolledSwap], persistent: frozenset[TensorId]
) -> tuple[frozenset[TensorId], frozenset[TensorId], frozenset[TensorId]]:
    """Return the host copies that must be valid at the start, and those that are valid and stale at the end."""
    outs: dict[int, list[Swap]] = {}
    for gap in gaps:
        outs.setdefault(gap.swap.out_after, []).append(gap.swap)
    needed: set[TensorId] = set()
    valid: set[TensorId] = set()
    stale: set[TensorId] = set()
    for k, operator in enumerate(graph.operators):
        stale.update(persistent.intersection(operator.writes))
        valid.difference_update(operator.writes)
        for swap in outs.get(k, ()):
            if not swap.copies and swap.tensor in stale:
                raise InvariantError(f"swap of {graph.tensors[swap.tensor].name} relies on a stale copy: {swap}")
            if not swap.copies and swap.tensor not in valid:
                needed.add(swap.tensor)
            valid.add(swap.tensor)
            stale.discard(swap.tensor)
    # Swaps without a copy that left in the last iteration free their memory in this one, before any copy is made.
    needed.update(gap.tensor for gap in gaps if gap.free_at > len(graph.operators) and not gap.swap.copies)
    return frozenset(needed), frozenset(valid), frozenset(stale)
