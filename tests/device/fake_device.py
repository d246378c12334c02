"""A device in memory whose copies are complete at once. It has the rules of the emulated device, without waits."""

import ctypes

from indb_tensile.device.device import REGION_BYTES, ArenaUsage, HostBuffer, Ticket, Usage
from indb_tensile.errors import DeviceMemoryError, InvariantError


class FakeDevice:
    """Serves one job alone, with a fixed grant."""

    is_host = False

    def __init__(self, granted_bytes: int, host_pool_bytes: int) -> None:
        self.granted_bytes = granted_bytes
        self.host_pool_bytes = host_pool_bytes
        self._used_bytes = 0
        self._high_water_bytes = 0
        self._buffers: dict[int, ctypes.Array[ctypes.c_char]] = {}
        self._tickets = 0
        self._memory = ctypes.create_string_buffer(granted_bytes + 64)
        self._live: dict[int, int] = {}
        self._reserved: set[int] = set()
        self._arena_high_water_bytes = 0
        self._unaccounted_bytes = 0

    def move(self, freed_bytes: int, taken_bytes: int) -> None:
        if freed_bytes > self._used_bytes:
            raise InvariantError(
                f"slot 0: giving back {freed_bytes} bytes of which only {self._used_bytes} are in use"
            )
        after_bytes = self._used_bytes - freed_bytes + taken_bytes
        if after_bytes > self.granted_bytes and taken_bytes > freed_bytes:
            raise DeviceMemoryError(
                f"slot 0: taking {taken_bytes} bytes after giving back {freed_bytes} of {self._used_bytes} bytes in"
                f" use exceeds the grant of {self.granted_bytes} bytes by {after_bytes - self.granted_bytes}"
            )
        self._used_bytes = after_bytes
        self._high_water_bytes = max(self._high_water_bytes, after_bytes)

    @property
    def arena_range(self) -> range:
        start = ctypes.addressof(self._memory)
        start += -start % 64
        return range(start, start + self.granted_bytes)

    def allocate(self, size_bytes: int) -> int:
        gaps = [gap for gap in self._gaps() if len(gap) >= _aligned(size_bytes)]
        if not gaps:
            used_bytes = sum(map(_aligned, self._live.values()))
            raise DeviceMemoryError(
                f"slot 0: the arena has no {size_bytes} bytes in one piece: {used_bytes} of {self.granted_bytes}"
                " bytes"
            )
        return self._place(min(gaps, key=lambda gap: (len(gap), gap.start)).start, size_bytes)

    def allocate_at(self, offset: int, size_bytes: int) -> int:
        end = offset + _aligned(size_bytes)
        if not any(gap.start <= offset and end <= gap.stop for gap in self._gaps()):
            raise InvariantError(
                f"slot 0: {size_bytes} bytes at offset {offset} are not free in the regions of this job"
            )
        return self._place(offset, size_bytes)

    def free(self, address: int) -> None:
        if self._live.pop(address - self.arena_range.start, None) is None:
            raise InvariantError(f"address {address:#x} is no allocation of the arena, or no longer")

    def arena_usage(self) -> ArenaUsage:
        allocated_bytes = sum(map(_aligned, self._live.values()))
        return ArenaUsage(
            owned_bytes=self.granted_bytes,
            reserved_bytes=len(self._reserved) * REGION_BYTES,
            allocated_bytes=allocated_bytes,
            requested_bytes=sum(self._live.values()),
            high_water_bytes=self._arena_high_water_bytes,
            reserved_high_water_bytes=len(self._reserved) * REGION_BYTES,
            largest_free_bytes=max(map(len, self._gaps()), default=0),
            fallbacks=0,
            unaccounted_bytes=self._unaccounted_bytes,
        )

    def copy_out(self, host: HostBuffer, address: int, size_bytes: int) -> Ticket:
        self._check(host, size_bytes)
        return self._copy(host, address, size_bytes)

    def copy_in(self, address: int, host: HostBuffer, size_bytes: int) -> Ticket:
        self._check(host, size_bytes)
        return self._copy(address, host, size_bytes)

    def done(self, ticket: Ticket) -> bool:
        return self.wait(ticket) == 0

    def wait(self, ticket: Ticket) -> int:
        if ticket > self._tickets:
            raise InvariantError(f"copy {ticket} was never queued")
        return 0

    def compute_after(self, ticket: Ticket) -> int:
        return self.wait(ticket)

    def trim(self) -> None:
        pass

    def host_allocate(self, size_bytes: int) -> HostBuffer:
        if size_bytes == 0:
            raise InvariantError("a host buffer of 0 bytes")
        rounded_bytes = -(-size_bytes // 64) * 64
        used_bytes = sum(ctypes.sizeof(buffer) for buffer in self._buffers.values())
        if used_bytes + rounded_bytes > self.host_pool_bytes:
            raise DeviceMemoryError(
                f"the host pool has no {rounded_bytes} bytes in one piece: {used_bytes} of its limit of"
                f" {self.host_pool_bytes} bytes are in use"
            )
        buffer = ctypes.create_string_buffer(rounded_bytes)
        self._buffers[ctypes.addressof(buffer)] = buffer
        return HostBuffer(ctypes.addressof(buffer))

    def host_free(self, buffer: HostBuffer) -> None:
        self._check(buffer, 1)
        del self._buffers[buffer]

    def host_write(self, buffer: HostBuffer, address: int, size_bytes: int) -> None:
        self._check(buffer, size_bytes)
        ctypes.memmove(buffer, address, size_bytes)

    def host_read(self, address: int, buffer: HostBuffer, size_bytes: int) -> None:
        self._check(buffer, size_bytes)
        ctypes.memmove(address, buffer, size_bytes)

    def host_pack(self) -> dict[HostBuffer, HostBuffer]:
        return {}

    def host_fit(self, free_bytes: int) -> None:
        used_bytes = sum(ctypes.sizeof(buffer) for buffer in self._buffers.values())
        if used_bytes + free_bytes > self.host_pool_bytes:
            raise DeviceMemoryError(
                f"the host pool has no {free_bytes} bytes in one piece: {used_bytes} of its limit of"
                f" {self.host_pool_bytes} bytes are in use"
            )

    def usage(self) -> Usage:
        return Usage(
            granted_bytes=self.granted_bytes, used_bytes=self._used_bytes, high_water_bytes=self._high_water_bytes
        )

    def reset_high_water(self) -> None:
        self._high_water_bytes = self._used_bytes
        self._arena_high_water_bytes = sum(map(_aligned, self._live.values()))
        self._unaccounted_bytes = 0

    def _gaps(self) -> list[range]:
        starts = [0, *(offset + _aligned(size_bytes) for offset, size_bytes in sorted(self._live.items()))]
        ends = [*sorted(self._live), self.granted_bytes]
        return [range(start, end) for start, end in zip(starts, ends, strict=True)]

    def _place(self, offset: int, size_bytes: int) -> int:
        self._live[offset] = size_bytes
        end = offset + _aligned(size_bytes)
        self._reserved |= set(range(offset // REGION_BYTES, -(-end // REGION_BYTES)))
        self._arena_high_water_bytes = max(self._arena_high_water_bytes, sum(map(_aligned, self._live.values())))
        excess_bytes = sum(self._live.values()) - self._used_bytes
        self._unaccounted_bytes = max(self._unaccounted_bytes, excess_bytes)
        return self.arena_range[offset]

    def _check(self, host: HostBuffer, size_bytes: int) -> None:
        if size_bytes == 0:
            raise InvariantError("a copy of 0 bytes")
        if host not in self._buffers:
            raise InvariantError(f"address {host:#x} is not, or is no longer, a buffer of the host pool")
        if size_bytes > ctypes.sizeof(self._buffers[host]):
            raise InvariantError(
                f"a copy of {size_bytes} bytes exceeds the host buffer of {ctypes.sizeof(self._buffers[host])} bytes"
            )

    def _copy(self, target: int, source: int, size_bytes: int) -> Ticket:
        ctypes.memmove(target, source, size_bytes)
        self._tickets += 1
        return Ticket(self._tickets)


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // 64) * 64
