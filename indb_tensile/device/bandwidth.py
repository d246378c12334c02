"""How fast copies go between a device and its host: each way, alone and both at once, by size.

A controller measures it when it starts, on the device that it rules: what a plan counts on is what this machine's
link gives, not what is printed on it. Small copies are bound by their start, large ones by the link, so sizes go up
by four until one copy takes so long that it tells the rate. Of a few rounds the fastest counts: others may be
using the machine, and nothing makes a copy faster than the link is.
"""

import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from time import perf_counter_ns
from typing import Protocol

from indb_tensile.device.device import REGION_BYTES, CpuDevice, EmulatedDevice, HostBuffer, Ledger, Ticket
from indb_tensile.scheduler.link import Copying, Link, Way, link_of, trusted

SIZES_BYTES = tuple(1 << bits for bits in range(12, 26, 2))  # 4 KB to 16 MB
_IN_A_ROW = 4
_ROUNDS = 3
_ATTEMPTS = 3
_LONG_NS = 5_000_000  # four such copies tell the rate within a percent: nothing larger is measured

Clock = Callable[[], int]


class Copier(Protocol):
    """The part of a device that copies: any of `device/device.py`'s that has an arena."""

    def allocate(self, size_bytes: int) -> int:
        """Memory of the device's."""
        ...

    def free(self, address: int) -> None:
        """Give it back."""
        ...

    def host_allocate(self, size_bytes: int) -> HostBuffer:
        """Memory of the host's."""
        ...

    def host_free(self, buffer: HostBuffer) -> None:
        """Give it back."""
        ...

    def copy_out(self, host: HostBuffer, address: int, size_bytes: int) -> Ticket:
        """Queue a copy to the host."""
        ...

    def copy_in(self, address: int, host: HostBuffer, size_bytes: int) -> Ticket:
        """Queue a copy to the device."""
        ...

    def wait(self, ticket: Ticket) -> int:
        """Until it has ended."""
        ...


def measure_emulated(ledger: Ledger, nominal: Link) -> tuple[Copying, ...]:
    """An emulated device's copies, over a slot of its ledger that is given back. Jobs may not hold all of it.

    What does not come up to `nominal` is tried again before it is believed.
    """
    usage = ledger.device_usage()
    free_bytes = usage.capacity_bytes - usage.granted_bytes
    free_host_bytes = usage.host_limit_bytes - usage.host_bytes
    most_bytes = min(free_bytes // 4, free_host_bytes // 4, SIZES_BYTES[-1])
    slot, epoch = ledger.claim_slot(os.getpid())
    try:
        # Half of it would do, were it not for what rounding to regions leaves in between.
        ledger.grant(slot, min(free_bytes, 4 * most_bytes))
        with EmulatedDevice(ledger.fd, slot, epoch, 4 * most_bytes) as device:
            found = measure_copies(device, most_bytes)
            for _ in range(_ATTEMPTS - 1):
                if trusted(link_of(found), nominal) is nominal:
                    break
                found = _faster(found, measure_copies(device, most_bytes))
            return found
    finally:
        ledger.release_slot(slot)


def measure_cpu(swap_directory: str, most_bytes: int = SIZES_BYTES[-1]) -> tuple[Copying, ...]:
    """Copies between this machine's memory and a file in that directory, which is gone afterwards.

    Raises DeviceError where there can be none, or the disk has no room for it.
    """
    size_bytes = 4 * max(most_bytes, REGION_BYTES)
    with Ledger.create(size_bytes, REGION_BYTES, 1, 1, host_bytes=size_bytes) as ledger:
        slot, epoch = ledger.claim_slot(os.getpid())
        ledger.grant(slot, size_bytes)
        with CpuDevice(ledger.fd, slot, epoch, size_bytes, swap_directory) as device:
            return measure_copies(device, most_bytes)


def _faster(*measured: Iterable[Copying]) -> tuple[Copying, ...]:
    """Of each kind of copies the fastest; only kinds that the first measurement has."""
    first, *others = ({(row.way, row.beside, row.size_bytes): row for row in rows} for rows in measured)
    return tuple(
        replace(
            row,
            latency_ns=min([row.latency_ns, *(o[key].latency_ns for o in others if key in o)]),
            copy_ns=min([row.copy_ns, *(o[key].copy_ns for o in others if key in o)]),
        )
        for key, row in first.items()
    )


def measure_copies(device: Copier, most_bytes: int, clock_ns: Clock = perf_counter_ns) -> tuple[Copying, ...]:
    """Copies of each size up to `most_bytes`, through memory of the device's and the host's that is given back."""
    found: list[Copying] = []
    for size_bytes in SIZES_BYTES:
        last_ns = max((row.copy_ns * size_bytes // row.size_bytes for row in found[-4:]), default=0)
        if size_bytes > most_bytes or last_ns > _LONG_NS:
            break
        with _Buffers(device, size_bytes) as buffers:
            found += _of_size(buffers, clock_ns)
    return tuple(found)


class _Buffers:
    """One buffer on each side for each way, and copies between them."""

    def __init__(self, device: Copier, size_bytes: int) -> None:
        self._device = device
        self.size_bytes = size_bytes
        self._there = {way: device.allocate(size_bytes) for way in Way}
        self._here = {way: device.host_allocate(size_bytes) for way in Way}
        for way in Way:  # memory is set aside on its first use, and a file that was never written is not read
            device.wait(device.copy_out(self._here[way], self._there[way], size_bytes))
        self.wait(self.copy(Way.IN))

    def copy(self, way: Way) -> Ticket:
        if way is Way.OUT:
            return self._device.copy_out(self._here[way], self._there[way], self.size_bytes)
        return self._device.copy_in(self._there[way], self._here[way], self.size_bytes)

    def wait(self, ticket: Ticket) -> None:
        self._device.wait(ticket)

    def __enter__(self) -> "_Buffers":
        return self

    def __exit__(self, *_: object) -> None:
        for way in Way:
            self._device.free(self._there[way])
            self._device.host_free(self._here[way])


def _of_size(buffers: _Buffers, clock_ns: Clock) -> list[Copying]:
    alone = [_fastest(buffers, (way,), clock_ns)[way] for way in Way]
    # The faster lane's end is waited for first: else it would seem to take as long as the other.
    order = tuple(row.way for row in sorted(alone, key=lambda row: row.copy_ns))
    beside = _fastest(buffers, order, clock_ns)
    return [*alone, *(beside[way] for way in Way)]


def _fastest(buffers: _Buffers, ways: tuple[Way, ...], clock_ns: Clock) -> dict[Way, Copying]:
    rounds = [(_row(buffers, ways, 1, clock_ns), _row(buffers, ways, _IN_A_ROW, clock_ns)) for _ in range(_ROUNDS)]
    return {
        way: Copying(
            way=way,
            beside=len(ways) > 1,
            size_bytes=buffers.size_bytes,
            latency_ns=max(1, min(single[way] for single, _ in rounds)),
            copy_ns=max(1, min(row[way] for _, row in rounds) // _IN_A_ROW),
        )
        for way in ways
    }


def _row(buffers: _Buffers, ways: tuple[Way, ...], count: int, clock_ns: Clock) -> dict[Way, int]:
    """Nanoseconds until the last of so many copies in a row has ended, each way."""
    start_ns = clock_ns()
    last = [{way: buffers.copy(way) for way in ways} for _ in range(count)][-1]
    ended: dict[Way, int] = {}
    for way in ways:
        buffers.wait(last[way])
        ended[way] = clock_ns() - start_ns
    return ended
