"""Translate swaps from one order of execution into another that re-runs some operators and puts others off.

A policy that decides on swaps and on recomputation uses the boundaries of the graph's own order. Re-runs change this:
boundaries move to other positions, a recomputed tensor is another tensor, and a re-run may read a tensor that the
policy wants on the host. The translation keeps the effect of a swap: its memory is given back and taken again at the
same moments between the same operators. If a re-run reads the tensor inside its gap, only the longer part of the gap
is swapped, with as much time for each copy as the swap had planned. If the tensor is recomputed inside its gap, the
swap is dropped. Whether a swap has to copy is derived anew, because a host copy is valid until its tensor is written.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from indb_tensile.scheduler.graph import OpIndex, StepGraph, TensorId
from indb_tensile.scheduler.memory.peak import accesses, free_index, in_index, need_index, unrolled
from indb_tensile.scheduler.plan import Swap


@dataclass(frozen=True, slots=True, kw_only=True)
class RerunOrder:
    """Another order of a graph's operators. The turn of operator k holds its re-runs, then the updates that were put
    off to this turn, then operator k itself.

    `start[k]` is the position in `order` at which the turn of operator k begins. `own[k]` is the position of the
    first run of operator k. `put_off` are the operators that run in a later turn than their own.
    """

    order: tuple[OpIndex, ...]
    start: tuple[int, ...]
    own: tuple[int, ...]
    put_off: frozenset[int]

    @staticmethod
    def laid(reruns: Sequence[Sequence[OpIndex]], put_off: dict[int, int]) -> "RerunOrder":
        """Return the order with `reruns[k]` before operator k and each operator of `put_off` in its
        given later turn.
        """
        later: dict[int, list[int]] = {}
        for index, turn in sorted(put_off.items()):
            later.setdefault(turn, []).append(index)
        order: list[OpIndex] = []
        start, own = [], [0] * len(reruns)
        for index, repeated in enumerate(reruns):
            start.append(len(order))
            order += repeated
            for operator in (*later.get(index, ()), *(() if index in put_off else (index,))):
                own[operator] = len(order)
                order.append(OpIndex(operator))
        return RerunOrder(order=tuple(order), start=tuple(start), own=tuple(own), put_off=frozenset(put_off))


def carried(
    before: StepGraph, after: StepGraph, latency_ns: Sequence[int], turns: RerunOrder, swaps: Iterable[Swap]
) -> tuple[Swap, ...]:
    """Return the same swaps for the graph `after`, which runs the operators of `before` in the order of `turns`."""
    planned = tuple(swaps)
    carrying = _SwapTranslator(before, after, latency_ns, turns) if planned else None
    moved = (carrying.swap(swap) for swap in planned) if carrying else ()
    return with_copies(after, [swap for swap in moved if swap is not None])


def with_copies(graph: StepGraph, swaps: Iterable[Swap]) -> tuple[Swap, ...]:
    """Return the swaps in sorted order, with a copy only where the host has no valid copy. Where the host has a valid
    copy, the memory is given back at once.
    """
    of_tensor: dict[TensorId, list[Swap]] = {}
    for swap in sorted(swaps, key=lambda s: (s.tensor, s.out_after)):
        of_tensor.setdefault(swap.tensor, []).append(swap)
    writes: dict[TensorId, list[int]] = {tensor: [] for tensor in of_tensor}
    for index, operator in enumerate(graph.operators):
        for tensor in {*operator.writes} & of_tensor.keys():
            writes[tensor].append(index)
    count = len(graph.operators)
    return tuple(s for tensor, mine in of_tensor.items() for s in _derive_copies(mine, writes[tensor], count))


def _derive_copies(swaps: Sequence[Swap], writes: Sequence[int], count: int) -> list[Swap]:
    """Derive `copies` and `free_at` of one tensor's swaps in the order of time. A tensor that is away at the
    iteration's start has a valid host copy there.
    """
    valid_since = -1 if in_index(swaps[-1], count) > count else None
    derived = []
    for swap in swaps:
        valid = valid_since is not None and not _any_between(writes, valid_since, swap.out_after)
        free_at = OpIndex((swap.out_after + 1) % count) if valid else swap.free_at
        derived.append(replace(swap, copies=not valid, free_at=free_at))
        valid_since = swap.out_after
    return derived


def _any_between(positions: Sequence[int], after: int, until: int) -> bool:
    return bisect_right(positions, after) < bisect_right(positions, until)


class _SwapTranslator:
    """Maps operators, boundaries and tensors of the graph `before` to those of the graph `after`."""

    def __init__(self, before: StepGraph, after: StepGraph, latency_ns: Sequence[int], turns: RerunOrder) -> None:
        self._before = before
        self._after = after
        self._turns = turns
        self._count = len(before.operators)
        self._then = _Clock(latency_ns)
        self._now = _Clock([latency_ns[k] for k in turns.order])
        self._accesses = accesses(after)

    def swap(self, swap: Swap) -> Swap | None:
        """Return the swap in the new order, or None if it has become needless or too short."""
        tensor = self._tensor(swap.tensor, swap.out_after)
        if tensor is None or tensor != self._tensor(swap.tensor, swap.needed_by):
            return None
        first, last = self._turns.own[swap.out_after], self._turns.own[swap.needed_by]
        if not self._after.tensors[tensor].persistent and first >= last:
            return None
        count = len(self._after.operators)
        last = unrolled(last, first, count)
        between = sorted(unrolled(k, first, count) for k in self._accesses[tensor])
        stops = [first, *(k for k in between if k < last), last]
        out_after, needed_by = max(pairwise(stops), key=lambda part: self._now.between(part[0] + 1, part[1]))
        free = self._free(swap, out_after, whole=out_after == first)
        back = self._back(swap, needed_by, whole=needed_by == last)
        if not out_after < free < back <= needed_by:
            return None
        return Swap(
            tensor=tensor,
            out_after=OpIndex(out_after % count),
            free_at=OpIndex(free % count),
            in_at=OpIndex(back % count),
            needed_by=OpIndex(needed_by % count),
        )

    def _tensor(self, tensor: TensorId, operator: int) -> TensorId | None:
        """Return the tensor of `after` that replaces this tensor at this operator's access.

        None if the operator was put off and does not write the tensor, or if the operator does not access the tensor.
        """
        before, after = self._before.operators[operator], self._after.operators[self._turns.own[operator]]
        if operator in self._turns.put_off and tensor not in before.writes:
            return None
        pairs = zip((*before.reads, *before.writes), (*after.reads, *after.writes), strict=True)
        return next((now for then, now in pairs if then == tensor), None)

    def _free(self, swap: Swap, out_after: int, *, whole: bool) -> int:
        """Return the boundary that gives the memory back. If the gap is not whole, the copy gets as much time as was
        planned.
        """
        if whole:
            return unrolled(self._turns.start[swap.free_at], out_after, len(self._after.operators))
        copy_ns = self._then.between(swap.out_after + 1, free_index(swap, self._count))
        return self._now.first_after(out_after + 1, copy_ns)

    def _back(self, swap: Swap, needed_by: int, *, whole: bool) -> int:
        """Return the boundary that takes the memory again. If the gap is not whole, the copy gets as much time as was
        planned.
        """
        if whole:
            count = len(self._after.operators)
            moved = swap.in_at in self._turns.put_off and swap.in_at != swap.needed_by
            planned = (self._turns.start if moved else self._turns.own)[swap.in_at]
            return needed_by - (needed_by - planned) % count
        copy_ns = self._then.between(in_index(swap, self._count), need_index(swap, self._count))
        return self._now.last_before(needed_by, copy_ns)


class _Clock:
    """Start times of operators on an endless repetition of the iteration."""

    def __init__(self, latency_ns: Sequence[int]) -> None:
        self._count = len(latency_ns)
        self._begin = (0, *accumulate(latency_ns))

    def between(self, first: int, last: int) -> int:
        """Return the nanoseconds from one boundary to a later boundary."""
        return self._at(last) - self._at(first)

    def first_after(self, boundary: int, ns: int) -> int:
        """Return the first boundary that is at least `ns` nanoseconds later."""
        start = boundary
        while self.between(start, boundary) < ns:
            boundary += 1
        return boundary

    def last_before(self, boundary: int, ns: int) -> int:
        """Return the last boundary that is at least `ns` nanoseconds earlier."""
        end = boundary
        while self.between(boundary, end) < ns:
            boundary -= 1
        return boundary

    def _at(self, boundary: int) -> int:
        period, within = divmod(boundary, self._count)
        return period * self._begin[-1] + self._begin[within]
