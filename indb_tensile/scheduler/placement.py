"""An address for every residency interval of a plan: SmartPool's offline allocation, and better.

SmartPool (paper section III) colours a weighted graph: intervals are vertices weighted by size, and those alive at
the same time are joined. The largest goes first; each takes a hole in the lifetimes' plane, the lowest (first fit) or
the smallest (best fit), or else extends the pool. `first_fit` and `best_fit` are that.

`place` differs in the order. What decides is not how large an interval is but how crowded its time is: intervals at
the peak leave no room to spare, and those elsewhere fit around them. So it tries a short list of orders, crowd first;
then moves the intervals that stick out to the front of the order and tries again; and where intervals are few enough
it searches (native/placement/search.hpp), which also answers whether a given capacity suffices: `place_within`.
What lives for the whole cycle lies at the bottom: it meets everything, so any placement can be slid to that form.

All of it counts in steps, not time: equal inputs give equal placements. Offsets and sizes are multiples of the
alignment, save for the last interval's end, which loses nothing: what lies above has to be aligned anyway.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from indb_tensile import _placement
from indb_tensile.errors import InvariantError
from indb_tensile.scheduler.graph import StepGraph
from indb_tensile.scheduler.memo import Memo
from indb_tensile.scheduler.plan import Plan
from indb_tensile.scheduler.residency import Interval, intervals, load_bound
from indb_tensile.scheduler.rewrite import effective

ALIGNMENT_BYTES = 512  # what CUDA's own allocators align to
SEARCH_STEPS = 2_000_000

_REGION_STEPS = 100_000  # tenths of a second: a job waits for it
_QUICK_STEPS = 300_000  # of `place`, divided by the number of intervals: what a step costs grows with it
_SEARCHABLE = 400  # intervals: a partial placement remembers a reason for each pair of them
_FEWEST_FITS = 2
_MOST_FITS = 150  # of `place`: each order, then moving what sticks out to the front
_FIT_COST = 250_000_000  # divided by the square of the number of intervals: what a fit costs at the most

_Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """An offset for each interval, in their order, and the bytes from 0 to the highest end."""

    offsets: tuple[int, ...]
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Unplaced:
    """No placement was found within the capacity; `proven` where there is none."""

    capacity_bytes: int
    proven: bool


def place(held: Sequence[Interval], count: int, *, alignment_bytes: int = ALIGNMENT_BYTES) -> Placement:
    """Place all intervals of a cycle of so many operators in as few bytes as can be found quickly."""
    task = _Task.of(held, count, alignment_bytes)
    tried = _tried(task)
    found = _lowest(tried)
    if found.height > task.bound:
        found = _lowest([found, *_promoted(task, tried)])
    if task.bound < found.height and len(task.size) <= _SEARCHABLE:
        found = _searched(task, found)
    return task.placement(found.offsets)


def place_within(
    held: Sequence[Interval],
    count: int,
    *,
    capacity_bytes: int,
    alignment_bytes: int = ALIGNMENT_BYTES,
    steps: int = SEARCH_STEPS,
) -> Placement | Unplaced:
    """Place all intervals within the capacity, by search where the quick ways do not find how."""
    task = _Task.of(held, count, alignment_bytes)
    capacity = capacity_bytes // alignment_bytes - task.bottom
    refusal = Unplaced(capacity_bytes=capacity_bytes, proven=task.bound > capacity)
    if refusal.proven:
        return refusal
    found = _lowest(_tried(task, enough=capacity))
    if found.height <= capacity:
        return task.placement(found.offsets)
    proven, offsets = task.search(capacity, steps)
    return task.placement(np.array(offsets)) if offsets else Unplaced(capacity_bytes=capacity_bytes, proven=proven)


def place_plan(graph: StepGraph, plan: Plan, *, region_bytes: int) -> Placement:
    """Where everything lies that the plan foresees, in as few regions as can be found.

    Whoever grants memory for a plan counts with it, and whoever follows the plan lies by it: to both it is the same.
    """
    return _placements.get(graph, (plan, region_bytes), lambda: _in_regions(graph, plan, region_bytes))


def _in_regions(graph: StepGraph, plan: Plan, region_bytes: int) -> Placement:
    held, count = intervals(graph, plan), len(effective(graph, plan).operators)
    placed = place(held, count)
    least_bytes = -(-load_bound(held, count) // region_bytes) * region_bytes
    if placed.size_bytes <= least_bytes:
        return placed
    tighter = place_within(held, count, capacity_bytes=least_bytes, steps=_REGION_STEPS)
    return tighter if isinstance(tighter, Placement) else placed


_placements: Memo[Placement] = Memo(64)  # of all jobs' graphs, and of some plans for each


def best_fit(held: Sequence[Interval], count: int, *, alignment_bytes: int = ALIGNMENT_BYTES) -> Placement:
    """SmartPool as published, with its default: largest first, each into the smallest hole that is large enough."""
    return _published(held, count, alignment_bytes, best=True)


def first_fit(held: Sequence[Interval], count: int, *, alignment_bytes: int = ALIGNMENT_BYTES) -> Placement:
    """SmartPool as published: largest first, each into the lowest hole that is large enough."""
    return _published(held, count, alignment_bytes, best=False)


def _published(held: Sequence[Interval], count: int, alignment_bytes: int, *, best: bool) -> Placement:
    task = _Task.of(held, count, alignment_bytes, slide=False)
    return task.placement(task.fit(_by_size(task), best=best).offsets)


# --- in units of the alignment ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Fit:
    order: _Numbers
    best: bool
    offsets: _Numbers
    height: int


@dataclass(frozen=True, slots=True)
class _Task:
    """What is to be placed above what lies at the bottom, as arrays; sizes and offsets in units of the alignment."""

    held: Sequence[Interval]
    alignment_bytes: int
    cycle: int  # how many moments: operators at which something starts or stops
    whole: tuple[int, ...]  # the intervals at the bottom
    rest: tuple[int, ...]
    bottom: int
    first: _Numbers
    stop: _Numbers
    length: _Numbers  # operators
    size: _Numbers
    load: _Numbers  # at each moment, without the bottom

    @classmethod
    def of(cls, held: Sequence[Interval], count: int, alignment_bytes: int, *, slide: bool = True) -> "_Task":
        if alignment_bytes < 1 or count < 1:
            raise InvariantError(f"placement: alignment is {alignment_bytes} bytes, the cycle {count} operators")
        for one in held:
            if one.first >= count or one.stop > one.first + count:
                raise InvariantError(f"placement: {one} is out of a cycle of {count} operators")
        units = [-(-one.size_bytes // alignment_bytes) for one in held]
        whole = tuple(i for i, one in enumerate(held) if slide and one.stop - one.first == count)
        lying = set(whole)
        rest = tuple(i for i in range(len(held)) if i not in lying)
        first = np.array([held[i].first for i in rest], dtype=np.int64)
        stop = np.array([held[i].stop for i in rest], dtype=np.int64)
        length = stop - first
        # Nothing changes but where something starts or stops: only these moments are kept.
        moments, renamed = np.unique(np.concatenate((first, stop % count)), return_inverse=True)
        first, stop = np.split(renamed.astype(np.int64), 2)
        stop = np.where(stop > first, stop, stop + len(moments))
        cycle = max(1, len(moments))
        size = np.array([units[i] for i in rest], dtype=np.int64)
        bottom = sum(units[i] for i in whole)
        load = _load(first, stop, size, cycle)
        return cls(held, alignment_bytes, cycle, whole, rest, bottom, first, stop, length, size, load)

    @property
    def bound(self) -> int:
        """No placement of the rest is lower."""
        return int(self.load.max(initial=0))

    def fit(self, order: _Numbers, *, best: bool) -> _Fit:
        """One interval after the other, in this order."""
        found = _placement.fit(*self._blocks(), self.cycle, order.tolist(), best)
        offsets = np.array(found, dtype=np.int64)
        return _Fit(order, best, offsets, int((offsets + self.size).max(initial=0)))

    def search(self, capacity: int, steps: int) -> tuple[bool, list[int]]:
        """Whether the search came to its end, and the offsets that it found."""
        if len(self.size) > _SEARCHABLE:
            return False, []
        return _placement.search(*self._blocks(), self.cycle, capacity, steps)

    def placement(self, offsets: _Numbers) -> Placement:
        """In bytes, and with the bottom."""
        found = [0] * len(self.held)
        units = [-(-self.held[i].size_bytes // self.alignment_bytes) for i in self.whole]
        for i, offset in zip(self.whole, accumulate(units, initial=0), strict=False):
            found[i] = offset * self.alignment_bytes
        for i, offset in zip(self.rest, offsets.tolist(), strict=True):
            found[i] = (self.bottom + offset) * self.alignment_bytes
        ends = (offset + one.size_bytes for offset, one in zip(found, self.held, strict=True))
        return Placement(offsets=tuple(found), size_bytes=max(ends, default=0))

    def _blocks(self) -> tuple[list[int], list[int], list[int]]:
        return self.first.tolist(), self.stop.tolist(), self.size.tolist()


def _load(first: _Numbers, stop: _Numbers, size: _Numbers, count: int) -> _Numbers:
    change = np.zeros(2 * count + 1, dtype=np.int64)
    np.add.at(change, first, size)
    np.subtract.at(change, stop, size)
    load: _Numbers = np.cumsum(change)[: 2 * count].reshape(2, count).sum(axis=0)
    return load


# --- orders ----------------------------------------------------------------------------------------------------


def _by_size(task: _Task) -> _Numbers:
    return np.lexsort((task.first, -task.size))


def _by_area(task: _Task) -> _Numbers:
    return np.lexsort((task.first, -task.size * task.length))


def _by_crowd_and_size(task: _Task) -> _Numbers:
    return np.lexsort((task.first, -task.size, -_crowd(task)))


def _by_crowd_and_length(task: _Task) -> _Numbers:
    return np.lexsort((-task.size, -task.length, -_crowd(task)))


_TRIED: tuple[tuple[Callable[[_Task], _Numbers], bool], ...] = (  # what is at the bound most often comes first
    (_by_crowd_and_size, False),
    (_by_size, False),
    (_by_crowd_and_size, True),
    (_by_crowd_and_length, True),
    (_by_size, True),
    (_by_area, False),
)


def _crowd(task: _Task) -> _Numbers:
    """For each interval the highest load while it is held."""
    levels = [np.concatenate((task.load, task.load))]  # levels[k][t]: the maximum from t over 2**k operators
    while 2 << (len(levels) - 1) <= task.cycle:
        half = 1 << (len(levels) - 1)
        levels.append(np.maximum(levels[-1][:-half], levels[-1][half:]))
    length = task.stop - task.first
    level = np.frexp(length.astype(np.float64))[1] - 1
    found = np.zeros(len(length), dtype=np.int64)
    for k, row in enumerate(levels):
        mine = level == k
        found[mine] = np.maximum(row[task.first[mine]], row[task.stop[mine] - (1 << k)])
    return found


def _tried(task: _Task, enough: int | None = None) -> list[_Fit]:
    """One fit for each order; no further ones where one is at the bound, or low enough."""
    found: list[_Fit] = []
    for order, best in _TRIED[: _fits(task)]:
        found.append(task.fit(order(task), best=best))
        if found[-1].height <= (task.bound if enough is None else enough):
            break
    return found


def _promoted(task: _Task, tried: Sequence[_Fit]) -> Iterator[_Fit]:
    """Halve the place in the order of what sticks out, again and again: squeaky wheels first.

    From each order: which one starts highest says little about which one ends lowest.
    """
    for start in tried:
        fit = start
        for _ in range(_fits(task) // len(tried) - 1):
            fit = task.fit(_forward(fit, task), best=fit.best)
            yield fit
            if fit.height <= task.bound:
                return


def _fits(task: _Task) -> int:
    return max(_FEWEST_FITS, min(_MOST_FITS, _FIT_COST // max(1, len(task.size)) ** 2))


def _lowest(fits: Sequence[_Fit]) -> _Fit:
    return min(fits, key=lambda fit: fit.height)


def _forward(fit: _Fit, task: _Task) -> _Numbers:
    rank = np.empty(len(fit.order), dtype=np.float64)
    rank[fit.order] = np.arange(len(fit.order))
    out = fit.offsets + task.size == fit.height
    rank[out] = rank[out] / 2 - 0.5  # halfway to the front, and before whoever stood there
    order: _Numbers = np.argsort(rank, kind="stable")
    return order


def _searched(task: _Task, found: _Fit) -> _Fit:
    """Ask the search for the bound, then for a little more, while that is less than what there is."""
    steps = _QUICK_STEPS // max(1, len(task.size))
    for capacity in _capacities(task.bound, found.height):
        _, offsets = task.search(capacity, steps)
        if offsets:
            placed = np.array(offsets, dtype=np.int64)
            return _Fit(found.order, found.best, placed, int((placed + task.size).max(initial=0)))
    return found


def _capacities(bound: int, height: int) -> Iterator[int]:
    tried = bound
    for parts in (64, 8, 2):
        yield tried
        if tried == height - 1:
            return
        tried = max(tried + 1, bound + (height - bound) // parts)
