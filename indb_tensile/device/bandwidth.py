"""Measures the rates of copies between a device and its host: each direction, alone and both at once, by size.

A controller measures when it starts, on its own device, so that plans count on the actual rates of this machine's
link instead of nominal ones. The start-up cost bounds small copies; the link's rate bounds large copies. Sizes
therefore grow by a factor of four until one copy takes long enough to show the rate. The fastest of a few rounds
counts: other programs may slow copies down, but nothing makes a copy faster than the link.
"""

import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from time import perf_counter_ns
from typing import Protocol

from indb_tensile.device.device import REGION_BYTES, CpuDevice, EmulatedDevice, HostBuffer, Ticket
from indb_tensile.device.ledger import Ledger
from indb_tensile.scheduler.link import CopyDirection, CopyMeasurement, Link, link_of, nominal_or_measured

SIZES_BYTES = tuple(1 << bits for bits in range(12, 26, 2))  # 4 KB to 16 MB
_IN_A_ROW = 4
_ROUNDS = 3
_ATTEMPTS = 3
_LONG_NS = 5_000_000  # four copies of this length show the rate within a percent: no larger size is measured

Clock = Callable[[], int]


class Copier(Protocol):
    """The part of a device that copies: any device of `device/device.py` that has an arena."""

    def allocate(self, size_bytes: int) -> int:
        """Allocate memory of the device."""
        ...

    def free(self, address: int) -> None:
        """Free memory of the device."""
        ...

    def host_allocate(self, size_bytes: int) -> HostBuffer:
        """Allocate a buffer in the host pool."""
        ...

    def host_free(self, buffer: HostBuffer) -> None:
        """Free a buffer of the host pool."""
        ...

    def copy_out(self, host: HostBuffer, address: int, size_bytes: int) -> Ticket:
        """Queue a copy to the host."""
        ...

    def copy_in(self, address: int, host: HostBuffer, size_bytes: int) -> Ticket:
        """Queue a copy to the device."""
        ...

    def wait(self, ticket: Ticket) -> int:
        """Block until the copy has ended."""
        ...


def measure_emulated(ledger: Ledger, nominal: Link) -> tuple[CopyMeasurement, ...]:
    """Measure an emulated device's copies in a temporary slot of its ledger. Jobs must leave some memory free.

    A measurement that does not reach `nominal` is repeated before the result is used.
    """
    usage = ledger.device_usage()
    free_bytes = usage.capacity_bytes - usage.granted_bytes
    free_host_bytes = usage.host_limit_bytes - usage.host_bytes
    most_bytes = min(free_bytes // 4, free_host_bytes // 4, SIZES_BYTES[-1])
    slot, epoch = ledger.claim_slot(os.getpid())
    try:
        # Half of this grant would do, were it not for the gaps that rounding to regions leaves.
        ledger.grant(slot, min(free_bytes, 4 * most_bytes))
        with EmulatedDevice(ledger.fd, slot, epoch, 4 * most_bytes) as device:
            copies = measure_copies(device, most_bytes)
            for _ in range(_ATTEMPTS - 1):
                if nominal_or_measured(link_of(copies), nominal) is nominal:
                    break
                copies = _faster(copies, measure_copies(device, most_bytes))
            return copies
    finally:
        ledger.release_slot(slot)


def measure_cpu(swap_directory: str, most_bytes: int = SIZES_BYTES[-1]) -> tuple[CopyMeasurement, ...]:
    """Measure copies between this machine's memory and a temporary file in `swap_directory`.

    Raise DeviceError if no file can be made there or the disk lacks the room.
    """
    size_bytes = 4 * max(most_bytes, REGION_BYTES)
    with Ledger.create(size_bytes, REGION_BYTES, 1, 1, host_bytes=size_bytes) as ledger:
        slot, epoch = ledger.claim_slot(os.getpid())
        ledger.grant(slot, size_bytes)
        with CpuDevice(ledger.fd, slot, epoch, size_bytes, swap_directory) as device:
            return measure_copies(device, most_bytes)


def _faster(*measured: Iterable[CopyMeasurement]) -> tuple[CopyMeasurement, ...]:
    """Take the fastest measurement of each kind of copy. Only kinds in the first measurement are returned."""
    first, *others = ({(row.way, row.beside, row.size_bytes): row for row in rows} for rows in measured)
    return tuple(
        replace(
            row,
            latency_ns=min([row.latency_ns, *(other[key].latency_ns for other in others if key in other)]),
            copy_ns=min([row.copy_ns, *(other[key].copy_ns for other in others if key in other)]),
        )
        for key, row in first.items()
    )


def measure_copies(device: Copier, most_bytes: int, clock_ns: Clock = perf_counter_ns) -> tuple[CopyMeasurement, ...]:
    """Measure copies of each size up to `most_bytes`. The buffers on the device and the host are freed afterwards."""
    rows: list[CopyMeasurement] = []
    for size_bytes in SIZES_BYTES:
        last_ns = max((row.copy_ns * size_bytes // row.size_bytes for row in rows[-4:]), default=0)
        if size_bytes > most_bytes or last_ns > _LONG_NS:
            break
        with _Buffers(device, size_bytes) as buffers:
            rows += _measure_size(buffers, clock_ns)
    return tuple(rows)


class _Buffers:
    """One buffer on each side for each direction, and the copies between them."""

    def __init__(self, device: Copier, size_bytes: int) -> None:
        self._device = device
        self.size_bytes = size_bytes
        self._device_address = {way: device.allocate(size_bytes) for way in CopyDirection}
        self._host_buffer = {way: device.host_allocate(size_bytes) for way in CopyDirection}
        for way in (
            CopyDirection
        ):  # memory is set aside on first use, and reading a never-written file reads nothing from disk
            device.wait(device.copy_out(self._host_buffer[way], self._device_address[way], size_bytes))
        self.wait(self.copy(CopyDirection.IN))

    def copy(self, way: CopyDirection) -> Ticket:
        if way is CopyDirection.OUT:
            return self._device.copy_out(self._host_buffer[way], self._device_address[way], self.size_bytes)
        return self._device.copy_in(self._device_address[way], self._host_buffer[way], self.size_bytes)

    def wait(self, ticket: Ticket) -> None:
        self._device.wait(ticket)

    def __enter__(self) -> "_Buffers":
        return self

    def __exit__(self, *_: object) -> None:
        for way in CopyDirection:
            self._device.free(self._device_address[way])
            self._device.host_free(self._host_buffer[way])


def _measure_size(buffers: _Buffers, clock_ns: Clock) -> list[CopyMeasurement]:
    alone = [_best_round(buffers, (way,), clock_ns)[way] for way in CopyDirection]
    # Wait for the faster direction first. Otherwise it would appear to take as long as the slower one.
    order = tuple(row.way for row in sorted(alone, key=lambda row: row.copy_ns))
    beside = _best_round(buffers, order, clock_ns)
    return [*alone, *(beside[way] for way in CopyDirection)]


def _best_round(
    buffers: _Buffers, ways: tuple[CopyDirection, ...], clock_ns: Clock
) -> dict[CopyDirection, CopyMeasurement]:
    rounds = [
        (_time_row(buffers, ways, 1, clock_ns), _time_row(buffers, ways, _IN_A_ROW, clock_ns)) for _ in range(_ROUNDS)
    ]
    return {
        way: CopyMeasurement(
            way=way,
            beside=len(ways) > 1,
            size_bytes=buffers.size_bytes,
            latency_ns=max(1, min(single[way] for single, _ in rounds)),
            copy_ns=max(1, min(row[way] for _, row in rounds) // _IN_A_ROW),
        )
        for way in ways
    }


def _time_row(
    buffers: _Buffers, ways: tuple[CopyDirection, ...], count: int, clock_ns: Clock
) -> dict[CopyDirection, int]:
    """Return, per direction, the nanoseconds until the last of `count` copies in a row has ended."""
    start_ns = clock_ns()
    last = [{way: buffers.copy(way) for way in ways} for _ in range(count)][-1]
    ended: dict[CopyDirection, int] = {}
    for way in ways:
        buffers.wait(last[way])
        ended[way] = clock_ns() - start_ns
    return ended
