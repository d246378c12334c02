"""A device whose copies take exactly the time of its link, by its own clock."""

from dataclasses import dataclass, field

from indb_tensile.device.device import HostBuffer, Ticket
from indb_tensile.scheduler.link import Link


@dataclass
class FakeLink:
    """The part of a device that copies. It moves no bytes."""

    link: Link
    now_ns: int = 0
    free_ns: dict[str, int] = field(default_factory=lambda: {"out": 0, "in": 0})
    ends_ns: list[int] = field(default_factory=list)
    allocated: set[int] = field(default_factory=set)

    def clock_ns(self) -> int:
        return self.now_ns

    def allocate(self, size_bytes: int) -> int:
        address = 64 * len(self.ends_ns) + len(self.allocated) + 1
        self.allocated.add(address)
        return address

    def free(self, address: int) -> None:
        self.allocated.remove(address)

    def host_allocate(self, size_bytes: int) -> HostBuffer:
        return HostBuffer(self.allocate(size_bytes))

    def host_free(self, buffer: HostBuffer) -> None:
        self.free(buffer)

    def copy_out(self, host: HostBuffer, address: int, size_bytes: int) -> Ticket:
        return self._copy("out", self.link.out_ns(size_bytes))

    def copy_in(self, address: int, host: HostBuffer, size_bytes: int) -> Ticket:
        return self._copy("in", self.link.in_ns(size_bytes))

    def wait(self, ticket: Ticket) -> int:
        waited_ns = max(0, self.ends_ns[ticket] - self.now_ns)
        self.now_ns += waited_ns
        return waited_ns

    def _copy(self, direction: str, length_ns: int) -> Ticket:
        self.free_ns[direction] = max(self.now_ns, self.free_ns[direction]) + length_ns
        self.ends_ns.append(self.free_ns[direction])
        return Ticket(len(self.ends_ns) - 1)
