"""A link's measurement, on an emulated device whose rates are known."""

from indb_tensile.executor.device import REGION_BYTES, EmulatedDevice, Ledger
from indb_tensile.executor.lanespeed import measure_link

OUT_BYTES_PER_S, IN_BYTES_PER_S = 100_000_000, 400_000_000
COPY_BYTES = 1 << 18


def test_a_links_two_rates_are_found_never_above_what_they_are() -> None:
    with Ledger.create(8 * REGION_BYTES, REGION_BYTES, OUT_BYTES_PER_S, IN_BYTES_PER_S) as ledger:
        slot, epoch = ledger.claim_slot(1)
        ledger.grant(slot, 8 * REGION_BYTES)
        with EmulatedDevice(ledger.fd, slot, epoch, 1 << 20) as device:
            link = measure_link(device, COPY_BYTES)
            assert device.host_usage().used_bytes == device.arena_usage().allocated_bytes == 0
    # A lane is at its rate or, where the machine is busy, slower; a chunk's worth of credit is its rounding.
    assert 0 < link.out_bytes_per_s < 1.2 * OUT_BYTES_PER_S
    assert 0 < link.in_bytes_per_s < 1.2 * IN_BYTES_PER_S
    assert link.per_copy_ns > 0
