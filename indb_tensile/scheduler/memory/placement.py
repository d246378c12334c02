"""An address for every residency interval of a plan: SmartPool's offline allocation, and better.

SmartPool (paper section III) colours a weighted graph: intervals are vertices weighted by size, and those alive at
the same time are joined. The largest goes first; each takes a hole in the lifetimes' plane, the lowest (first fit) or
the smallest (best fit), or else extends the pool. `first_fit` and `best_fit` are that.

`place` differs in the order. What decides is not how large an interval is but how crowded its time is: intervals at
the peak leave no room to spare, and those elsewhere fit around them. So it tries a short list of orders, crowd first;
then moves the intervals that stick out to the front of the order and tries again; and where intervals are few enough
it searches (native/placement/search.hpp), which also answers whether a given capacity suffices: `place_within`. A
search asks for one capacity: `place` asks for the load bound, then halves what is above it. Stretches of the cycle
that no interval connects are searched one by one, as in MiniMalloc.
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
from indb_tensile.scheduler.memory.residency import Interval, intervals, load_bound
from indb_tensile.scheduler.plan import Plan
from indb_tensile.scheduler.rewrite import effective

ALIGNMENT_BYTES = 512  # what CUDA's own allocators align to
SEARCH_STEPS = 2_000_000

_REGION_STEPS = 100_000  # tenths of a second: a job waits for it
# A step's cost grows about with the square of the number of intervals, whose pairs meet. These numbers, divided by
# it, are the most steps of a search: 10 seconds within a given capacity, and about a second for all of `place`.
_SEARCH_WORK = 25_000_000_000
_QUICK_WORK = 6_000_000_000
_QUICK_STEPS = 400_000  # where intervals are few a step costs about a microsecond
_FULL_EXCESS = 10  # an excess of a tenth is worth all these steps, a smaller one as many fewer
_LEAST_STEPS = 6  # for each interval: with fewer nothing is placed even where no step fails
_SEARCHES = 8  # of `place`, the later ones halving the excess over the bound: to within a hundredth
_SEARCHABLE = 1_024  # intervals: a partial placement remembers a reason for each pair of them
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
    return task.placement(_searched(task, found.offsets))


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
    offsets = found.offsets
    for mine in _apart(task):
        if (offsets + task.size)[mine].max() > capacity:
            proven, lower = task.search(mine, capacity, min(steps, _SEARCH_WORK // len(mine) ** 2))
            if lower is None:
                return Unplaced(capacity_bytes=capacity_bytes, proven=proven)
            offsets[mine] = lower
    return task.placement(offsets)


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

    def search(self, mine: _Numbers, capacity: int, steps: int) -> tuple[bool, _Numbers | None]:
        """Whether the search for these intervals came to its end, and the offsets that it found."""
        if len(mine) > _SEARCHABLE:
            return False, None
        first, stop, size = (numbers[mine].tolist() for numbers in (self.first, self.stop, self.size))
        ended, offsets = _placement.search(first, stop, size, self.cycle, capacity, steps)
        return ended, np.array(offsets, dtype=np.int64) if offsets else None

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


# --- search ----------------------------------------------------------------------------------------------------


def _searched(task: _Task, offsets: _Numbers) -> _Numbers:
    """These offsets, or lower ones: each stretch that is over the bound is searched by itself."""
    found = offsets.copy()
    for mine in _apart(task):
        top = int((found + task.size)[mine].max())
        if top > task.bound and len(mine) <= _SEARCHABLE:
            lower = _lowered(task, mine, top)
            found[mine] = found[mine] if lower is None else lower
    return found


def _lowered(task: _Task, mine: _Numbers, top: int) -> _Numbers | None:
    """Offsets for these intervals that end below `top`: the bound, or else what halving the excess leads to.

    A capacity a few hundredths over the bound is often found in few steps where the bound itself takes very many.
    """
    worth = min(1.0, _FULL_EXCESS * (top / task.bound - 1))
    work = round(worth * min(_QUICK_STEPS, _QUICK_WORK // len(mine) ** 2))
    steps = max(_LEAST_STEPS * len(mine), work // _SEARCHES)
    best = None
    low, high = task.bound, top  # nothing was found within `low`; something reaches `high`
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


def _apart(task: _Task) -> list[_Numbers]:
    """The intervals by stretches of the cycle between moments that none of them crosses: each is placed by itself."""
    crossing = np.zeros(2 * task.cycle + 1, dtype=np.int64)  # how many live just before and from a moment on
    np.add.at(crossing, task.first + 1, 1)
    np.subtract.at(crossing, task.stop, 1)
    cuts = np.flatnonzero(np.cumsum(crossing)[:-1].reshape(2, task.cycle).sum(axis=0) == 0)
    stretch = np.searchsorted(cuts, task.first, side="right") % max(1, len(cuts))
    return [np.flatnonzero(stretch == number) for number in np.unique(stretch)]
