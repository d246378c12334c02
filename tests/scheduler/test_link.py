"""Check how a link's rates, start-up time and duplex factor are derived from measured copies."""

import pytest

from indb_tensile.errors import InvariantError
from indb_tensile.scheduler.link import CopyDirection, CopyMeasurement, Link, link_of, nominal_or_measured

SMALL_BYTES, LARGE_BYTES = 4_000, 16_000_000


def copies(way: CopyDirection, bytes_per_s: int, *, start_ns: int = 0, duplex: float = 1.0) -> list[CopyMeasurement]:
    """Return the measurements that a link of this rate and start-up time gives: a small and a large copy, each alone
    and beside a copy in the other direction. Beside another copy the rate falls by the factor `duplex`.
    """
    return [
        CopyMeasurement(
            way=way,
            beside=beside,
            size_bytes=size_bytes,
            latency_ns=9 * copy_ns,
            copy_ns=copy_ns if not beside else round(copy_ns / duplex),
        )
        for size_bytes in (LARGE_BYTES, SMALL_BYTES)
        for copy_ns in [start_ns * (size_bytes == SMALL_BYTES) + size_bytes * 1_000_000_000 // bytes_per_s]
        for beside in (True, False)
    ]


def test_link_is_derived_from_its_measured_copies() -> None:
    measured = [
        *copies(CopyDirection.OUT, 400_000_000, start_ns=7_000, duplex=0.8),
        *copies(CopyDirection.IN, 200_000_000, start_ns=5_000, duplex=0.625),
    ]
    assert link_of(measured) == Link(
        out_bytes_per_s=400_000_000, in_bytes_per_s=200_000_000, per_copy_ns=7_000, duplex=0.625
    )


def test_duplex_lies_between_one_lane_and_two_lanes() -> None:
    for measured_duplex, duplex in ((0.3, 0.5), (1.2, 1.0)):
        measured = [
            *copies(CopyDirection.OUT, 10**9, duplex=measured_duplex),
            *copies(CopyDirection.IN, 10**9, duplex=measured_duplex),
        ]
        assert link_of(measured).duplex == duplex


def test_both_directions_have_to_be_measured() -> None:
    with pytest.raises(InvariantError, match="both ways"):
        link_of(copies(CopyDirection.OUT, 10**9))


def test_measured_link_replaces_the_nominal_link_only_if_clearly_slower() -> None:
    nominal = Link(out_bytes_per_s=1_000, in_bytes_per_s=2_000)
    noisy = Link(out_bytes_per_s=905, in_bytes_per_s=1_990, per_copy_ns=7_000, duplex=0.95)
    assert nominal_or_measured(noisy, nominal) == nominal
    for slower in (
        Link(out_bytes_per_s=890, in_bytes_per_s=2_000),
        Link(out_bytes_per_s=1_000, in_bytes_per_s=1_700),
        Link(out_bytes_per_s=1_000, in_bytes_per_s=2_000, duplex=0.8),
    ):
        assert nominal_or_measured(slower, nominal) == slower
