"""An NVIDIA GPU as a trainer and a controller see it: what there is, its regions, and one job's device on it.

The driver is loaded by the native library when asked for; a machine without one answers `NoGpu`, and why.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from indb_tensile import _native
from indb_tensile.device.device import (
    Ticket,
    native_arena_range,
    native_arena_usage,
    native_host_read,
    native_host_usage,
    native_host_write,
    native_usage,
)
from indb_tensile.errors import DeviceError


class Absence(StrEnum):
    """Why there is no GPU to be used, as the native library says it."""

    NO_DRIVER = "no driver"
    BROKEN_DRIVER = "broken driver"
    OLD_DRIVER = "old driver"
    NO_DEVICE = "no device"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class NoGpu:
    """There is none, or none that can be used: `hint` says the way out."""

    why: Absence
    reason: str
    hint: str

    @property
    def is_fault(self) -> bool:
        """Something is there and does not work; otherwise there is nothing, as on most machines."""
        return self.why not in (Absence.NO_DRIVER, Absence.NO_DEVICE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One device, as its driver describes it."""

    ordinal: int
    name: str
    uuid: str
    memory_bytes: int
    capability: tuple[int, int]
    multiprocessors: int
    clock_khz: int
    memory_clock_khz: int
    memory_bus_bits: int
    copy_engines: int  # two or more copy in both directions at once
    virtual_memory: bool
    shareable: bool  # its regions can be handed to other processes
    granularity_bytes: int  # a region's size is a multiple of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpus:
    """What the driver sees, and the CUDA version that it supports: 13000 is 13.0."""

    driver_version: int
    devices: tuple[Gpu, ...]


def ordinal(name: str) -> int:
    """The number of the GPU that is called so in the setting `device`: `cuda` is the first, as `cuda:0`."""
    return int(name.partition(":")[2] or 0)


def probe() -> Gpus | NoGpu:
    """The GPUs that this process may use. A process that has asked must not be forked and used on."""
    try:
        found = _native.cuda_probe()
    except DeviceError as error:
        return NoGpu(why=Absence.REFUSED, reason=error.message, hint=error.hint)
    if len(found) == 3:
        why, reason, hint = found
        return NoGpu(why=Absence(why), reason=reason, hint=hint)
    driver_version, devices = found
    return Gpus(driver_version=driver_version, devices=tuple(Gpu(**device) for device in devices))


class CudaBroker(_native.CudaBroker):
    """All regions of a device, held without a context of its own: the controller's end.

    `send(socket)` hands them to a trainer at the other end of a Unix stream socket, which takes them as its
    `CudaRegions`. Raises DeviceError where the region size does not suit the device, DeviceMemoryError where it has
    not so much.
    """


class CudaRegions(_native.CudaRegions):
    """All the broker's regions, mapped in this process, which has the device's primary context for it.

    `socket` leads to the broker and stays the caller's. `touch()` writes to each region and waits for the device.
    Raises DeviceError where the broker ends before all have come, or the driver does not map them here.
    """


class CudaDevice(_native.CudaDevice):
    """One job's device: the protocol of `device/device.py`, and the order of computation and copies.

    Bound to one claim of the ledger behind `ledger_fd`, which stays the caller's. `regions` become this device's;
    without them the process makes memory of its own. Beyond the protocol: `compute_on(stream)` says where computation
    is queued, `host_prepare(size_bytes)` pins host memory ahead of the first iteration, `allow_outside(size_bytes)`
    lets torch have so much beside the regions for what no plan foresees (`outside_bytes()` says how much it has).
    `allocate`, `allocate_at` and `free` are ordered on the device: what is freed may be taken anew at once. Raises
    DeviceLostError when the device, or this process's hold on it, is gone, ComputationError when what the process
    computed took that hold from it; `check_context()` asks.
    """

    def __init__(
        self,
        ledger_fd: int,
        slot: int,
        epoch: int,
        host_pool_bytes: int,
        *,
        device: int = 0,
        regions: CudaRegions | None = None,
        chunk_bytes: int = _native.CUDA_CHUNK_BYTES,
    ) -> None:
        super().__init__(ledger_fd, slot, epoch, host_pool_bytes, device, regions, chunk_bytes)

    is_host = False
    arena_range = property(native_arena_range)
    arena_usage = native_arena_usage
    usage = native_usage
    host_usage = native_host_usage
    host_write = native_host_write
    host_read = native_host_read

    def compute_after(self, ticket: Ticket) -> int:
        """The computing stream waits, and the host goes on."""
        self._compute_after(ticket)
        return 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
