"""The measured bandwidth of a link is its configured bandwidth, and the measurement leaves nothing behind."""

from pathlib import Path

from indb_tensile.device.bandwidth import SIZES_BYTES, measure_copies, measure_cpu, measure_emulated
from indb_tensile.device.ledger import Ledger, RegionState
from indb_tensile.scheduler.link import CopyDirection, CopyMeasurement, Link, link_of
from tests.device.fake_link import FakeLink

MIB = 1 << 20
OUT_BYTES_PER_S, IN_BYTES_PER_S = 400_000_000, 100_000_000


def test_each_size_is_measured_in_each_direction_alone_and_beside_the_other() -> None:
    device = FakeLink(Link(out_bytes_per_s=10**10, in_bytes_per_s=5 * 10**9, per_copy_ns=8_000))
    measurements = measure_copies(device, SIZES_BYTES[-1], device.clock_ns)
    assert measurements == tuple(
        CopyMeasurement(way=direction, beside=beside, size_bytes=size_bytes, latency_ns=copy_ns, copy_ns=copy_ns)
        for size_bytes in SIZES_BYTES
        for beside in (False, True)
        for direction in (CopyDirection.OUT, CopyDirection.IN)
        for length_ns in [device.link.out_ns if direction is CopyDirection.OUT else device.link.in_ns]
        for copy_ns in [length_ns(size_bytes)]
    )
    assert not device.allocated


def test_a_slow_link_is_measured_with_small_copies_only() -> None:
    device = FakeLink(Link(out_bytes_per_s=10**8, in_bytes_per_s=10**5))
    measurements = measure_copies(device, SIZES_BYTES[-1], device.clock_ns)
    assert {row.size_bytes for row in measurements} == {SIZES_BYTES[0]}
    assert link_of(measurements) == device.link


def test_an_emulated_link_is_not_faster_than_configured_and_the_ledger_is_unchanged() -> None:
    with Ledger.create(64 * MIB, MIB, OUT_BYTES_PER_S, IN_BYTES_PER_S) as ledger:
        nominal = Link(out_bytes_per_s=OUT_BYTES_PER_S, in_bytes_per_s=IN_BYTES_PER_S)
        measurements = measure_emulated(ledger, nominal)
        assert ledger.slots() == ()
        assert {region.state for region in ledger.regions()} == {RegionState.FREE}
        assert not any(region.backed for region in ledger.regions())
        assert ledger.device_usage().high_water_bytes == 0
    link = link_of(measurements)
    assert link.out_bytes_per_s <= OUT_BYTES_PER_S
    assert link.in_bytes_per_s <= IN_BYTES_PER_S


def test_a_measurement_below_the_configured_bandwidth_is_repeated_and_never_exceeds_it() -> None:
    with Ledger.create(4 * MIB, MIB, OUT_BYTES_PER_S, OUT_BYTES_PER_S) as ledger:
        nominal = Link(out_bytes_per_s=10 * OUT_BYTES_PER_S, in_bytes_per_s=10 * OUT_BYTES_PER_S)
        measurements = measure_emulated(ledger, nominal)
    assert len({(row.way, row.beside, row.size_bytes) for row in measurements}) == len(measurements)
    assert link_of(measurements).out_bytes_per_s <= OUT_BYTES_PER_S


def test_a_disk_is_measured_and_no_file_remains(tmp_path: Path) -> None:
    link = link_of(measure_cpu(str(tmp_path), MIB))
    assert min(link.out_bytes_per_s, link.in_bytes_per_s) > 0
    assert list(tmp_path.iterdir()) == []
