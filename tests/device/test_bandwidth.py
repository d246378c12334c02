"""A link is found to be what it was set to, and measuring it leaves nothing behind."""

from pathlib import Path

from indb_tensile.device.bandwidth import SIZES_BYTES, measure_copies, measure_cpu, measure_emulated
from indb_tensile.device.ledger import Ledger, RegionState
from indb_tensile.scheduler.link import CopyDirection, CopyMeasurement, Link, link_of
from tests.device.fake_link import FakeLink

MIB = 1 << 20
OUT_BYTES_PER_S, IN_BYTES_PER_S = 400_000_000, 100_000_000


def test_each_size_is_measured_each_way_alone_and_beside() -> None:
    device = FakeLink(Link(out_bytes_per_s=10**10, in_bytes_per_s=5 * 10**9, per_copy_ns=8_000))
    found = measure_copies(device, SIZES_BYTES[-1], device.clock_ns)
    assert found == tuple(
        CopyMeasurement(way=way, beside=beside, size_bytes=size_bytes, latency_ns=copy_ns, copy_ns=copy_ns)
        for size_bytes in SIZES_BYTES
        for beside in (False, True)
        for way in (CopyDirection.OUT, CopyDirection.IN)
        for copy_ns in [device.link.out_ns(size_bytes) if way is CopyDirection.OUT else device.link.in_ns(size_bytes)]
    )
    assert not device.held


def test_a_slow_link_is_measured_with_small_copies_only() -> None:
    device = FakeLink(Link(out_bytes_per_s=10**8, in_bytes_per_s=10**5))
    found = measure_copies(device, SIZES_BYTES[-1], device.clock_ns)
    assert {row.size_bytes for row in found} == {SIZES_BYTES[0]}
    assert link_of(found) == device.link


def test_an_emulated_link_is_not_faster_than_it_is_set_to_and_the_ledger_is_as_it_was() -> None:
    with Ledger.create(64 * MIB, MIB, OUT_BYTES_PER_S, IN_BYTES_PER_S) as ledger:
        nominal = Link(out_bytes_per_s=OUT_BYTES_PER_S, in_bytes_per_s=IN_BYTES_PER_S)
        found = measure_emulated(ledger, nominal)
        assert ledger.slots() == ()
        assert {region.state for region in ledger.regions()} == {RegionState.FREE}
        assert not any(region.backed for region in ledger.regions())
        assert ledger.device_usage().high_water_bytes == 0
    link = link_of(found)
    assert link.out_bytes_per_s <= OUT_BYTES_PER_S
    assert link.in_bytes_per_s <= IN_BYTES_PER_S


def test_what_does_not_come_up_to_its_link_is_tried_again_and_is_no_faster_then() -> None:
    with Ledger.create(4 * MIB, MIB, OUT_BYTES_PER_S, OUT_BYTES_PER_S) as ledger:
        nominal = Link(out_bytes_per_s=10 * OUT_BYTES_PER_S, in_bytes_per_s=10 * OUT_BYTES_PER_S)
        found = measure_emulated(ledger, nominal)
    assert len({(row.way, row.beside, row.size_bytes) for row in found}) == len(found)
    assert link_of(found).out_bytes_per_s <= OUT_BYTES_PER_S


def test_a_disk_is_measured_and_nothing_is_left_on_it(tmp_path: Path) -> None:
    link = link_of(measure_cpu(str(tmp_path), MIB))
    assert min(link.out_bytes_per_s, link.in_bytes_per_s) > 0
    assert list(tmp_path.iterdir()) == []
