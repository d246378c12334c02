"""The device's ledger: the account of all jobs' bytes and regions in shared memory, and the memory itself.

The controller creates the ledger, claims a slot for each job and sets its grant. A trainer's device (`device.py`) is
bound to one claim.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Self

from indb_tensile import _native
from indb_tensile.errors import InvariantError
from indb_tensile.job import Slot


class RegionState(IntEnum):
    """The present state of one region of the device."""

    FREE = 0
    EMPTY = 1  # the region has an owner but holds nothing, so the controller may take the region back
    USED = 2
    WIPING = 3  # the controller is returning the region's memory to the machine
    ABSENT = 4  # the region has no memory, because other programs need it
    POOLED = 5  # the region belongs to a round, and no member has it
    LENT = 6  # the region belongs to a round, and a member has it


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """One region's entry in the ledger.

    If the owner's epoch has ended, the owner is dead and the region in quarantine.
    """

    state: RegionState
    backed: bool = False  # the machine has set memory aside for the whole region
    slot: Slot = Slot(0)  # noqa: RUF009 - no call: a NewType of int
    epoch: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotUsage:
    """One claimed slot of the ledger."""

    slot: Slot
    epoch: int
    pid: int
    granted_bytes: int
    held_bytes: int  # owned regions; more than the grant while regions to be returned are not empty
    used_bytes: int
    high_water_bytes: int
    host_bytes: int  # in the pinned host pool
    lent_bytes: int = 0  # of the regions that its round has lent to it; its use may exceed its grant by this much


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneUsage:
    """One link between host and device. The figures cover all processes since the ledger was made."""

    bytes_per_s: int
    free_ns: int  # monotonic clock: the time at which all copies reserved so far will have passed
    reserved_ns: int
    reserved_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceUsage:
    """The figures of the whole device."""

    capacity_bytes: int
    region_bytes: int
    granted_bytes: int
    used_bytes: int
    high_water_bytes: int  # of all jobs together at one moment, since the ledger was made
    host_bytes: int  # pinned host memory of all jobs
    host_limit_bytes: int
    absent_bytes: int  # of regions without memory
    out_lane: LaneUsage
    in_lane: LaneUsage
    pooled_bytes: int = 0  # of a round's regions that no member has


class Ledger:
    """The controller's end of the device: the account of bytes and regions in shared memory, and the memory itself.

    Trainers get the descriptor (`fd`) and their claim. Grants are whole regions, and their sum never exceeds the
    capacity. A job's use never exceeds its grant. `release_slot` takes back everything that a killed process had.
    """

    def __init__(self, native: _native.Ledger) -> None:
        self._handle: _native.Ledger | None = native

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
        """Create a device. The rates are those of its links, from device to host and from host to device.

        The memory is an unnamed file: the system's own, or one in a directory such as /dev/shm, whose size limits it.
        With `memory_directory` None, processes have private memory and only bytes are counted. The machine sets
        memory aside when a region is first used. Raises DeviceError if the region size is not a multiple of a page.
        `host_bytes` limits the pinned host memory of all processes together; None leaves only the limit of each
        process.
        """
        return cls(
            _native.Ledger.create(
                capacity_bytes, region_bytes, out_bytes_per_s, in_bytes_per_s, memory_directory, host_bytes
            )
        )

    @classmethod
    def attach(cls, fd: int) -> Self:
        """Attach to the device behind an inherited descriptor, which the caller keeps.

        Raise DeviceError if it is not one.
        """
        return cls(_native.Ledger.attach(fd))

    @property
    def fd(self) -> int:
        """The descriptor to pass to trainers (`pass_fds`). This object closes the descriptor."""
        return self._open.fd()

    def claim_slot(self, pid: int) -> tuple[Slot, int]:
        """Claim a free slot and return the slot and its epoch. Raise DeviceError if no slot is free."""
        slot, epoch = self._open.claim_slot(pid)
        return Slot(slot), epoch

    def set_pid(self, slot: Slot, pid: int) -> None:
        """Set the process that uses the slot, if the process was not known at the claim."""
        self._open.set_pid(slot, pid)

    def grant(self, slot: Slot, size_bytes: int) -> int:
        """Set the slot's grant to `size_bytes`, higher or lower than before, and return the grant in whole regions.

        Raises DeviceMemoryError and changes nothing if the capacity does not suffice beside the other grants, or if
        the slot uses more than the new grant. A lower grant takes back empty regions. Regions that still hold data
        are taken back by a later call, when they are empty.
        """
        return self._open.grant(slot, size_bytes)

    def set_pool(self, size_bytes: int) -> int:
        """Give a round of jobs this many bytes of free regions, and return the bytes that it has: fewer if too little
        is free.

        With 0 the round's regions that no member has become free; the bytes that members still have are returned.
        """
        return self._open.set_pool(size_bytes)

    def revoke_slot(self, slot: Slot) -> None:
        """End the slot's epoch after its process has died.

        The slot's later calls are refused; its regions stay with it.
        """
        self._open.revoke_slot(slot)

    def release_slot(self, slot: Slot) -> None:
        """Take back everything that a slot had.

        Call this only when no process of the slot maps the device any more.
        """
        self._open.release_slot(slot)

    def regions(self) -> tuple[Region, ...]:
        """Return every region, in order of offset."""
        return tuple(
            Region(state=RegionState(state), backed=backed, slot=Slot(slot), epoch=epoch)
            for state, backed, slot, epoch in self._open.regions()
        )

    def withdraw(self, count: int) -> tuple[int, ...]:
        """Make at most `count` free regions absent, and return their numbers. No slot is granted an absent region."""
        return tuple(self._open.withdraw(count))

    def restore(self, regions: Sequence[int]) -> None:
        """Make absent regions free, after they have got memory again. Raise InvariantError if one is not absent."""
        self._open.restore(list(regions))

    def usage(self, slot: Slot) -> SlotUsage:
        """Return the figures of one claimed slot. Raise InvariantError if the slot is not claimed."""
        return _slot_usage(self._open.slot(slot))

    def slots(self) -> tuple[SlotUsage, ...]:
        """Return the figures of all claimed slots, by number."""
        return tuple(_slot_usage(row) for row in self._open.slots())

    def device_usage(self) -> DeviceUsage:
        """Return the figures of the whole device. While jobs move bytes, the figures may be of different moments."""
        (
            capacity_bytes,
            region_bytes,
            granted_bytes,
            used_bytes,
            high_water_bytes,
            host_bytes,
            host_limit_bytes,
            absent_bytes,
            pooled_bytes,
        ) = self._open.pool()
        return DeviceUsage(
            capacity_bytes=capacity_bytes,
            region_bytes=region_bytes,
            granted_bytes=granted_bytes,
            used_bytes=used_bytes,
            high_water_bytes=high_water_bytes,
            host_bytes=host_bytes,
            host_limit_bytes=host_limit_bytes,
            absent_bytes=absent_bytes,
            pooled_bytes=pooled_bytes,
            out_lane=_lane_usage(self._open.out_lane()),
            in_lane=_lane_usage(self._open.in_lane()),
        )

    def close(self) -> None:
        """Close the descriptor and unmap the memory. The memory exists until no process maps it."""
        self._handle = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _open(self) -> _native.Ledger:
        if self._handle is None:
            raise InvariantError("the device ledger is closed")
        return self._handle


def _slot_usage(row: tuple[int, int, int, int, int, int, int, int, int]) -> SlotUsage:
    slot, epoch, pid, granted_bytes, held_bytes, used_bytes, high_water_bytes, host_bytes, lent_bytes = row
    return SlotUsage(
        slot=Slot(slot),
        epoch=epoch,
        pid=pid,
        granted_bytes=granted_bytes,
        held_bytes=held_bytes,
        used_bytes=used_bytes,
        high_water_bytes=high_water_bytes,
        host_bytes=host_bytes,
        lent_bytes=lent_bytes,
    )


def _lane_usage(row: tuple[int, int, int, int]) -> LaneUsage:
    bytes_per_s, free_ns, reserved_ns, reserved_bytes = row
    return LaneUsage(bytes_per_s=bytes_per_s, free_ns=free_ns, reserved_ns=reserved_ns, reserved_bytes=reserved_bytes)
