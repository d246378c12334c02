"""The device's copy lanes as one trainer drives them: remembers what is still under way."""

from indb_tensile.executor.device import Device, HostBuffer, Ticket


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

    def drain(self) -> None:
        """Wait until no copy is under way."""
        for ticket in self._last.values():
            self._device.wait(ticket)
        self._last.clear()
