"""The device as a trainer sees it: an account of bytes, and two copy lanes to the host.

One interface, several back ends behind it: the emulated device of the native library, a GPU, and a small
in-memory fake for tests, which run through the same suite.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NewType, Protocol

Ticket = NewType("Ticket", int)
HostBuffer = NewType("HostBuffer", int)  # an address in the pinned host pool


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

    def host_allocate(self, size_bytes: int) -> HostBuffer:
        """Take a buffer from the host pool; raises DeviceMemoryError when its limit is reached."""
        ...

    def host_free(self, buffer: HostBuffer) -> None:
        """Give a buffer back to the host pool."""
        ...

    def usage(self) -> Usage:
        """What the ledger says of this job."""
        ...

    def reset_high_water(self) -> None:
        """Start a new high-water mark at the present use."""
        ...


Clock = Callable[[], int]  # monotonic nanoseconds
