"""The model of PyTorch's caching allocator reserves the sizes that its rules give by hand."""

from indb_tensile.bench.harness.planning.caching import reserved_bytes
from indb_tensile.config import MIB
from indb_tensile.scheduler.graph import OpIndex, TensorId
from indb_tensile.scheduler.memory.residency import Interval


def test_small_requests_share_small_segments_and_large_requests_get_their_own() -> None:
    assert reserved_bytes(_intervals((0, 1, 1)), 2) == 2 * MIB
    assert reserved_bytes(_intervals((0, 1, MIB), (0, 1, MIB)), 2) == 2 * MIB
    assert reserved_bytes(_intervals((0, 1, MIB), (0, 1, MIB), (0, 1, 1)), 2) == 4 * MIB
    assert reserved_bytes(_intervals((0, 1, MIB + 1)), 2) == 20 * MIB
    assert reserved_bytes(_intervals((0, 1, 11 * MIB)), 2) == 12 * MIB
    assert reserved_bytes(_intervals((0, 1, 1), (0, 1, 3 * MIB)), 2) == 22 * MIB


def test_a_freed_block_serves_the_next_request_that_fits_it() -> None:
    assert reserved_bytes(_intervals((0, 1, 30 * MIB), (1, 2, 28 * MIB)), 2) == 30 * MIB
    assert reserved_bytes(_intervals((0, 1, 28 * MIB), (1, 2, 30 * MIB)), 2) == 58 * MIB


def test_the_smallest_block_that_fits_is_taken_and_split() -> None:
    """When 10 and 36 are requested, 30 and 40 are free: 10 is cut from the 30, and 36 takes the 40."""
    intervals = _intervals((0, 1, 30 * MIB), (0, 1, 40 * MIB), (1, 2, 10 * MIB), (1, 2, 36 * MIB), (1, 2, 20 * MIB))
    assert reserved_bytes(intervals, 2) == 70 * MIB


def test_a_remainder_too_small_to_split_stays_with_its_block() -> None:
    intervals = _intervals((0, 1, 30 * MIB), (1, 2, 29 * MIB), (1, 2, MIB + 512))
    assert reserved_bytes(intervals, 2) == 50 * MIB


def test_free_neighbours_are_merged() -> None:
    """Both halves of a segment are free when the whole is requested, and no other block is between them."""
    intervals = _intervals((0, 1, 40 * MIB), (1, 2, 20 * MIB), (1, 3, 20 * MIB), (3, 4, 40 * MIB))
    assert reserved_bytes(intervals, 4) == 40 * MIB


def test_an_interval_across_the_end_exists_from_the_start_and_is_reserved_once() -> None:
    assert reserved_bytes(_intervals((1, 3, 12 * MIB), (0, 2, 14 * MIB)), 2) == 26 * MIB
    assert reserved_bytes(_intervals((0, 1, 12 * MIB), (1, 2, 12 * MIB)), 2) == 12 * MIB


def _intervals(*blocks: tuple[int, int, int]) -> tuple[Interval, ...]:
    return tuple(
        Interval(tensor=TensorId(k), first=OpIndex(first), stop=stop, size_bytes=size)
        for k, (first, stop, size) in enumerate(blocks)
    )
