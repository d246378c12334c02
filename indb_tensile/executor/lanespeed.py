"""How fast a device's lanes copy: each alone, both at once, and how long the smallest copy takes.

What the cost model needs of a link (scheduler/link.py), measured in pinned memory as swaps use it. It takes a few
tenths of a second on a link of PCI Express.
"""

from time import perf_counter_ns

from indb_tensile.executor.device import ArenaDevice, HostBuffer, Ticket
from indb_tensile.scheduler.link import Link

_COPY_BYTES = 64 << 20
_LEAST_BYTES = 4096
_ROUNDS = 3
_COPIES = 4
_NS_PER_S = 1_000_000_000


def measure_link(device: ArenaDevice, copy_bytes: int = _COPY_BYTES) -> Link:
    """The best of a few rounds counts: others may be using the link.

    The device needs `2 * copy_bytes` of memory and of its host pool, and nothing else going on in this process.
    """
    lanes = _Lanes(device, copy_bytes)
    try:
        out_ns, in_ns = (lanes.best_ns(copy_bytes, out=out, back=not out) for out in (True, False))
        both_ns = lanes.best_ns(copy_bytes, out=True, back=True)
        least_ns = lanes.best_ns(_LEAST_BYTES, out=True, back=False)
    finally:
        lanes.close()
    return Link(
        out_bytes_per_s=max(1, copy_bytes * _NS_PER_S // out_ns),
        in_bytes_per_s=max(1, copy_bytes * _NS_PER_S // in_ns),
        per_copy_ns=least_ns,
        duplex=min(1.0, max(0.5, max(out_ns, in_ns) / both_ns)),
    )


class _Lanes:
    """Memory at both ends of both lanes."""

    def __init__(self, device: ArenaDevice, copy_bytes: int) -> None:
        self._device = device
        self._tensors = [device.allocate(copy_bytes) for _ in range(2)]
        self._hosts: list[HostBuffer] = [device.host_allocate(copy_bytes) for _ in range(2)]

    def best_ns(self, size_bytes: int, *, out: bool, back: bool) -> int:
        """Nanoseconds for one copy in each of these directions."""
        return max(1, min(self._round_ns(size_bytes, out=out, back=back) for _ in range(_ROUNDS)) // _COPIES)

    def close(self) -> None:
        for tensor, host in zip(self._tensors, self._hosts, strict=True):
            self._device.free(tensor)
            self._device.host_free(host)

    def _round_ns(self, size_bytes: int, *, out: bool, back: bool) -> int:
        start_ns = perf_counter_ns()
        last: list[Ticket] = []
        for _ in range(_COPIES):
            last = []
            if out:
                last.append(self._device.copy_out(self._hosts[0], self._tensors[0], size_bytes))
            if back:
                last.append(self._device.copy_in(self._tensors[1], self._hosts[1], size_bytes))
        for ticket in last:
            self._device.wait(ticket)
        return perf_counter_ns() - start_ns
