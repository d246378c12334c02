"""Check placements by brute force: no two tensors that are held at the same time share a byte."""

import csv
import random
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indb_tensile import _placement
from indb_tensile.errors import InvariantError
from indb_tensile.scheduler.graph import OpIndex, TensorId
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.residency import Interval, intervals, load_bound
from indb_tensile.scheduler.memory.tensor_placement import (
    Placement,
    Unplaced,
    best_fit,
    first_fit,
    place,
    place_plan,
    place_within,
)
from indb_tensile.scheduler.policies import POLICIES
from indb_tensile.scheduler.rewrite import effective
from indb_tensile.scheduler.workload import Workload, least_bytes
from tests.nightly import few_examples
from tests.scheduler.strategies import links, workloads

_INSTANCES = Path(__file__).parents[4] / "shared" / "data" / "minimalloc"  # beside a checkout of a developer

Block = tuple[int, int, int]  # first, stop, size


def placement_faults(spans: Sequence[Interval], count: int, placement: Placement, alignment_bytes: int) -> list[str]:
    """Return every rule that the placement breaks."""
    faults = []
    moments = [{t % count for t in range(i.first, i.stop)} for i in spans]
    ranges = [(o, o + i.size_bytes) for o, i in zip(placement.offsets, spans, strict=True)]
    for (a, b), index in zip(ranges, range(len(spans)), strict=True):
        if a < 0 or a % alignment_bytes or b > placement.size_bytes:
            faults.append(f"interval {index} lies at {a} .. {b} of {placement.size_bytes}")
    for i, k in combinations(range(len(spans)), 2):
        if moments[i] & moments[k] and ranges[i][0] < ranges[k][1] and ranges[k][0] < ranges[i][1]:
            faults.append(f"intervals {i} and {k} share bytes: {ranges[i]}, {ranges[k]}")
    if placement.size_bytes != max((end for _, end in ranges), default=0):
        faults.append(f"the highest end is not {placement.size_bytes}")
    return faults


@st.composite
def cycles(draw: st.DrawFn, most: int = 30, longest: int = 12, largest: int = 40) -> tuple[tuple[Interval, ...], int]:
    """Draw intervals of a cycle. Some of them cross its end, and some are as long as the cycle."""
    count = draw(st.integers(1, longest))
    block = st.tuples(st.integers(0, count - 1), st.integers(1, count), st.integers(1, largest))
    blocks = draw(st.lists(block, max_size=most))
    return _intervals([(first, first + length, size) for first, length, size in blocks]), count


@given(cycles(), st.sampled_from((1, 8, 512)), st.sampled_from((place, best_fit, first_fit)))
def test_every_algorithm_places_without_overlap_at_any_alignment(
    cycle: tuple[tuple[Interval, ...], int], alignment: int, algorithm: Callable[..., Placement]
) -> None:
    spans, count = cycle
    placement = algorithm(spans, count, alignment_bytes=alignment)
    assert placement_faults(spans, count, placement, alignment) == []
    assert placement.size_bytes >= load_bound(spans, count)
    assert placement == algorithm(spans, count, alignment_bytes=alignment)


@few_examples()
@given(workloads(), links(), st.floats(0, 1), st.sampled_from(sorted(POLICIES)))
def test_intervals_of_every_plan_can_be_placed(workload: Workload, link: Link, fraction: float, policy: str) -> None:
    least = least_bytes(workload)
    plans = POLICIES[policy].plan((workload,), budget_bytes=least + round(fraction * least), link=link)[0]
    for graph, plan in zip(workload.graphs, plans, strict=True):
        spans, count = intervals(graph, plan), len(effective(graph, plan).operators)
        assert placement_faults(spans, count, place(spans, count, alignment_bytes=4), 4) == []
        in_regions = place_plan(graph, plan, region_bytes=1024)
        assert placement_faults(spans, count, in_regions, 512) == []
        assert in_regions.size_bytes <= place(spans, count).size_bytes
        assert place_plan(graph, plan, region_bytes=1024) == in_regions, "the trainer places as the controller did"


@given(cycles(most=6, longest=6, largest=3), st.integers(0, 2))
def test_capacity_is_refused_exactly_if_no_placement_exists(
    cycle: tuple[tuple[Interval, ...], int], extra: int
) -> None:
    spans, count = cycle
    capacity = load_bound(spans, count) + extra
    result = place_within(spans, count, capacity_bytes=capacity, alignment_bytes=1)
    if isinstance(result, Placement):
        assert placement_faults(spans, count, result, 1) == []
        assert result.size_bytes <= capacity
    else:
        assert result == Unplaced(capacity_bytes=capacity, proven=True)
        assert not _placeable(spans, count, capacity)


@given(cycles(most=6, longest=6, largest=3), st.integers(-1, 2))
def test_search_agrees_with_trying_every_placement(cycle: tuple[tuple[Interval, ...], int], extra: int) -> None:
    spans, count = cycle
    capacity = load_bound(spans, count) + extra
    first, stop, size = [i.first for i in spans], [i.stop for i in spans], [i.size_bytes for i in spans]
    ended, offsets = _placement.search(list(first), stop, size, count, capacity, 100_000)
    assert ended
    if offsets or not spans:
        placement = Placement(offsets=tuple(offsets), size_bytes=_top(spans, offsets))
        assert placement_faults(spans, count, placement, 1) == []
        assert placement.size_bytes <= max(capacity, 0)
    else:
        assert not _placeable(spans, count, capacity)


@given(cycles(most=6, longest=6, largest=3))
def test_few_intervals_are_placed_optimally(cycle: tuple[tuple[Interval, ...], int]) -> None:
    spans, count = cycle
    placement = place(spans, count, alignment_bytes=1)
    assert placement.size_bytes == 0 or not _placeable(spans, count, placement.size_bytes - 1)


@pytest.mark.parametrize("seed", range(12))
def test_pieces_cut_from_a_rectangle_fit_into_it(seed: int) -> None:
    """The pieces fill the rectangle to the last byte. For odd seeds they are shifted in time, so that some cross the
    end.
    """
    chance = random.Random(seed)
    count, capacity = 60, 1000
    blocks = _cut(chance, (0, count, 0, capacity), 40)
    shift = chance.randrange(count) if seed % 2 else 0
    spans = _intervals([((a + shift) % count, (a + shift) % count + b - a, size) for a, b, size in blocks])
    assert load_bound(spans, count) == capacity
    placement = place_within(spans, count, capacity_bytes=capacity, alignment_bytes=1)
    assert isinstance(placement, Placement)
    assert placement_faults(spans, count, placement, 1) == []
    assert placement.size_bytes == capacity


def test_activations_of_a_training_step_are_placed_near_the_bound() -> None:
    """The forward pass makes tensors and the backward pass uses them, each beside a gradient, as in training."""
    layers = 300
    chance = random.Random(0)
    blocks = []
    for k in range(layers):
        size = 512 * chance.randrange(1, 4000)
        blocks += [(k, 2 * layers - k, size), (2 * layers - k - 1, min(2 * layers, 2 * layers - k + 1), size)]
    spans = _intervals(blocks)
    placement = place(spans, 2 * layers)
    assert placement_faults(spans, 2 * layers, placement, 512) == []
    assert placement.size_bytes <= 1.01 * load_bound(spans, 2 * layers)


@pytest.mark.parametrize("many", [410, 1000])
def test_hundreds_of_intervals_are_placed_at_the_bound(many: int) -> None:
    """The intervals have very different lengths, as in a network. Placed one after the other, they do not all fit at
    the bound.
    """
    chance = random.Random(many)
    blocks = []
    for _ in range(many):
        length = min(many // 2, int(2 * chance.paretovariate(1)))
        first = chance.randrange(many // 2)
        blocks.append(
            (first, first + length, chance.choice((64, 128, 384, 512, 1024, 3000)) * chance.randrange(1, 9))
        )
    spans, count = _intervals(blocks), many // 2
    bound = load_bound(spans, count)
    placement = place_within(spans, count, capacity_bytes=bound, alignment_bytes=1)
    assert isinstance(placement, Placement)
    assert (placement_faults(spans, count, placement, 1), placement.size_bytes) == ([], bound)


@pytest.mark.parametrize("pieces", [3, 40])
def test_unconnected_stretches_are_placed_separately(pieces: int) -> None:
    """There are more than a thousand intervals. Those of each stretch fit by themselves."""
    stretches = 1_200 // pieces
    blocks = [
        block
        for number in range(stretches)
        for block in _cut(random.Random(number), (60 * number, 60 * number + 60, 0, 1000), pieces)
    ]
    spans = _intervals(blocks)
    placement = place_within(spans, 60 * stretches, capacity_bytes=1000, alignment_bytes=1)
    assert isinstance(placement, Placement)
    assert (placement_faults(spans, 60 * stretches, placement, 1), placement.size_bytes) == ([], 1000)


@given(cycles())
def test_placement_is_never_above_first_fit_and_best_fit(cycle: tuple[tuple[Interval, ...], int]) -> None:
    spans, count = cycle
    published = min(algorithm(spans, count, alignment_bytes=1).size_bytes for algorithm in (best_fit, first_fit))
    assert place(spans, count, alignment_bytes=1).size_bytes <= published


def test_first_fit_takes_the_lowest_hole_and_best_fit_the_smallest() -> None:
    """The first interval needs 2 bytes and finds holes of 10 bytes at 0 and of 3 bytes at 16. Both algorithms place
    the largest interval first.
    """
    spans = _intervals([(1, 2, 2), (1, 3, 5), (0, 2, 6), (0, 1, 10), (2, 3, 19)])
    assert first_fit(spans, 4, alignment_bytes=1) == Placement(offsets=(0, 19, 10, 0, 0), size_bytes=24)
    assert best_fit(spans, 4, alignment_bytes=1) == Placement(offsets=(16, 19, 10, 0, 0), size_bytes=24)


def test_interval_across_the_end_has_one_address() -> None:
    spans = _intervals([(3, 6, 4), (0, 1, 2), (3, 4, 2), (2, 3, 6)])
    for algorithm in (place, first_fit, best_fit):
        placement = algorithm(spans, 4, alignment_bytes=1)
        assert placement_faults(spans, 4, placement, 1) == []
        assert placement.size_bytes == 6


def test_no_intervals_take_no_space() -> None:
    assert place((), 5) == best_fit((), 5) == Placement(offsets=(), size_bytes=0)
    assert place_within((), 5, capacity_bytes=0) == Placement(offsets=(), size_bytes=0)


def test_search_that_is_cut_short_proves_nothing() -> None:
    spans = _intervals(_cut(random.Random(7), (0, 60, 0, 1000), 60))
    result = place_within(spans, 60, capacity_bytes=1000, alignment_bytes=1, steps=1)
    assert result == Unplaced(capacity_bytes=1000, proven=False)


def test_senseless_arguments_are_refused() -> None:
    spans = _intervals([(1, 3, 5)])
    with pytest.raises(InvariantError, match="alignment is 0"):
        place(spans, 4, alignment_bytes=0)
    with pytest.raises(InvariantError, match="out of a cycle of 1"):
        place(spans, 1)
    with pytest.raises(ValueError, match="out of the cycle"):
        _placement.fit([0], [3], [1], 2, [0], False)
    with pytest.raises(ValueError, match="contains 1, which is no block"):
        _placement.fit([0], [2], [1], 2, [1], False)
    with pytest.raises(ValueError, match="lengths differ"):
        _placement.search([0], [2], [], 2, 9, 9)


@pytest.mark.by_day("B", "C", "E")
@pytest.mark.parametrize("name", "ABCDE")
def test_hard_minimalloc_instances_are_placed_within_their_capacity(name: str) -> None:
    spans, count = _minimalloc(name)
    placement = place_within(spans, count, capacity_bytes=1_048_576, alignment_bytes=1)
    assert isinstance(placement, Placement)
    assert placement_faults(spans, count, placement, 1) == []
    assert placement.size_bytes <= 1_048_576


@pytest.mark.by_day("B", "C", "E")
@pytest.mark.parametrize("name", "ABCDE")
def test_hard_minimalloc_instances_are_placed_near_their_capacity_without_a_limit(name: str) -> None:
    spans, count = _minimalloc(name)
    placement = place(spans, count, alignment_bytes=1)
    assert placement_faults(spans, count, placement, 1) == []
    assert placement.size_bytes <= 1.03 * 1_048_576


def _minimalloc(name: str) -> tuple[tuple[Interval, ...], int]:
    path = _INSTANCES / f"{name}.1048576.csv"
    if not path.exists():
        pytest.skip(f"the instances of minimalloc are not beside the repository: no {path}")
    with path.open() as lines:
        rows = [(int(r["lower"]), int(r["upper"]), int(r["size"])) for r in csv.DictReader(lines)]
    moments = {t: k for k, t in enumerate(sorted({t for lower, upper, _ in rows for t in (lower, upper)}))}
    return _intervals([(moments[lower], moments[upper], size) for lower, upper, size in rows]), len(moments)


def _intervals(blocks: Sequence[Block]) -> tuple[Interval, ...]:
    return tuple(
        Interval(tensor=TensorId(k), first=OpIndex(first), stop=stop, size_bytes=size)
        for k, (first, stop, size) in enumerate(blocks)
    )


def _top(spans: Sequence[Interval], offsets: Sequence[int]) -> int:
    return max((o + i.size_bytes for o, i in zip(offsets, spans, strict=True)), default=0)


def _placeable(spans: Sequence[Interval], count: int, capacity: int) -> bool:
    """Return whether a placement within the capacity exists, by trying all offsets."""
    moments = [{t % count for t in range(i.first, i.stop)} for i in spans]
    chosen: list[int] = []

    def extend() -> bool:
        k = len(chosen)
        if k == len(spans):
            return True
        for offset in range(capacity - spans[k].size_bytes + 1):
            end = offset + spans[k].size_bytes
            if all(
                not moments[k] & moments[i] or end <= chosen[i] or chosen[i] + spans[i].size_bytes <= offset
                for i in range(k)
            ):
                chosen.append(offset)
                if extend():
                    return True
                chosen.pop()
        return False

    return extend()


def _cut(chance: random.Random, box: tuple[int, int, int, int], pieces: int) -> list[Block]:
    """Cut a box into pieces. Each time the largest piece is cut in time, in bytes, or into a pinwheel, which no
    single cut undoes.
    """
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
