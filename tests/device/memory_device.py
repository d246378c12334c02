"""A device in this process's memory. Its count of bytes is exact; a copy is done when it is waited for."""

import ctypes

from indb_tensile.device.device import HostBuffer, Ticket, Usage
from indb_tensile.errors import DeviceMemoryError


class MemoryDevice:
    """Copies lazily: a queued copy is done when this copy, or a later copy of its lane, is waited for.

    A copy at its latest possible time shows any wait that is missing.
    """

    def __init__(self, granted_bytes: int = 1 << 40, *, is_host: bool = False) -> None:
        self.is_host = is_host
        self.granted_bytes = granted_bytes
        self.used_bytes = 0
        self.high_water_bytes = 0
        self.accounts = True
        self.loads: list[int] = []
        self.buffers: dict[int, ctypes.Array[ctypes.c_char]] = {}
        self._order: list[int] = []  # of all buffers since the last `host_pack`, also of those that were freed
        self.copied_bytes = 0
        self.pending: list[tuple[int, int, int, int]] = []
        self._tickets = 0

    def move(self, freed_bytes: int, taken_bytes: int) -> None:
        if not self.accounts:
            return
        assert freed_bytes <= self.used_bytes
        self.used_bytes += taken_bytes - freed_bytes
        if self.used_bytes > self.granted_bytes:
            raise DeviceMemoryError(f"{self.used_bytes} bytes exceed the grant of {self.granted_bytes}")
        self.high_water_bytes = max(self.high_water_bytes, self.used_bytes)
        self.loads.append(self.used_bytes)

    def copy_out(self, host: HostBuffer, address: int, size_bytes: int) -> Ticket:
        return self._enqueue(host, address, size_bytes)

    def copy_in(self, address: int, host: HostBuffer, size_bytes: int) -> Ticket:
        return self._enqueue(address, host, size_bytes)

    def settle(self) -> None:
        """Do every queued copy."""
        self.wait(Ticket(self._tickets))

    def done(self, ticket: Ticket) -> bool:
        return not any(number == ticket for number, *_ in self.pending)

    def wait(self, ticket: Ticket) -> int:
        waited = 0
        while self.pending and self.pending[0][0] <= ticket:
            _, target, source, size_bytes = self.pending.pop(0)
            ctypes.memmove(target, source, size_bytes)
            waited += size_bytes
        return waited

    def compute_after(self, ticket: Ticket) -> int:
        return self.wait(ticket)

    def host_write(self, buffer: HostBuffer, address: int, size_bytes: int) -> None:
        ctypes.memmove(buffer, address, size_bytes)

    def host_read(self, address: int, buffer: HostBuffer, size_bytes: int) -> None:
        ctypes.memmove(address, buffer, size_bytes)

    def host_allocate(self, size_bytes: int) -> HostBuffer:
        buffer = ctypes.create_string_buffer(size_bytes)
        self.buffers[ctypes.addressof(buffer)] = buffer
        self._order.append(ctypes.addressof(buffer))
        return HostBuffer(ctypes.addressof(buffer))

    def host_free(self, buffer: HostBuffer) -> None:
        del self.buffers[buffer]

    def host_pack(self) -> dict[HostBuffer, HostBuffer]:
        """Move every buffer that follows a freed one, so that any address stored elsewhere becomes invalid."""
        assert not self.pending
        old, order = self.buffers, self._order
        kept = next((n for n, place in enumerate(order) if place not in old), len(order))
        self.buffers, self._order = {place: old[place] for place in order[:kept]}, order[:kept]
        leaving = {place: buffer for place, buffer in old.items() if place not in self.buffers}
        moved = {HostBuffer(place): self.host_allocate(len(buffer)) for place, buffer in leaving.items()}
        for place, buffer in leaving.items():
            ctypes.memmove(moved[HostBuffer(place)], buffer, len(buffer))
        return moved

    def host_fit(self, free_bytes: int) -> None:
        pass

    def trim(self) -> None:
        pass

    def usage(self) -> Usage:
        return Usage(
            granted_bytes=self.granted_bytes, used_bytes=self.used_bytes, high_water_bytes=self.high_water_bytes
        )

    def reset_high_water(self) -> None:
        self.high_water_bytes = self.used_bytes

    def _enqueue(self, target: int, source: int, size_bytes: int) -> Ticket:
        assert target
        assert source
        self._tickets += 1
        self.pending.append((self._tickets, target, source, size_bytes))
        self.copied_bytes += size_bytes
        return Ticket(self._tickets)
