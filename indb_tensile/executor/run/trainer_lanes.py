"""The device's copy lanes as one trainer drives them: remembers what is still under way."""

import torch

from indb_tensile.device.device import Device, HostBuffer, Ticket


class Lanes:
    """Copies through a device, and a way to wait for all of them: lanes are first in, first out."""

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
        """Whether the host writes to the device's memory itself."""
        return self._device.is_host

    def write(self, buffer: HostBuffer, memory: torch.Tensor) -> None:
        """Put these bytes into a buffer that no copy uses, at once."""
        self._device.host_write(buffer, memory.data_ptr(), memory.nbytes)

    def read(self, buffer: HostBuffer, size_bytes: int) -> torch.Tensor:
        """A copy of a buffer's bytes, which no queued copy writes."""
        memory = torch.empty(size_bytes, dtype=torch.uint8)
        self._device.host_read(memory.data_ptr(), buffer, size_bytes)
        return memory

    def drain(self) -> None:
        """Wait until no copy is under way."""
        for ticket in self._last.values():
            self._device.wait(ticket)
        self._last.clear()
