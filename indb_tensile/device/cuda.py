"""NVIDIA GPUs as trainers and controllers see them: the devices present, their regions, and one job's device.

The native library loads the driver on demand. On a machine without a usable GPU, `probe` returns `NoGpu` with the
reason.
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
    """The reason why no GPU can be used, as the native library reports it."""

    NO_DRIVER = "no driver"
    BROKEN_DRIVER = "broken driver"
    OLD_DRIVER = "old driver"
    NO_DEVICE = "no device"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class NoGpu:
    """No GPU can be used. `hint` says how to change that."""

    why: Absence
    reason: str
    hint: str

    @property
    def is_fault(self) -> bool:
        """True if a GPU or driver is present but does not work; False if the machine has none."""
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
    copy_engines: int  # with two or more engines, copies run in both directions at once
    virtual_memory: bool
    shareable: bool  # its regions can be handed to other processes
    granularity_bytes: int  # a region's size is a multiple of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpus:
    """The GPUs that the driver reports, and the CUDA version that the driver supports: 13000 is 13.0."""

    driver_version: int
    devices: tuple[Gpu, ...]


def ordinal(name: str) -> int:
    """Return the number of the GPU in the setting `device`. `cuda` means the first, like `cuda:0`."""
    return int(name.partition(":")[2] or 0)


def probe() -> Gpus | NoGpu:
    """Return the GPUs that this process may use.

    A process that has called this function must not be forked and used on.
    """
    try:
        answer = _native.cuda_probe()
    except DeviceError as error:
        return NoGpu(why=Absence.REFUSED, reason=error.message, hint=error.hint)
    if len(answer) == 3:
        why, reason, hint = answer
        return NoGpu(why=Absence(why), reason=reason, hint=hint)
    driver_version, devices = answer
    return Gpus(driver_version=driver_version, devices=tuple(Gpu(**device) for device in devices))


class CudaBroker(_native.CudaBroker):
    """All regions of a device, held by the controller without a context.

    `send(socket)` passes the regions to a trainer at the other end of a Unix stream socket, which receives them as
    `CudaRegions`. It consists of `greet(socket)`, which waits until the trainer is ready, and `add(socket,
    present())`. `release(regions)` gives up the memory of regions, after `remove(socket, regions)` has made each
    trainer unmap them. `create(regions)` allocates them again and returns those for which the device has memory;
    `add` then makes each trainer map them. Except for `greet`, one thread at a time may call. Raises DeviceError if
    the region size does not suit the device, DeviceMemoryError if the device has too little memory.
    """


class CudaRegions(_native.CudaRegions):
    """All regions of the broker, mapped into this process. The process gets the device's primary context for them.

    A thread follows the broker's changes of regions until the broker or this object, or the device that has taken
    the regions, ends.

    `socket` is connected to the broker; the caller keeps ownership. `touch()` writes to each region and waits for the
    device. Raises DeviceError if the broker ends before it has sent all regions, or if the driver cannot map them.
    """


class CudaDevice(_native.CudaDevice):
    """One job's device: the protocol of `device/device.py`, and the order of computation and copies.

    The object is bound to one claim of the ledger behind `ledger_fd`; the caller keeps that descriptor. The device
    takes ownership of `regions`; without regions the process allocates memory of its own.

    Methods beyond the protocol: `compute_on(stream)` sets the stream on which computation is queued.
    `host_prepare(size_bytes)` pins host memory before the first iteration. `allow_outside(size_bytes)` allows torch
    to allocate that many bytes outside the regions, for memory that no plan contains; `outside_bytes()` returns the
    bytes in use there. `allocate`, `allocate_at` and `free` are ordered on the device, so memory may be reused
    immediately after `free`.

    Raises DeviceLostError if the device or this process's context is lost, and ComputationError if this process's
    computation destroyed the context; `check_context()` tests for both.
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
        """Make the computing stream wait for the copy. The host does not wait, so the function returns 0."""
        self._compute_after(ticket)
        return 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
