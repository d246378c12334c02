"""The device's copy lanes as one trainer uses them. Remembers the last copy of each lane."""

import torch

from indb_tensile.device.device import Device, HostBuffer, Ticket


class Lanes:
    """Queues copies on a device and can wait for all of them.

    Lanes are first in, first out, so the last copy suffices.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._last: dict[str, Ticket] = {}

    def copy_out(self, host: HostBuffer, address: int, size_bytes: int) -> Ticket:
        """Queue a copy to the host."""
        ticket = self._last["out"] = self._device.copy_out(host, address, size_bytes)
        return ticket

    def copy_in(self, address: int, host: HostBuffer, size_bytes: int) -> Ticket:
        """Queue a copy to the device."""
        ticket = self._last["in"] = self._device.copy_in(address, host, size_bytes)
        return ticket

    @property
    def is_host(self) -> bool:
        """True if the host writes to the device's memory directly."""
        return self._device.is_host

    def write(self, buffer: HostBuffer, memory: torch.Tensor) -> None:
        """Write a tensor's bytes to a buffer that no copy uses, at once."""
        self._device.host_write(buffer, memory.data_ptr(), memory.nbytes)

    def read(self, buffer: HostBuffer, size_bytes: int) -> torch.Tensor:
        """Return a copy of a buffer's bytes. No queued copy may write the buffer."""
        memory = torch.empty(size_bytes, dtype=torch.uint8)
        self._device.host_read(memory.data_ptr(), buffer, size_bytes)
        return memory

    def drain(self) -> None:
        """Wait until no copy is under way."""
        for ticket in self._last.values():
            self._device.wait(ticket)
        self._last.clear()
