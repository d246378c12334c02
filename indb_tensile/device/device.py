"""The device as a trainer sees it: an account of bytes, an arena of memory, and two copy lanes to the host.

The account says how much a job may use and does, tensor by tensor as its plan says; the arena says where, in whole
regions that pass from job to job. They are joined where a tensor's storage is: what allocates in the arena is told
nothing of plans, and `move` nothing of addresses. Each `move` tells the arena what is used from then on, and the
arena keeps the most by which it held more: 0 bytes unaccounted for says that no step used memory that its plan did
not know.

One interface, several back ends behind it: this machine's own memory with a file on disk beyond the links, the
emulated device, a GPU, and a small in-memory fake for tests, which run through the same suite.
"""

import atexit
import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NewType, Protocol, Self
from weakref import WeakSet

from indb_tensile import _native
from indb_tensile.errors import DeviceMemoryError, InvariantError
from indb_tensile.job import Slot

REGION_BYTES: Final = 1 << 20  # the unit of grants on an emulated device

Ticket = NewType("Ticket", int)
HostBuffer = NewType("HostBuffer", int)  # an address in the host pool; of a file on disk only a name
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
        """Whether its memory is the host's, which writes there itself: only swaps are copied over a link."""
        ...

    def move(self, freed_bytes: int, taken_bytes: int) -> None:
        """Give bytes back, then take bytes; raises DeviceMemoryError beyond the job's grant."""
        ...

    def copy_out(self, host: HostBuffer, address: int, size_bytes: int) -> Ticket:
        """Queue a copy to the host and return at once; both ranges must outlive it."""
        ...

    def copy_in(self, address: int, host: HostBuffer, size_bytes: int) -> Ticket:
        """Queue a copy to the device and return at once; both ranges must outlive it."""
        ...

    def wait(self, ticket: Ticket) -> int:
        """Block (without the interpreter lock) until that copy is done; return the nanoseconds waited."""
        ...

    def compute_after(self, ticket: Ticket) -> int:
        """What is computed from now on starts after that copy; returns the nanoseconds that the host waited."""
        ...

    def host_allocate(self, size_bytes: int) -> HostBuffer:
        """Take a buffer from the host pool; raises DeviceMemoryError when its limit is reached."""
        ...

    def host_free(self, buffer: HostBuffer) -> None:
        """Give a buffer back to the host pool."""
        ...

    def host_write(self, buffer: HostBuffer, address: int, size_bytes: int) -> None:
        """Put these bytes of this process into a buffer that no queued copy uses."""
        ...

    def host_read(self, address: int, buffer: HostBuffer, size_bytes: int) -> None:
        """Put the bytes of a buffer, which no queued copy writes, into memory of this process."""
        ...

    def host_pack(self) -> dict[HostBuffer, HostBuffer]:
        """Move buffers together, none of them in use by a copy, so that what is free is in one piece; where to."""
        ...

    def host_fit(self, free_bytes: int) -> None:
        """Have so much free behind the last buffer: what is more goes back to the machine, what is missing comes.

        What was there before is counted in the device's ledger, and what is to come must have room beside what others
        have. Raises DeviceMemoryError where it has not.
        """
        ...

    def trim(self) -> None:
        """Give up memory of this process's own in which nothing lies, before others may be granted as much."""
        ...

    def usage(self) -> Usage:
        """What the ledger says of this job."""
        ...

    def reset_high_water(self) -> None:
        """Start new high-water marks at the present use, of the arena's and of what is unaccounted for too."""
        ...


class ArenaDevice(Device, Protocol):
    """A device whose memory can be had at addresses: whoever places tensors asks for it."""

    @property
    def arena_range(self) -> range:
        """All the device's memory as addresses of this process; an offset is an address less the first."""
        ...

    def allocate(self, size_bytes: int) -> int:
        """The address of that much memory in the job's regions: the smallest free piece, the lowest of such.

        Raises DeviceMemoryError where no piece is large enough.
        """
        ...

    def allocate_at(self, offset: int, size_bytes: int) -> int:
        """The same at a planned offset. Raises InvariantError where that is in use or not the job's."""
        ...

    def free(self, address: int) -> None:
        """Give back what was allocated, its last use being over; raises InvariantError while a copy uses it."""
        ...

    def arena_usage(self) -> "ArenaUsage":
        """What is allocated, and what was set aside for it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ArenaUsage:
    """One job's memory on the device: what it has, and what it has put there."""

    owned_bytes: int  # whole regions
    reserved_bytes: int  # of those, what the machine has set aside memory for, on first use and until they go back
    allocated_bytes: int  # sizes rounded up to the alignment
    requested_bytes: int  # the same as they were asked for
    high_water_bytes: int  # of allocated_bytes
    reserved_high_water_bytes: int
    largest_free_bytes: int  # in one piece
    fallbacks: int  # allocations through the hook for which there was no room
    unaccounted_bytes: int  # the most by which requested_bytes passed what `move` had said is used


class RegionState(IntEnum):
    """What a region of the device is at this moment."""

    FREE = 0
    EMPTY = 1  # it has an owner, who holds nothing in it: the controller may take it back
    USED = 2
    WIPING = 3  # on its way back: the controller is giving its bytes to the machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """One region's word in the ledger. An owner of an epoch that is over is dead: the region is in quarantine."""

    state: RegionState
    backed: bool = False  # the machine has set memory aside for all of it
    slot: Slot = Slot(0)  # noqa: RUF009 - no call: a NewType of int
    epoch: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HostUsage:
    """One process's bytes in the host pool; sizes count rounded up to 64 bytes, in a file on disk to 4,096."""

    limit_bytes: int
    used_bytes: int
    high_water_bytes: int
    resident_bytes: int  # faulted in, or reserved on disk; stays for reuse until `host_fit`


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotUsage:
    """One claimed slot of the ledger."""

    slot: Slot
    epoch: int
    pid: int
    granted_bytes: int
    held_bytes: int  # regions: above the grant while those that are due back hold something
    used_bytes: int
    high_water_bytes: int
    host_bytes: int  # of the pinned host pool


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneUsage:
    """One link between host and device, over all processes since the ledger was made."""

    bytes_per_s: int
    free_ns: int  # monotonic clock at which what is reserved so far will have passed
    reserved_ns: int
    reserved_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceUsage:
    """The device as a whole."""

    capacity_bytes: int
    region_bytes: int
    granted_bytes: int
    used_bytes: int
    high_water_bytes: int  # of all jobs together at one moment, since the ledger was made
    host_bytes: int  # pinned host memory that jobs have
    host_limit_bytes: int
    out_lane: LaneUsage
    in_lane: LaneUsage


class _Native(Protocol):
    """What the native back ends say of themselves, in tuples."""

    def _slot(self) -> tuple[int, int, int, int, int, int, int, int]: ...
    def _arena(self) -> tuple[int, int, int, int, int, int, int, int, int]: ...
    def _arena_range(self) -> tuple[int, int]: ...
    def _host(self) -> tuple[int, int, int, int]: ...


# Methods of every native back end. A class of the native library takes no second base class.


def native_arena_range(self: _Native) -> range:
    """All the device's memory as addresses of this process."""
    return range(*self._arena_range())


def native_usage(self: _Native) -> Usage:
    """What the ledger says of this job."""
    _, _, _, granted_bytes, _, used_bytes, high_water_bytes, _ = self._slot()
    return Usage(granted_bytes=granted_bytes, used_bytes=used_bytes, high_water_bytes=high_water_bytes)


def native_arena_usage(self: _Native) -> ArenaUsage:
    """What is allocated, and what was set aside for it."""
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
    """What this process holds of the host pool."""
    limit_bytes, used_bytes, high_water_bytes, resident_bytes = self._host()
    return HostUsage(
        limit_bytes=limit_bytes,
        used_bytes=used_bytes,
        high_water_bytes=high_water_bytes,
        resident_bytes=resident_bytes,
    )


def native_host_write(_: object, buffer: HostBuffer, address: int, size_bytes: int) -> None:
    """Put these bytes of this process into a buffer in host memory."""
    ctypes.memmove(buffer, address, size_bytes)


def native_host_read(_: object, address: int, buffer: HostBuffer, size_bytes: int) -> None:
    """Put the bytes of a buffer in host memory elsewhere."""
    ctypes.memmove(address, buffer, size_bytes)


class _Allocating(Protocol):
    def allocate(self, size_bytes: int) -> int: ...
    def free(self, address: int) -> None: ...


def machine_prove(self: _Allocating, size_bytes: int) -> None:
    """Raise DeviceLostError where the machine has not the memory for so much more, whatever was granted."""
    taken = []
    try:
        for _ in range(0, size_bytes, REGION_BYTES):
            taken.append(self.allocate(REGION_BYTES))
    except DeviceMemoryError:
        pass  # the job's regions are full: the machine is not to blame
    finally:
        for address in taken:
            self.free(address)


class EmulatedDevice(_native.EmulatedDevice):
    """A GPU's stand-in: memory in a file that all map, copies by two threads at the links' rates.

    Bound to one claim of the ledger behind `ledger_fd`, which stays the caller's and may be closed afterwards.
    Raises DeviceError when the claim's epoch is over, here and at every move. Beyond the protocol: `done(ticket)`
    asks without blocking, `drain()` waits for all copies, `close()` drains and ends the copying threads, which
    the end of the process does too. The pool's limit is this process's own, and the
    ledger's that of all together. Strict, it fills what is freed with a
    pattern, and touching whole pages that are not allocated ends the process by SIGSEGV. `hook_address()` is that of
    a `tensile_arena_hook` (native/arena_hook.h), by which a preloaded library allocates here for as long as the
    process lives. A forked child does not have the device's memory. Where the ledger has none, whatever concerns the
    arena raises DeviceError.
    """

    def __init__(
        self,
        ledger_fd: int,
        slot: int,
        epoch: int,
        host_pool_bytes: int,
        *,
        chunk_bytes: int = _native.CHUNK_BYTES,
        alignment_bytes: int = 64,
        strict: bool = False,
    ) -> None:
        super().__init__(ledger_fd, slot, epoch, host_pool_bytes, chunk_bytes, alignment_bytes, strict)
        _open_devices.add(self)

    is_host = False  # as a GPU's is not
    arena_range = property(native_arena_range)
    arena_usage = native_arena_usage
    usage = native_usage
    host_usage = native_host_usage
    host_write = native_host_write
    host_read = native_host_read
    prove = machine_prove

    compute_after = _native.EmulatedDevice.wait  # computation is the calling thread

    def trim(self) -> None:
        """Nothing: its memory is everybody's."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class CpuDevice(_native.CpuDevice):
    """The machine's own memory and processor at their full speed, with a file on disk beyond the links.

    As the emulated device but for the links: copies take as long as the disk takes, and a buffer of the host pool is
    a place in a file without a name in `swap_directory`, which is gone with this process however that ends. Its
    addresses name such places: nothing can be read or written there but by this class. A disk that is full, or fails,
    is a DeviceLostError where the pool grows, or where a copy is waited for. `is_direct()` says whether copies pass
    the page cache by.
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

    compute_after = _native.CpuDevice.wait  # computation is the calling thread

    def trim(self) -> None:
        """Nothing: its memory is everybody's."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Ledger:
    """The device's account of bytes and regions in shared memory, and that memory: the controller's end of it.

    Trainers get its descriptor (`fd`) and their claim. Grants are whole regions and never exceed the capacity in
    all; a job's use never exceeds its grant; whatever a killed process had comes back by `release_slot`.
    """

    def __init__(self, native: _native.Ledger) -> None:
        self._held: _native.Ledger | None = native

    @classmethod
    def create(
        cls,
        capacity_bytes: int,
        region_bytes: int,
        out_bytes_per_s: int,
        in_bytes_per_s: int,
        memory_directory: str | None = "",
        host_bytes: int | None = None,
    ) -> Self:
        """A new device; the rates are those of its links, from device to host and from host to device.

        Its memory is a file without a name: the system's own, or one in a directory such as /dev/shm, whose size
        bounds it. None: processes have private memory and only bytes are counted. The machine sets memory aside
        when a region is first used, not before. Raises DeviceError where a region is no multiple of a page.
        `host_bytes` is what the pinned host memory of all processes keeps to; None: what each keeps to alone.
        """
        return cls(
            _native.Ledger.create(
                capacity_bytes, region_bytes, out_bytes_per_s, in_bytes_per_s, memory_directory, host_bytes
            )
        )

    @classmethod
    def attach(cls, fd: int) -> Self:
        """The device behind an inherited descriptor, which stays the caller's. Raises DeviceError if it is none."""
        return cls(_native.Ledger.attach(fd))

    @property
    def fd(self) -> int:
        """The descriptor to hand to trainers (`pass_fds`); this object closes it."""
        return self._open.fd()

    def claim_slot(self, pid: int) -> tuple[Slot, int]:
        """A free slot and its epoch. Raises DeviceError when all are taken."""
        slot, epoch = self._open.claim_slot(pid)
        return Slot(slot), epoch

    def set_pid(self, slot: Slot, pid: int) -> None:
        """Say which process uses the slot, where that was not known at the claim."""
        self._open.set_pid(slot, pid)

    def grant(self, slot: Slot, size_bytes: int) -> int:
        """Let the slot use this many bytes from now on, more or fewer than before; returns them in whole regions.

        Raises DeviceMemoryError, and changes nothing, when the capacity is too small for it beside the other
        grants, or when the slot uses more than it would be left with. A lower grant takes back empty regions; those
        that still hold something come back when they are empty and this is called again.
        """
        return self._open.grant(slot, size_bytes)

    def revoke_slot(self, slot: Slot) -> None:
        """End the slot's epoch, its process having died: what is left of it is refused, its regions stay its own."""
        self._open.revoke_slot(slot)

    def release_slot(self, slot: Slot) -> None:
        """Take back all that a slot had, once nothing that maps the device is left of its process."""
        self._open.release_slot(slot)

    def regions(self) -> tuple[Region, ...]:
        """Every region, from offset 0 on."""
        return tuple(
            Region(state=RegionState(state), backed=backed, slot=Slot(slot), epoch=epoch)
            for state, backed, slot, epoch in self._open.regions()
        )

    def usage(self, slot: Slot) -> SlotUsage:
        """One claimed slot. Raises InvariantError when nobody has claimed it."""
        return _slot_usage(self._open.slot(slot))

    def slots(self) -> tuple[SlotUsage, ...]:
        """All claimed slots, by number."""
        return tuple(_slot_usage(row) for row in self._open.slots())

    def device_usage(self) -> DeviceUsage:
        """The device as a whole; while jobs move bytes, not all of one instant."""
        capacity_bytes, region_bytes, granted_bytes, used_bytes, high_water_bytes, host_bytes, host_limit_bytes = (
            self._open.pool()
        )
        return DeviceUsage(
            capacity_bytes=capacity_bytes,
            region_bytes=region_bytes,
            granted_bytes=granted_bytes,
            used_bytes=used_bytes,
            high_water_bytes=high_water_bytes,
            host_bytes=host_bytes,
            host_limit_bytes=host_limit_bytes,
            out_lane=_lane_usage(self._open.out_lane()),
            in_lane=_lane_usage(self._open.in_lane()),
        )

    def close(self) -> None:
        """Close the descriptor and unmap the memory, which lives on while another process has it."""
        self._held = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _open(self) -> _native.Ledger:
        if self._held is None:
            raise InvariantError("the device ledger is closed")
        return self._held


def _slot_usage(row: tuple[int, int, int, int, int, int, int, int]) -> SlotUsage:
    slot, epoch, pid, granted_bytes, held_bytes, used_bytes, high_water_bytes, host_bytes = row
    return SlotUsage(
        slot=Slot(slot),
        epoch=epoch,
        pid=pid,
        granted_bytes=granted_bytes,
        held_bytes=held_bytes,
        used_bytes=used_bytes,
        high_water_bytes=high_water_bytes,
        host_bytes=host_bytes,
    )


def _lane_usage(row: tuple[int, int, int, int]) -> LaneUsage:
    bytes_per_s, free_ns, reserved_ns, reserved_bytes = row
    return LaneUsage(bytes_per_s=bytes_per_s, free_ns=free_ns, reserved_ns=reserved_ns, reserved_bytes=reserved_bytes)


_open_devices: "WeakSet[EmulatedDevice | CpuDevice]" = WeakSet()


@atexit.register
def _close_devices() -> None:
    # While the interpreter still holds the tensors that queued copies read and write.
    for device in tuple(_open_devices):
        device.close()
