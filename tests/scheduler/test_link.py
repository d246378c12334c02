"""What a link is like, from how long copies took on it."""

import pytest

from indb_tensile.errors import InvariantError
from indb_tensile.scheduler.link import CopyDirection, CopyMeasurement, Link, link_of, nominal_or_measured

SMALL_BYTES, LARGE_BYTES = 4_000, 16_000_000


def copies(way: CopyDirection, bytes_per_s: int, *, start_ns: int = 0, kept: float = 1.0) -> list[CopyMeasurement]:
    """What a link of that rate and start-up shows: a small and a large copy, alone and beside the other way's."""
    return [
        CopyMeasurement(
            way=way,
            beside=beside,
            size_bytes=size_bytes,
            latency_ns=9 * copy_ns,
            copy_ns=copy_ns if not beside else round(copy_ns / kept),
        )
        for size_bytes in (LARGE_BYTES, SMALL_BYTES)
        for copy_ns in [start_ns * (size_bytes == SMALL_BYTES) + size_bytes * 1_000_000_000 // bytes_per_s]
        for beside in (True, False)
    ]


def test_rates_start_up_and_what_both_ways_keep_are_found_again() -> None:
    measured = [
        *copies(CopyDirection.OUT, 400_000_000, start_ns=7_000, kept=0.8),
        *copies(CopyDirection.IN, 200_000_000, start_ns=5_000, kept=0.625),
    ]
    assert link_of(measured) == Link(
        out_bytes_per_s=400_000_000, in_bytes_per_s=200_000_000, per_copy_ns=7_000, duplex=0.625
    )


def test_a_link_is_never_worse_than_one_lane_nor_better_than_two() -> None:
    for kept, duplex in ((0.3, 0.5), (1.2, 1.0)):
        measured = [*copies(CopyDirection.OUT, 10**9, kept=kept), *copies(CopyDirection.IN, 10**9, kept=kept)]
        assert link_of(measured).duplex == duplex


def test_both_ways_have_to_be_measured() -> None:
    with pytest.raises(InvariantError, match="both ways"):
        link_of(copies(CopyDirection.OUT, 10**9))


def test_noise_leaves_a_link_as_it_is_said_to_be_and_a_link_that_gives_less_is_believed() -> None:
    nominal = Link(out_bytes_per_s=1_000, in_bytes_per_s=2_000)
    noisy = Link(out_bytes_per_s=905, in_bytes_per_s=1_990, per_copy_ns=7_000, duplex=0.95)
    assert nominal_or_measured(noisy, nominal) == nominal
    for less in (
        Link(out_bytes_per_s=890, in_bytes_per_s=2_000),
        Link(out_bytes_per_s=1_000, in_bytes_per_s=1_700),
        Link(out_bytes_per_s=1_000, in_bytes_per_s=2_000, duplex=0.8),
    ):
        assert nominal_or_measured(less, nominal) == less
