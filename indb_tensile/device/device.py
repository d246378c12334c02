"""The device as a trainer sees it: an account of bytes, an arena of memory, and two copy lanes to the host.

The account counts the bytes that a job may use and does use, tensor by tensor as the job's plan says. The arena gives
addresses, in whole regions that pass from job to job. The two are compared only where a tensor's storage is moved:
arena allocations know nothing of plans, and `move` knows nothing of addresses. Each `move` tells the arena the bytes
in use from then on, and the arena records the largest excess over that number. If `unaccounted_bytes` is 0, no step
has used memory that its plan did not contain.

All back ends share one interface and pass the same test suite: this machine's own memory, with a file on disk as the
swap space; the emulated device; a GPU; and a small in-memory fake for tests.
"""

import atexit
import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NewType, Protocol, Self
from weakref import WeakSet

from indb_tensile import _native
from indb_tensile.errors import DeviceMemoryError

REGION_BYTES: Final = 1 << 20  # the unit of grants on an emulated device

Ticket = NewType("Ticket", int)
HostBuffer = NewType("HostBuffer", int)  # an address in the host pool; for a file on disk only a name
Clock = Callable[[], int]  # monotonic nanoseconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """One job's bytes on the device."""

    granted_bytes: int
    used_bytes: int
    high_water_bytes: int


class Device(Protocol):
    """A trainer's view of the device: bound to one job's slot in the shared ledger.

    Addresses and sizes are plain integers: the library below links neither torch nor CUDA.
    """

    @property
    def is_host(self) -> bool:
        """True if the host writes to the device's memory directly. Then only swaps are copied over a link."""
        ...

    def move(self, freed_bytes: int, taken_bytes: int) -> None:
        """Return `freed_bytes` to the account, then take `taken_bytes`.

        Raises DeviceMemoryError if the use would exceed the job's grant.
        """
        ...

    def copy_out(self, host: HostBuffer, address: int, size_bytes: int) -> Ticket:
        """Queue a copy to the host and return at once. Both ranges must outlive the copy."""
        ...

    def copy_in(self, address: int, host: HostBuffer, size_bytes: int) -> Ticket:
        """Queue a copy to the device and return at once. Both ranges must outlive the copy."""
        ...

    def done(self, ticket: Ticket) -> bool:
        """Return whether the copy is done, without waiting."""
        ...

    def wait(self, ticket: Ticket) -> int:
        """Block until the copy is done, without the interpreter lock, and return the nanoseconds waited."""
        ...

    def compute_after(self, ticket: Ticket) -> int:
        """Start later computation after the copy, and return the nanoseconds that the host waited."""
        ...

    def host_allocate(self, size_bytes: int) -> HostBuffer:
        """Allocate a buffer in the host pool; raise DeviceMemoryError when the pool's limit is reached."""
        ...

    def host_free(self, buffer: HostBuffer) -> None:
        """Free a buffer of the host pool."""
        ...

    def host_write(self, buffer: HostBuffer, address: int, size_bytes: int) -> None:
        """Write bytes of this process's memory to a buffer that no queued copy uses."""
        ...

    def host_read(self, address: int, buffer: HostBuffer, size_bytes: int) -> None:
        """Read the bytes of a buffer, which no queued copy writes, into this process's memory."""
        ...

    def host_pack(self) -> dict[HostBuffer, HostBuffer]:
        """Compact the buffers so that the free space is contiguous, and return each moved buffer's new address.

        No copy may use a buffer meanwhile.
        """
        ...

    def host_fit(self, free_bytes: int) -> None:
        """Set the free space behind the last buffer to `free_bytes`.

        The pool returns the excess to the machine, or adds the missing space. The device's ledger counts the pool's
        space of all processes, and new space must fit beside the others' space. Raises DeviceMemoryError if it does
        not.
        """
        ...

    def trim(self) -> None:
        """Return this process's unused memory to the machine, before other jobs may be granted as much."""
        ...

    def usage(self) -> Usage:
        """Return this job's figures from the ledger."""
        ...

    def reset_high_water(self) -> None:
        """Restart all high-water marks at the present use, including the arena's and the one of unaccounted bytes."""
        ...


class ArenaDevice(Device, Protocol):
    """A device that allocates memory at addresses, for code that places tensors."""

    @property
    def arena_range(self) -> range:
        """All the device's memory as addresses of this process. An offset is an address minus the first address."""
        ...

    def allocate(self, size_bytes: int) -> int:
        """Allocate memory in the job's regions and return its address.

        Takes the smallest free piece that is large enough, and the lowest of equal pieces. Raises DeviceMemoryError
        if no piece is large enough.
        """
        ...

    def allocate_at(self, offset: int, size_bytes: int) -> int:
        """Allocate memory at a planned offset. Raise InvariantError if the range is in use or not the job's."""
        ...

    def free(self, address: int) -> None:
        """Free allocated memory after its last use. Raise InvariantError if a copy still uses the memory."""
        ...

    def arena_usage(self) -> "ArenaUsage":
        """Return the arena's figures: allocated memory, and memory set aside for it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ArenaUsage:
    """One job's memory in the arena: the regions that the job owns, and its allocations in them."""

    owned_bytes: int  # whole regions
    reserved_bytes: int  # part of the owned bytes for which the machine has set memory aside, from first use on
    allocated_bytes: int  # sizes rounded up to the alignment
    requested_bytes: int  # sizes before rounding
    high_water_bytes: int  # of allocated_bytes
    reserved_high_water_bytes: int
    largest_free_bytes: int  # in one piece
    fallbacks: int  # allocations through the hook for which there was no room
    unaccounted_bytes: int  # the largest excess of requested_bytes over the use that `move` had stated


@dataclass(frozen=True, slots=True, kw_only=True)
class HostUsage:
    """One process's bytes in the host pool. Sizes are rounded up to 64 bytes, in a file on disk to 4,096."""

    limit_bytes: int
    used_bytes: int
    high_water_bytes: int
    resident_bytes: int  # faulted in, or reserved on disk; reused, and returned only by `host_fit`


class _Native(Protocol):
    """The figures of the native back ends, as tuples."""

    def _slot(self) -> tuple[int, int, int, int, int, int, int, int, int]: ...
    def _arena(self) -> tuple[int, int, int, int, int, int, int, int, int]: ...
    def _arena_range(self) -> tuple[int, int]: ...
    def _host(self) -> tuple[int, int, int, int]: ...


# Methods that all native back ends share. A class of the native library cannot take a second base class.


def native_arena_range(self: _Native) -> range:
    """Return all the device's memory as addresses of this process."""
    return range(*self._arena_range())


def native_usage(self: _Native) -> Usage:
    """Return this job's figures from the ledger."""
    _, _, _, granted_bytes, _, used_bytes, high_water_bytes, _, _ = self._slot()
    return Usage(granted_bytes=granted_bytes, used_bytes=used_bytes, high_water_bytes=high_water_bytes)


def native_arena_usage(self: _Native) -> ArenaUsage:
    """Return the arena's figures: allocated memory, and memory set aside for it."""
    (owned, reserved, allocated, requested, high_water, reserved_high_water, largest, fallbacks, unaccounted) = (
        self._arena()
    )
    return ArenaUsage(
        owned_bytes=owned,
        reserved_bytes=reserved,
        allocated_bytes=allocated,
        requested_bytes=requested,
        high_water_bytes=high_water,
        reserved_high_water_bytes=reserved_high_water,
        largest_free_bytes=largest,
        fallbacks=fallbacks,
        unaccounted_bytes=unaccounted,
    )


def native_host_usage(self: _Native) -> HostUsage:
    """Return this process's figures of the host pool."""
    limit_bytes, used_bytes, high_water_bytes, resident_bytes = self._host()
    return HostUsage(
        limit_bytes=limit_bytes,
        used_bytes=used_bytes,
        high_water_bytes=high_water_bytes,
        resident_bytes=resident_bytes,
    )


def native_host_write(_: object, buffer: HostBuffer, address: int, size_bytes: int) -> None:
    """Write bytes of this process's memory to a buffer in host memory."""
    ctypes.memmove(buffer, address, size_bytes)


def native_host_read(_: object, address: int, buffer: HostBuffer, size_bytes: int) -> None:
    """Read the bytes of a buffer in host memory into this process's memory."""
    ctypes.memmove(address, buffer, size_bytes)


class _Allocating(Protocol):
    def allocate(self, size_bytes: int) -> int: ...
    def free(self, address: int) -> None: ...


def machine_prove(self: _Allocating, size_bytes: int) -> None:
    """Raise DeviceLostError if the machine lacks memory for `size_bytes` more, whatever was granted."""
    addresses = []
    try:
        for _ in range(0, size_bytes, REGION_BYTES):
            addresses.append(self.allocate(REGION_BYTES))
    except DeviceMemoryError:
        pass  # the job's regions are full, which is no fault of the machine
    finally:
        for address in addresses:
            self.free(address)


class EmulatedDevice(_native.EmulatedDevice):
    """A stand-in for a GPU: memory in a shared file, and copies by two threads at the links' rates.

    The object is bound to one claim of the ledger behind `ledger_fd`; the caller keeps that descriptor and may close
    it afterwards. The constructor and every `move` raise DeviceError if the claim's epoch has ended.

    Methods beyond the protocol: `drain()` waits for all copies, and `close()` drains and ends the copying threads, as
    does the end of the process. `hook_address()` returns the address of a `tensile_arena_hook`
    (native/arena_hook.h), by which a preloaded library allocates here for as long as the process lives.

    `host_pool_bytes` limits this process; the ledger limits all processes together. Copies are made in chunks of
    `chunk_bytes`, by default what a link carries in 250 us, but at least 128 KiB. In strict mode freed memory is
    filled with a pattern, and touching whole unallocated pages ends the process by SIGSEGV. A forked child does not
    have the device's memory. If the ledger has no memory, all methods of the arena raise DeviceError.
    """

    def __init__(
        self,
        ledger_fd: int,
        slot: int,
        epoch: int,
        host_pool_bytes: int,
        *,
        chunk_bytes: int | None = None,
        alignment_bytes: int = 64,
        strict: bool = False,
    ) -> None:
        super().__init__(ledger_fd, slot, epoch, host_pool_bytes, chunk_bytes, alignment_bytes, strict)
        _open_devices.add(self)

    is_host = False  # like a GPU
    arena_range = property(native_arena_range)
    arena_usage = native_arena_usage
    usage = native_usage
    host_usage = native_host_usage
    host_write = native_host_write
    host_read = native_host_read
    prove = machine_prove

    compute_after = _native.EmulatedDevice.wait  # the calling thread computes, so the thread itself waits

    def trim(self) -> None:
        """Do nothing: all processes share the device's memory."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class CpuDevice(_native.CpuDevice):
    """The machine's own memory and processor at full speed, with a file on disk as the swap space.

    It works like the emulated device except for the links: copies take as long as the disk takes. A buffer of the
    host pool is a range of an unnamed file in `swap_directory`. The file disappears when this process ends for any
    reason. Buffer addresses name ranges of the file, so only this class can read and write them. A full or failing
    disk raises DeviceLostError when the pool grows or when a copy is waited for. `is_direct()` returns whether copies
    bypass the page cache.
    """

    def __init__(
        self,
        ledger_fd: int,
        slot: int,
        epoch: int,
        host_pool_bytes: int,
        swap_directory: str,
        *,
        alignment_bytes: int = 64,
        strict: bool = False,
    ) -> None:
        super().__init__(ledger_fd, slot, epoch, host_pool_bytes, swap_directory, alignment_bytes, strict)
        _open_devices.add(self)

    is_host = True
    arena_range = property(native_arena_range)
    arena_usage = native_arena_usage
    usage = native_usage
    host_usage = native_host_usage
    prove = machine_prove

    compute_after = _native.CpuDevice.wait  # the calling thread computes, so the thread itself waits

    def trim(self) -> None:
        """Do nothing: all processes share the device's memory."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_open_devices: "WeakSet[EmulatedDevice | CpuDevice]" = WeakSet()


@atexit.register
def _close_devices() -> None:
    # Close before the interpreter frees the tensors that queued copies read and write.
    for device in tuple(_open_devices):
        device.close()
