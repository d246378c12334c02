"""What happens at each boundary of an iteration under a plan: bytes given back and taken, copies, waits.

Pure: graph and plan in, events out. Boundary `n` closes the iteration of `n` operators; it is the next
iteration's boundary 0 as far as swaps are concerned, so between two iterations exactly the persistent
tensors are there that the plan keeps for operator 0: its *home state*.
"""

from dataclasses import dataclass, replace

from indb_tensile.errors import InvariantError
from indb_tensile.scheduler.graph import StepGraph, TensorId
from indb_tensile.scheduler.plan import Plan, Swap
from indb_tensile.scheduler.rewrite import effective


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """A swap with its times unrolled: what lies in the next iteration is `n` or more later."""

    swap: Swap
    free_at: int
    in_at: int
    needed_by: int

    @property
    def tensor(self) -> TensorId:
        """The tensor that leaves."""
        return self.swap.tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundary:
    """What happens at boundary k, in this order, and after operator k.

    `frees`: wait for the copy out, then drop the memory. `freed_bytes`, `taken_bytes`: the one move of the
    ledger. `ins`: take memory and start the copy back. `needs`: wait for the copy back. Operator k runs.
    `outs`: start the copy to the host.
    """

    frees: tuple[Gap, ...] = ()
    freed_bytes: int = 0
    taken_bytes: int = 0
    ins: tuple[Gap, ...] = ()
    needs: tuple[Gap, ...] = ()
    outs: tuple[Gap, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """One iteration, boundary by boundary, and what it asks of the state before and leaves after it.

    `home`: persistent tensors that are there at the start. `outgoing`: gaps whose copy out runs on across the
    end of the iteration; `incoming`: gaps whose copy back does. `copied`: persistent tensors whose host copy
    must be valid at the start. `validated` and `invalidated`: host copies after the iteration.
    """

    boundaries: tuple[Boundary, ...]
    home: frozenset[TensorId]
    outgoing: tuple[Gap, ...]
    incoming: tuple[Gap, ...]
    copied: frozenset[TensorId]
    validated: frozenset[TensorId]
    invalidated: frozenset[TensorId]
    swapped: frozenset[TensorId]


def unroll(graph: StepGraph, plan: Plan) -> Timeline:
    """Lay `plan` over one iteration of `graph`, in the plan's order; tensors are those of the graph that then runs.

    Raises InvariantError for a swap whose times are out of order or that relies on a stale host copy.
    """
    graph = effective(graph, plan)
    count = len(graph.operators)
    gaps = tuple(_gap(swap, count) for swap in plan.swaps)
    boundaries = [Boundary() for _ in range(count + 1)]
    for gap in gaps:
        _place(boundaries, gap, graph.tensors[gap.tensor].size_bytes, count)
    _add_lifetimes(boundaries, graph, plan)
    persistent = frozenset(t.id for t in graph.tensors if t.persistent)
    kept = [gap for gap in gaps if gap.tensor in persistent]
    absent = {gap.tensor for gap in kept if gap.free_at <= count < gap.in_at}
    copied, validated, invalidated = _host_copies(graph, kept, persistent)
    return Timeline(
        boundaries=tuple(boundaries),
        home=persistent - plan.away - absent,
        outgoing=tuple(gap for gap in kept if gap.free_at > count),
        incoming=tuple(gap for gap in kept if gap.in_at <= count <= gap.needed_by),
        copied=copied,
        validated=validated,
        invalidated=invalidated,
        swapped=frozenset(gap.tensor for gap in gaps),
    )


def _gap(swap: Swap, count: int) -> Gap:
    start = swap.out_after + 1

    def after(boundary: int) -> int:
        return start + (boundary - start) % count

    gap = Gap(swap=swap, free_at=after(swap.free_at), in_at=after(swap.in_at), needed_by=after(swap.needed_by))
    if not gap.free_at < gap.in_at <= gap.needed_by:
        raise InvariantError(
            f"swap is out of order: {swap}", hint="free_at must come before in_at, that by needed_by."
        )
    return gap


def _place(boundaries: list[Boundary], gap: Gap, size_bytes: int, count: int) -> None:
    def at(time: int) -> int:
        return time if time <= count else time - count

    def change(index: int, **added: int | tuple[Gap, ...]) -> None:
        now = boundaries[index]
        boundaries[index] = replace(now, **{name: getattr(now, name) + more for name, more in added.items()})

    change(gap.swap.out_after, outs=(gap,))
    change(at(gap.free_at), frees=(gap,), freed_bytes=size_bytes)
    change(at(gap.in_at), ins=(gap,), taken_bytes=size_bytes)
    change(gap.needed_by % count, needs=(gap,))


def _add_lifetimes(boundaries: list[Boundary], graph: StepGraph, plan: Plan) -> None:
    """What operators make and need beside persistent tensors: outputs until their release, workspaces."""
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
    """First and last operator that accesses each tensor that does not persist."""
    found: dict[TensorId, tuple[int, int]] = {}
    for k, operator in enumerate(graph.operators):
        for tensor_id in (*operator.reads, *operator.writes):
            if not graph.tensors[tensor_id].persistent:
                found[tensor_id] = (found.get(tensor_id, (k, k))[0], k)
    return found


def _host_copies(
    graph: StepGraph, gaps: list[Gap], persistent: frozenset[TensorId]
) -> tuple[frozenset[TensorId], frozenset[TensorId], frozenset[TensorId]]:
    """Which host copies must be valid at the start, which are at the end, which no longer are."""
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
    # What left in the iteration before without a copy gives its memory back in this one, before anything is copied.
    needed.update(gap.tensor for gap in gaps if gap.free_at > len(graph.operators) and not gap.swap.copies)
    return frozenset(needed), frozenset(valid), frozenset(stale)
