"""Assign an address to every residency interval of a plan: SmartPool's offline allocation, with a better order and a
search.

SmartPool (paper section III) colours a weighted graph: intervals are vertices weighted by size, and intervals alive
at the same time are joined by an edge. The largest interval is placed first. Each interval takes a hole among those
placed already, the lowest (first fit) or the smallest (best fit), or else extends the pool. `first_fit` and
`best_fit` implement this.

`place` uses other orders. The size of an interval matters less than the load while the interval is alive: intervals
at the peak leave no room to spare, and other intervals fit around them. `place` therefore tries a short list of
orders, highest load first. Then it moves the topmost intervals to the front of the order and tries again. If the
intervals are few enough, it searches (native/placement/search.hpp). The search also answers whether a given capacity
suffices: `place_within`. A search is for one capacity: `place` tries the load bound first, then halves the excess
above it. Parts of the cycle that no interval connects are searched one by one, as in MiniMalloc. Intervals that live
for the whole cycle lie at the bottom: they overlap with everything, so any placement can be shifted to that form.

All work is counted in steps, not in time, so equal inputs give equal placements. Offsets and sizes are multiples of
the alignment, except for the last interval's end. This wastes nothing, because an address above it has to be aligned
anyway.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from indb_tensile import _placement
from indb_tensile.errors import InvariantError
from indb_tensile.scheduler.graph import StepGraph
from indb_tensile.scheduler.memory.residency import Interval, intervals, load_bound
from indb_tensile.scheduler.plan import Plan
from indb_tensile.scheduler.plan_cache import CachedKind, PlanCache, cached
from indb_tensile.scheduler.rewrite import effective

ALIGNMENT_BYTES = 512  # the alignment of CUDA's own allocators
SEARCH_STEPS = 2_000_000

_REGION_STEPS = 100_000  # tenths of a second, because a job waits for the result
# The cost of a step grows about with the square of the number of intervals, because pairs of intervals are compared.
# These numbers, divided by that square, are the most steps of a search: 10 seconds for `place_within`, about a second
# for all searches of `place`. More steps find tighter placements and take proportionally longer.
_SEARCH_WORK = 25_000_000_000
_QUICK_WORK = 6_000_000_000
_QUICK_STEPS = 400_000  # Upper limit for few intervals, where a step costs about a microsecond.
_FULL_EXCESS = 10  # An excess of a tenth or more is worth all steps; a smaller excess gets proportionally fewer.
_LEAST_STEPS = 6  # steps for each interval: with fewer, nothing is placed even if no step fails
_SEARCHES = 8  # number of searches of `place`; the later ones halve the excess over the bound, to within a hundredth
_SEARCHABLE = 1_024  # intervals: a partial placement stores a reason for each pair of intervals
_FEWEST_FITS = 2
_MOST_FITS = 150  # number of fits of `place`: each order, then with the topmost intervals moved to the front
_FIT_COST = 250_000_000  # Divided by the square of the number of intervals: the most fits.

_Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """An offset for each interval, in their order, and the bytes from 0 to the highest end."""

    offsets: tuple[int, ...]
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Unplaced:
    """The result if no placement was found within the capacity. `proven` is True if none exists."""

    capacity_bytes: int
    proven: bool


def place(residencies: Sequence[Interval], count: int, *, alignment_bytes: int = ALIGNMENT_BYTES) -> Placement:
    """Place all intervals of a cycle of `count` operators in as few bytes as can be found quickly."""
    task = _Task.of(residencies, count, alignment_bytes)
    fits = _fit_orders(task)
    lowest = _lowest(fits)
    if lowest.height > task.bound:
        lowest = _lowest([lowest, *_promoted_fits(task, fits)])
    return task.placement(_search_parts(task, lowest.offsets))


def place_within(
    residencies: Sequence[Interval],
    count: int,
    *,
    capacity_bytes: int,
    alignment_bytes: int = ALIGNMENT_BYTES,
    steps: int = SEARCH_STEPS,
) -> Placement | Unplaced:
    """Place all intervals within the capacity. Search if the fast orders do not succeed."""
    task = _Task.of(residencies, count, alignment_bytes)
    capacity = capacity_bytes // alignment_bytes - task.bottom
    refusal = Unplaced(capacity_bytes=capacity_bytes, proven=task.bound > capacity)
    if refusal.proven:
        return refusal
    lowest = _lowest(_fit_orders(task, enough=capacity))
    if lowest.height <= capacity:
        return task.placement(lowest.offsets)
    offsets = lowest.offsets
    for mine in _independent_parts(task):
        if (offsets + task.size)[mine].max() > capacity:
            proven, lower = task.search(mine, capacity, min(steps, _SEARCH_WORK // len(mine) ** 2))
            if lower is None:
                return Unplaced(capacity_bytes=capacity_bytes, proven=proven)
            offsets[mine] = lower
    return task.placement(offsets)


def place_plan(graph: StepGraph, plan: Plan, *, region_bytes: int, cache: PlanCache | None = None) -> Placement:
    """Return the placement of everything in the plan, in as few regions as can be found.

    The controller grants memory for a plan by this placement, and the trainer that follows the plan uses the same
    placement.
    """
    return cached(
        cache, _PLACEMENTS, graph, (plan, region_bytes), lambda: _in_regions(graph, plan, region_bytes, cache)
    )


def _in_regions(graph: StepGraph, plan: Plan, region_bytes: int, cache: PlanCache | None) -> Placement:
    residencies, count = intervals(graph, plan, cache), len(effective(graph, plan, cache).operators)
    placed = place(residencies, count)
    least_bytes = -(-load_bound(residencies, count) // region_bytes) * region_bytes
    if placed.size_bytes <= least_bytes:
        return placed
    tighter = place_within(residencies, count, capacity_bytes=least_bytes, steps=_REGION_STEPS)
    return tighter if isinstance(tighter, Placement) else placed


_PLACEMENTS: CachedKind[Placement] = CachedKind(name="placements", most=64)  # some plans for each graph of all jobs


def best_fit(residencies: Sequence[Interval], count: int, *, alignment_bytes: int = ALIGNMENT_BYTES) -> Placement:
    """Place as SmartPool does by default: largest first, each interval into the smallest hole that is
    large enough.
    """
    return _published(residencies, count, alignment_bytes, best=True)


def first_fit(residencies: Sequence[Interval], count: int, *, alignment_bytes: int = ALIGNMENT_BYTES) -> Placement:
    """Place as SmartPool's first fit does: largest first, each interval into the lowest hole that is large enough."""
    return _published(residencies, count, alignment_bytes, best=False)


def _published(residencies: Sequence[Interval], count: int, alignment_bytes: int, *, best: bool) -> Placement:
    task = _Task.of(residencies, count, alignment_bytes, slide=False)
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
    """The intervals to be placed above those at the bottom, as arrays. Sizes and offsets are in units of the
    alignment.
    """

    residencies: Sequence[Interval]
    alignment_bytes: int
    cycle: int  # number of moments: operators at which an interval starts or stops
    whole: tuple[int, ...]  # positions of the intervals at the bottom
    rest: tuple[int, ...]
    bottom: int
    first: _Numbers
    stop: _Numbers
    length: _Numbers  # operators
    size: _Numbers
    load: _Numbers  # at each moment, without the intervals at the bottom

    @classmethod
    def of(cls, residencies: Sequence[Interval], count: int, alignment_bytes: int, *, slide: bool = True) -> "_Task":
        if alignment_bytes < 1 or count < 1:
            raise InvariantError(f"placement: alignment is {alignment_bytes} bytes, the cycle {count} operators")
        for interval in residencies:
            if interval.first >= count or interval.stop > interval.first + count:
                raise InvariantError(f"placement: {interval} is out of a cycle of {count} operators")
        units = [-(-interval.size_bytes // alignment_bytes) for interval in residencies]
        whole = tuple(
            i for i, interval in enumerate(residencies) if slide and interval.stop - interval.first == count
        )
        at_bottom = set(whole)
        rest = tuple(i for i in range(len(residencies)) if i not in at_bottom)
        first = np.array([residencies[i].first for i in rest], dtype=np.int64)
        stop = np.array([residencies[i].stop for i in rest], dtype=np.int64)
        length = stop - first
        # Loads change only where an interval starts or stops, so only these moments are kept.
        moments, renamed = np.unique(np.concatenate((first, stop % count)), return_inverse=True)
        first, stop = np.split(renamed.astype(np.int64), 2)
        stop = np.where(stop > first, stop, stop + len(moments))
        cycle = max(1, len(moments))
        size = np.array([units[i] for i in rest], dtype=np.int64)
        bottom = sum(units[i] for i in whole)
        load = _load(first, stop, size, cycle)
        return cls(residencies, alignment_bytes, cycle, whole, rest, bottom, first, stop, length, size, load)

    @property
    def bound(self) -> int:
        """No placement of the other intervals is lower."""
        return int(self.load.max(initial=0))

    def fit(self, order: _Numbers, *, best: bool) -> _Fit:
        """Place one interval after the other, in this order."""
        placed = _placement.fit(*self._blocks(), self.cycle, order.tolist(), best)
        offsets = np.array(placed, dtype=np.int64)
        return _Fit(order, best, offsets, int((offsets + self.size).max(initial=0)))

    def search(self, mine: _Numbers, capacity: int, steps: int) -> tuple[bool, _Numbers | None]:
        """Return whether the search for these intervals came to its end, and the offsets if it found some."""
        if len(mine) > _SEARCHABLE:
            return False, None
        first, stop, size = (numbers[mine].tolist() for numbers in (self.first, self.stop, self.size))
        ended, offsets = _placement.search(first, stop, size, self.cycle, capacity, steps)
        return ended, np.array(offsets, dtype=np.int64) if offsets else None

    def placement(self, offsets: _Numbers) -> Placement:
        """Return the placement in bytes, with the intervals at the bottom."""
        offset_bytes = [0] * len(self.residencies)
        units = [-(-self.residencies[i].size_bytes // self.alignment_bytes) for i in self.whole]
        for i, offset in zip(self.whole, accumulate(units, initial=0), strict=False):
            offset_bytes[i] = offset * self.alignment_bytes
        for i, offset in zip(self.rest, offsets.tolist(), strict=True):
            offset_bytes[i] = (self.bottom + offset) * self.alignment_bytes
        ends = (offset + interval.size_bytes for offset, interval in zip(offset_bytes, self.residencies, strict=True))
        return Placement(offsets=tuple(offset_bytes), size_bytes=max(ends, default=0))

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


# the orders that reach the bound most often come first
_TRIED: tuple[tuple[Callable[[_Task], _Numbers], bool], ...] = (
    (_by_crowd_and_size, False),
    (_by_size, False),
    (_by_crowd_and_size, True),
    (_by_crowd_and_length, True),
    (_by_size, True),
    (_by_area, False),
)


def _crowd(task: _Task) -> _Numbers:
    """Return for each interval the highest load while it is alive."""
    levels = [np.concatenate((task.load, task.load))]  # levels[k][t]: the maximum from t on over 2**k moments
    while 2 << (len(levels) - 1) <= task.cycle:
        half = 1 << (len(levels) - 1)
        levels.append(np.maximum(levels[-1][:-half], levels[-1][half:]))
    length = task.stop - task.first
    level = np.frexp(length.astype(np.float64))[1] - 1
    highest = np.zeros(len(length), dtype=np.int64)
    for k, row in enumerate(levels):
        mine = level == k
        highest[mine] = np.maximum(row[task.first[mine]], row[task.stop[mine] - (1 << k)])
    return highest


def _fit_orders(task: _Task, enough: int | None = None) -> list[_Fit]:
    """Return one fit for each order. Stop after a fit that reaches the bound, or a height of `enough`."""
    fits: list[_Fit] = []
    for order, best in _TRIED[: _fits(task)]:
        fits.append(task.fit(order(task), best=best))
        if fits[-1].height <= (task.bound if enough is None else enough):
            break
    return fits


def _promoted_fits(task: _Task, tried: Sequence[_Fit]) -> Iterator[_Fit]:
    """Yield fits in whose order the topmost intervals are moved halfway to the front, repeatedly ("squeaky wheel"
    optimization).

    This starts from each of the tried orders: which order is best at the start says little about which is best at the
    end.
    """
    for start in tried:
        fit = start
        for _ in range(_fits(task) // len(tried) - 1):
            fit = task.fit(_promote_topmost(fit, task), best=fit.best)
            yield fit
            if fit.height <= task.bound:
                return


def _fits(task: _Task) -> int:
    return max(_FEWEST_FITS, min(_MOST_FITS, _FIT_COST // max(1, len(task.size)) ** 2))


def _lowest(fits: Sequence[_Fit]) -> _Fit:
    return min(fits, key=lambda fit: fit.height)


def _promote_topmost(fit: _Fit, task: _Task) -> _Numbers:
    rank = np.empty(len(fit.order), dtype=np.float64)
    rank[fit.order] = np.arange(len(fit.order))
    out = fit.offsets + task.size == fit.height
    rank[out] = rank[out] / 2 - 0.5  # halfway to the front, and before the interval that has that rank
    order: _Numbers = np.argsort(rank, kind="stable")
    return order


# --- search ----------------------------------------------------------------------------------------------------


def _search_parts(task: _Task, offsets: _Numbers) -> _Numbers:
    """Return these offsets, or lower ones. Each independent part of the cycle that exceeds the bound is searched by
    itself.
    """
    offset_list = offsets.copy()
    for mine in _independent_parts(task):
        top = int((offset_list + task.size)[mine].max())
        if top > task.bound and len(mine) <= _SEARCHABLE:
            lower = _lower_part(task, mine, top)
            offset_list[mine] = offset_list[mine] if lower is None else lower
    return offset_list


def _lower_part(task: _Task, mine: _Numbers, top: int) -> _Numbers | None:
    """Return offsets for these intervals that end below `top`: within the bound, or as low as halving the excess
    finds.

    A capacity a few hundredths above the bound is often found in few steps where the bound itself takes very many.
    """
    worth = min(1.0, _FULL_EXCESS * (top / task.bound - 1))
    work = round(worth * min(_QUICK_STEPS, _QUICK_WORK // len(mine) ** 2))
    steps = max(_LEAST_STEPS * len(mine), work // _SEARCHES)
    best = None
    low, high = task.bound, top  # no placement was found within `low`; a placement reaches `high`
    capacity = task.bound
    for _ in range(max(3, min(_SEARCHES, work // steps))):
        _, offsets = task.search(mine, capacity, steps)
        if offsets is None:
            low = capacity
        else:
            best, high = offsets, int((offsets + task.size[mine]).max())
        capacity = (low + high) // 2
        if capacity <= low or high <= task.bound:
            break
    return best


def _independent_parts(task: _Task) -> list[_Numbers]:
    """Split the intervals at moments that none of them crosses. The parts of the cycle are placed independently."""
    # number of intervals that are alive both just before a moment and from it on
    crossing = np.zeros(2 * task.cycle + 1, dtype=np.int64)
    np.add.at(crossing, task.first + 1, 1)
    np.subtract.at(crossing, task.stop, 1)
    cuts = np.flatnonzero(np.cumsum(crossing)[:-1].reshape(2, task.cycle).sum(axis=0) == 0)
    stretch = np.searchsorted(cuts, task.first, side="right") % max(1, len(cuts))
    return [np.flatnonzero(stretch == number) for number in np.unique(stretch)]
