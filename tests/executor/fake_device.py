"""A device in memory whose copies are done at once: the same rules as the emulated one, nothing to wait for."""

import ctypes

from indb_tensile.errors import DeviceMemoryError, InvariantError
from indb_tensile.executor.device import HostBuffer, Ticket, Usage


class FakeDevice:
    """One job alone, with a fixed grant."""

    def __init__(self, granted_bytes: int, host_pool_bytes: int) -> None:
        self.granted_bytes = granted_bytes
        self.host_pool_bytes = host_pool_bytes
        self._used_bytes = 0
        self._high_water_bytes = 0
        self._buffers: dict[int, ctypes.Array[ctypes.c_char]] = {}
        self._tickets = 0

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

    def copy_out(self, host: HostBuffer, address: int, size_bytes: int) -> Ticket:
        self._check(host, size_bytes)
        return self._copy(host, address, size_bytes)

    def copy_in(self, address: int, host: HostBuffer, size_bytes: int) -> Ticket:
        self._check(host, size_bytes)
        return self._copy(address, host, size_bytes)

    def wait(self, ticket: Ticket) -> int:
        if ticket > self._tickets:
            raise InvariantError(f"copy {ticket} was never queued")
        return 0

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

    def usage(self) -> Usage:
        return Usage(
            granted_bytes=self.granted_bytes, used_bytes=self._used_bytes, high_water_bytes=self._high_water_bytes
        )

    def reset_high_water(self) -> None:
        self._high_water_bytes = self._used_bytes

    def _check(self, host: HostBuffer, size_bytes: int) -> None:
        if size_bytes == 0:
            raise InvariantError("a copy of 0 bytes")
        if host not in self._buffers:
            raise InvariantError(f"address {host:#x} is no buffer of the host pool, or no longer")
        if size_bytes > ctypes.sizeof(self._buffers[host]):
            raise InvariantError(
                f"a copy of {size_bytes} bytes and a host buffer of {ctypes.sizeof(self._buffers[host])}"
            )

    def _copy(self, target: int, source: int, size_bytes: int) -> Ticket:
        ctypes.memmove(target, source, size_bytes)
        self._tickets += 1
        return Ticket(self._tickets)
