"""Placements, judged by brute force: nothing that is held at the same time shares a byte."""

import csv
import random
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indb_tensile import _placement
from indb_tensile.errors import InvariantError
from indb_tensile.scheduler.graph import OpIndex, TensorId
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.placement import (
    Placement,
    Unplaced,
    best_fit,
    first_fit,
    place,
    place_plan,
    place_within,
)
from indb_tensile.scheduler.memory.residency import Interval, intervals, load_bound
from indb_tensile.scheduler.policies import POLICIES
from indb_tensile.scheduler.rewrite import effective
from indb_tensile.scheduler.workload import Workload, least_bytes
from tests.scheduler.strategies import links, workloads

_INSTANCES = Path(__file__).parents[3] / "shared" / "data" / "minimalloc"

Block = tuple[int, int, int]  # first, stop, size


def wrong(held: Sequence[Interval], count: int, placement: Placement, alignment_bytes: int) -> list[str]:
    """The judge: every rule that the placement breaks."""
    found = []
    at = [{t % count for t in range(i.first, i.stop)} for i in held]
    ranges = [(o, o + i.size_bytes) for o, i in zip(placement.offsets, held, strict=True)]
    for (a, b), index in zip(ranges, range(len(held)), strict=True):
        if a < 0 or a % alignment_bytes or b > placement.size_bytes:
            found.append(f"interval {index} lies at {a} .. {b} of {placement.size_bytes}")
    for i, k in combinations(range(len(held)), 2):
        if at[i] & at[k] and ranges[i][0] < ranges[k][1] and ranges[k][0] < ranges[i][1]:
            found.append(f"intervals {i} and {k} share bytes: {ranges[i]}, {ranges[k]}")
    if placement.size_bytes != max((end for _, end in ranges), default=0):
        found.append(f"the highest end is not {placement.size_bytes}")
    return found


@st.composite
def cycles(draw: st.DrawFn, most: int = 30, longest: int = 12, largest: int = 40) -> tuple[tuple[Interval, ...], int]:
    """Intervals of a cycle, some of them across its end, some as long as it."""
    count = draw(st.integers(1, longest))
    block = st.tuples(st.integers(0, count - 1), st.integers(1, count), st.integers(1, largest))
    blocks = draw(st.lists(block, max_size=most))
    return _held([(first, first + length, size) for first, length, size in blocks]), count


@settings(max_examples=200, deadline=None)
@given(cycles(), st.sampled_from((1, 8, 512)), st.sampled_from((place, best_fit, first_fit)))
def test_every_way_to_place_is_right_at_any_alignment(
    cycle: tuple[tuple[Interval, ...], int], alignment: int, way: Callable[..., Placement]
) -> None:
    held, count = cycle
    placement = way(held, count, alignment_bytes=alignment)
    assert wrong(held, count, placement, alignment) == []
    assert placement.size_bytes >= load_bound(held, count)
    assert placement == way(held, count, alignment_bytes=alignment)


@settings(max_examples=100, deadline=None)
@given(workloads(), links(), st.floats(0, 1), st.sampled_from(sorted(POLICIES)))
def test_the_intervals_of_any_plan_can_be_placed(
    workload: Workload, link: Link, fraction: float, policy: str
) -> None:
    least = least_bytes(workload)
    plans = POLICIES[policy].plan((workload,), budget_bytes=least + round(fraction * least), link=link)[0]
    for graph, plan in zip(workload.graphs, plans, strict=True):
        held, count = intervals(graph, plan), len(effective(graph, plan).operators)
        assert wrong(held, count, place(held, count, alignment_bytes=4), 4) == []
        in_regions = place_plan(graph, plan, region_bytes=1024)
        assert wrong(held, count, in_regions, 512) == []
        assert in_regions.size_bytes <= place(held, count).size_bytes
        assert place_plan(graph, plan, region_bytes=1024) == in_regions, "the trainer places as the controller did"


@settings(max_examples=200, deadline=None)
@given(cycles(most=6, longest=6, largest=3), st.integers(0, 2))
def test_a_capacity_is_refused_exactly_where_no_placement_exists(
    cycle: tuple[tuple[Interval, ...], int], more: int
) -> None:
    held, count = cycle
    capacity = load_bound(held, count) + more
    found = place_within(held, count, capacity_bytes=capacity, alignment_bytes=1)
    if isinstance(found, Placement):
        assert wrong(held, count, found, 1) == []
        assert found.size_bytes <= capacity
    else:
        assert found == Unplaced(capacity_bytes=capacity, proven=True)
        assert not _placeable(held, count, capacity)


@settings(max_examples=200, deadline=None)
@given(cycles(most=6, longest=6, largest=3), st.integers(-1, 2))
def test_the_search_alone_agrees_with_trying_everything(cycle: tuple[tuple[Interval, ...], int], more: int) -> None:
    held, count = cycle
    capacity = load_bound(held, count) + more
    first, stop, size = [i.first for i in held], [i.stop for i in held], [i.size_bytes for i in held]
    ended, offsets = _placement.search(list(first), stop, size, count, capacity, 100_000)
    assert ended
    if offsets or not held:
        placement = Placement(offsets=tuple(offsets), size_bytes=_top(held, offsets))
        assert wrong(held, count, placement, 1) == []
        assert placement.size_bytes <= max(capacity, 0)
    else:
        assert not _placeable(held, count, capacity)


@settings(max_examples=150, deadline=None)
@given(cycles(most=6, longest=6, largest=3))
def test_a_handful_is_placed_as_low_as_can_be(cycle: tuple[tuple[Interval, ...], int]) -> None:
    held, count = cycle
    placement = place(held, count, alignment_bytes=1)
    assert placement.size_bytes == 0 or not _placeable(held, count, placement.size_bytes - 1)


@pytest.mark.parametrize("seed", range(12))
def test_what_was_cut_from_a_rectangle_fits_into_it_again(seed: int) -> None:
    """Full to the last byte; every other one is turned in time, so that some of it crosses the end."""
    chance = random.Random(seed)
    count, capacity = 60, 1000
    blocks = _cut(chance, (0, count, 0, capacity), 40)
    shift = chance.randrange(count) if seed % 2 else 0
    held = _held([((a + shift) % count, (a + shift) % count + b - a, size) for a, b, size in blocks])
    assert load_bound(held, count) == capacity
    placement = place_within(held, count, capacity_bytes=capacity, alignment_bytes=1)
    assert isinstance(placement, Placement)
    assert wrong(held, count, placement, 1) == []
    assert placement.size_bytes == capacity


def test_a_stack_of_activations_is_placed_at_the_bound() -> None:
    """Made forward, used backward, with a gradient beside each: what training looks like."""
    layers = 300
    chance = random.Random(0)
    blocks = []
    for k in range(layers):
        size = 512 * chance.randrange(1, 4000)
        blocks += [(k, 2 * layers - k, size), (2 * layers - k - 1, min(2 * layers, 2 * layers - k + 1), size)]
    held = _held(blocks)
    placement = place(held, 2 * layers)
    assert wrong(held, 2 * layers, placement, 512) == []
    assert placement.size_bytes <= 1.01 * load_bound(held, 2 * layers)


@pytest.mark.parametrize("many", [410, 1000])
def test_hundreds_of_intervals_are_searched(many: int) -> None:
    """Of very different lengths, as in a network; one after the other they do not all fit in at the bound."""
    chance = random.Random(many)
    blocks = []
    for _ in range(many):
        length = min(many // 2, int(2 * chance.paretovariate(1)))
        first = chance.randrange(many // 2)
        blocks.append(
            (first, first + length, chance.choice((64, 128, 384, 512, 1024, 3000)) * chance.randrange(1, 9))
        )
    held, count = _held(blocks), many // 2
    bound = load_bound(held, count)
    found = place_within(held, count, capacity_bytes=bound, alignment_bytes=1)
    assert isinstance(found, Placement)
    assert (wrong(held, count, found, 1), found.size_bytes) == ([], bound)


@pytest.mark.parametrize("pieces", [3, 40])
def test_stretches_that_nothing_connects_are_placed_one_by_one(pieces: int) -> None:
    """A thousand intervals and more, of which each stretch's fit in by themselves."""
    stretches = 1_200 // pieces
    blocks = [
        block
        for number in range(stretches)
        for block in _cut(random.Random(number), (60 * number, 60 * number + 60, 0, 1000), pieces)
    ]
    held = _held(blocks)
    found = place_within(held, 60 * stretches, capacity_bytes=1000, alignment_bytes=1)
    assert isinstance(found, Placement)
    assert (wrong(held, 60 * stretches, found, 1), found.size_bytes) == ([], 1000)


@settings(max_examples=100, deadline=None)
@given(cycles())
def test_the_best_placement_is_never_above_the_published_ones(cycle: tuple[tuple[Interval, ...], int]) -> None:
    held, count = cycle
    published = min(way(held, count, alignment_bytes=1).size_bytes for way in (best_fit, first_fit))
    assert place(held, count, alignment_bytes=1).size_bytes <= published


def test_published_first_fit_takes_the_lowest_and_best_fit_the_smallest_hole() -> None:
    """For the last one: 10 bytes at 0 and 3 at 16, where it needs 2. Largest first, whatever the order given."""
    held = _held([(1, 2, 2), (1, 3, 5), (0, 2, 6), (0, 1, 10), (2, 3, 19)])
    assert first_fit(held, 4, alignment_bytes=1) == Placement(offsets=(0, 19, 10, 0, 0), size_bytes=24)
    assert best_fit(held, 4, alignment_bytes=1) == Placement(offsets=(16, 19, 10, 0, 0), size_bytes=24)


def test_an_interval_across_the_end_has_one_address_for_both_ends() -> None:
    held = _held([(3, 6, 4), (0, 1, 2), (3, 4, 2), (2, 3, 6)])
    for way in (place, first_fit, best_fit):
        placement = way(held, 4, alignment_bytes=1)
        assert wrong(held, 4, placement, 1) == []
        assert placement.size_bytes == 6


def test_nothing_takes_no_space() -> None:
    assert place((), 5) == best_fit((), 5) == Placement(offsets=(), size_bytes=0)
    assert place_within((), 5, capacity_bytes=0) == Placement(offsets=(), size_bytes=0)


def test_a_search_that_is_cut_short_proves_nothing() -> None:
    held = _held(_cut(random.Random(7), (0, 60, 0, 1000), 60))
    found = place_within(held, 60, capacity_bytes=1000, alignment_bytes=1, steps=1)
    assert found == Unplaced(capacity_bytes=1000, proven=False)


def test_what_cannot_be_meant_is_refused() -> None:
    held = _held([(1, 3, 5)])
    with pytest.raises(InvariantError, match="alignment is 0"):
        place(held, 4, alignment_bytes=0)
    with pytest.raises(InvariantError, match="out of a cycle of 1"):
        place(held, 1)
    with pytest.raises(ValueError, match="out of the cycle"):
        _placement.fit([0], [3], [1], 2, [0], False)
    with pytest.raises(ValueError, match="no block"):
        _placement.fit([0], [2], [1], 2, [1], False)
    with pytest.raises(ValueError, match="lengths differ"):
        _placement.search([0], [2], [], 2, 9, 9)


@pytest.mark.parametrize("name", "ABCDE")
def test_the_hard_instances_of_minimalloc_are_placed_within_their_capacity(name: str) -> None:
    held, count = _minimalloc(name)
    placement = place_within(held, count, capacity_bytes=1_048_576, alignment_bytes=1)
    assert isinstance(placement, Placement)
    assert wrong(held, count, placement, 1) == []
    assert placement.size_bytes <= 1_048_576


@pytest.mark.parametrize("name", "ABCDE")
def test_the_hard_instances_of_minimalloc_are_placed_near_it_where_no_capacity_is_given(name: str) -> None:
    held, count = _minimalloc(name)
    placement = place(held, count, alignment_bytes=1)
    assert wrong(held, count, placement, 1) == []
    assert placement.size_bytes <= 1.03 * 1_048_576


def _minimalloc(name: str) -> tuple[tuple[Interval, ...], int]:
    path = _INSTANCES / f"{name}.1048576.csv"
    if not path.exists():
        pytest.skip(f"the instances of minimalloc do not stand beside the repository: no {path}")
    with path.open() as lines:
        rows = [(int(r["lower"]), int(r["upper"]), int(r["size"])) for r in csv.DictReader(lines)]
    moments = {t: k for k, t in enumerate(sorted({t for lower, upper, _ in rows for t in (lower, upper)}))}
    return _held([(moments[lower], moments[upper], size) for lower, upper, size in rows]), len(moments)


def _held(blocks: Sequence[Block]) -> tuple[Interval, ...]:
    return tuple(
        Interval(tensor=TensorId(k), first=OpIndex(first), stop=stop, size_bytes=size)
        for k, (first, stop, size) in enumerate(blocks)
    )


def _top(held: Sequence[Interval], offsets: Sequence[int]) -> int:
    return max((o + i.size_bytes for o, i in zip(offsets, held, strict=True)), default=0)


def _placeable(held: Sequence[Interval], count: int, capacity: int) -> bool:
    """Whether some choice of offsets is right, by trying all of them."""
    at = [{t % count for t in range(i.first, i.stop)} for i in held]
    chosen: list[int] = []

    def extend() -> bool:
        k = len(chosen)
        if k == len(held):
            return True
        for offset in range(capacity - held[k].size_bytes + 1):
            end = offset + held[k].size_bytes
            if all(
                not at[k] & at[i] or end <= chosen[i] or chosen[i] + held[i].size_bytes <= offset for i in range(k)
            ):
                chosen.append(offset)
                if extend():
                    return True
                chosen.pop()
        return False

    return extend()


def _cut(chance: random.Random, box: tuple[int, int, int, int], pieces: int) -> list[Block]:
    """Cut a box again and again: the largest piece, in time or in bytes, or into a pinwheel, which no cut undoes."""
    boxes = [box]
    while len(boxes) < pieces:
        boxes.sort(key=lambda b: (b[1] - b[0]) * (b[3] - b[2]))
        t0, t1, m0, m1 = boxes.pop()
        if t1 - t0 >= 3 and m1 - m0 >= 3 and chance.random() < 0.4:
            a, b = sorted(chance.sample(range(t0 + 1, t1), 2))
            c, d = sorted(chance.sample(range(m0 + 1, m1), 2))
            boxes += [(t0, b, m0, c), (b, t1, m0, d), (a, t1, d, m1), (t0, a, c, m1), (a, b, c, d)]
        elif t1 - t0 >= 2 and (m1 - m0 < 2 or chance.random() < 0.5):
            a = chance.randrange(t0 + 1, t1)
            boxes += [(t0, a, m0, m1), (a, t1, m0, m1)]
        else:
            c = chance.randrange(m0 + 1, m1)
            boxes += [(t0, t1, m0, c), (t0, t1, c, m1)]
    return [(t0, t1, m1 - m0) for t0, t1, m0, m1 in boxes]
