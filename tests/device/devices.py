"""The devices on which one suite runs: the emulated device, the processor's, the tests' fake, or a GPU's.

TENSILE_TEST_DEVICES names them. A process that has loaded a driver must not fork and continue, so the suite of a GPU,
or of its driver's double (tests/native/test_cuda.py), runs in its own process:

    TENSILE_TEST_DEVICES=cuda python -m pytest --noconftest tests/device/test_device.py tests/device/test_arena.py
"""

import ctypes
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from indb_tensile.device.cuda import CudaDevice, Gpus, probe
from indb_tensile.device.device import REGION_BYTES, ArenaDevice, CpuDevice, EmulatedDevice, HostBuffer
from indb_tensile.device.ledger import Ledger
from tests.device.fake_device import FakeDevice

BACK_ENDS = os.environ.get("TENSILE_TEST_DEVICES", "emulated cpu fake").split()
GRANTED_REGIONS = 4
POOL_BYTES = 8 << 20
CHUNK_BYTES = 4096


class _Closable(Protocol):
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """Opens empty devices of one kind, with the same grant and pool."""

    region_bytes: int
    alignment_bytes: int
    unit_bytes: int = 64  # every size in the host pool is a multiple of this
    make: Callable[[], tuple[ArenaDevice, tuple[_Closable, ...]]]
    opened: list[_Closable]

    @property
    def grant_bytes(self) -> int:
        """The memory that a job may use on each device."""
        return GRANTED_REGIONS * self.region_bytes

    def open(self) -> ArenaDevice:
        """Open a device, and close the devices opened before."""
        self.close()
        device, parts = self.make()
        self.opened.extend(parts)
        return device

    def close(self) -> None:
        """Close every open device, the last opened first."""
        while self.opened:
            self.opened.pop().close()


def devices(kind: str) -> Devices:
    """Return the devices of a back end."""
    if kind == "fake":
        size_bytes = GRANTED_REGIONS * REGION_BYTES
        return Devices(
            region_bytes=REGION_BYTES,
            alignment_bytes=64,
            make=lambda: (FakeDevice(size_bytes, POOL_BYTES), ()),
            opened=[],
        )
    if kind == "emulated":
        return Devices(region_bytes=REGION_BYTES, alignment_bytes=64, make=_emulated, opened=[])
    if kind == "cpu":
        return Devices(region_bytes=REGION_BYTES, alignment_bytes=64, unit_bytes=4096, make=_cpu, opened=[])
    gpus = probe()
    assert isinstance(gpus, Gpus), gpus.reason
    region_bytes = gpus.devices[0].granularity_bytes
    return Devices(region_bytes=region_bytes, alignment_bytes=512, make=lambda: _cuda(region_bytes), opened=[])


def write_device(device: ArenaDevice, address: int, content: bytes) -> None:
    """Write to the device by way of the host, the only way to a GPU's memory."""
    host = device.host_allocate(len(content))
    source = ctypes.create_string_buffer(content, len(content))
    device.host_write(host, ctypes.addressof(source), len(content))
    device.wait(device.copy_in(address, host, len(content)))
    device.host_free(host)


def read_device(device: ArenaDevice, address: int, size_bytes: int) -> bytes:
    """Return the bytes at this address of the device."""
    host = device.host_allocate(size_bytes)
    device.wait(device.copy_out(host, address, size_bytes))
    content = read_buffer(device, host, size_bytes)
    device.host_free(host)
    return content


def read_buffer(device: ArenaDevice, host: HostBuffer, size_bytes: int) -> bytes:
    """Return the bytes of a buffer of the host pool."""
    target = ctypes.create_string_buffer(size_bytes)
    device.host_read(ctypes.addressof(target), host, size_bytes)
    return target.raw


def _emulated() -> tuple[ArenaDevice, tuple[_Closable, ...]]:
    ledger, (slot, epoch) = _ledger(REGION_BYTES)
    device = EmulatedDevice(ledger.fd, slot, epoch, POOL_BYTES, chunk_bytes=CHUNK_BYTES)
    return device, (ledger, device)


def _cpu() -> tuple[ArenaDevice, tuple[_Closable, ...]]:
    ledger, (slot, epoch) = _ledger(REGION_BYTES)
    device = CpuDevice(ledger.fd, slot, epoch, POOL_BYTES, tempfile.gettempdir())
    return device, (ledger, device)


def _cuda(region_bytes: int) -> tuple[ArenaDevice, tuple[_Closable, ...]]:
    ledger, (slot, epoch) = _ledger(region_bytes)
    device = CudaDevice(ledger.fd, slot, epoch, POOL_BYTES, chunk_bytes=CHUNK_BYTES)
    return device, (ledger, device)


def _ledger(region_bytes: int) -> tuple[Ledger, tuple[int, int]]:
    ledger = Ledger.create(2 * GRANTED_REGIONS * region_bytes, region_bytes, 10**12, 10**12)
    slot, epoch = ledger.claim_slot(1)
    ledger.grant(slot, GRANTED_REGIONS * region_bytes)
    return ledger, (slot, epoch)
