"""Graphs without a GPU: recording runs the iteration and takes back every byte that it changed.

That is what recording means on a GPU: the host goes through the iteration, the device computes nothing. A launch is
the same iteration once more, given what was recorded: the same words to read, the same tensors to return into.
"""

import ctypes
from collections.abc import Callable

import torch

from indb_tensile.device.allocator_shim import ArenaServing
from indb_tensile.executor.run.placer import Placer
from tests.device.memory_device import MemoryDevice


class Rerun:
    """A recorded iteration."""

    def __init__(self, queue: Callable[[], None], device: MemoryDevice, launches: Callable[[], None]) -> None:
        self._queue = queue
        self._launches = launches
        self._device = device
        self.closed = False

    def close(self) -> None:
        assert not self.closed, "a graph is closed twice"
        self.closed = True

    def launch(self) -> None:
        """No host goes through the iteration now, so nobody accounts for what it has on the device."""
        before = self._device.used_bytes
        self._device.accounts = False
        self._queue()
        self._device.accounts = True
        self._device.settle()  # what it copies ends with it
        assert self._device.used_bytes == before
        self._launches()


class RewindingGraphs:
    """Records on a device in this process's memory whose tensors lie in the block of `serving`."""

    def __init__(self, device: MemoryDevice, serving: ArenaServing) -> None:
        self.device = device
        self.serving = serving
        self.placer: Placer | None = None
        self.made: list[Rerun] = []
        self.recorded = 0
        self.begins: Callable[[], None] = lambda: None  # called where a recording does
        self.ends: Callable[[], None] = lambda: None
        self.launches: Callable[[], None] = lambda: None  # and where a launch ends

    def record(self, queue: Callable[[], None]) -> Rerun:
        assert self.placer is not None
        assert not self.device.pending, "copies are under way where recording begins"
        size_bytes = max(one.offsets.size_bytes for one in self.placer._placed)
        ranges = [(self.serving.block, size_bytes)]
        ranges += [(address, len(buffer)) for address, buffer in self.device.buffers.items()]
        saved = [(address, ctypes.string_at(address, length)) for address, length in ranges]
        random = torch.get_rng_state()
        self.recorded += 1
        try:
            self.begins()
            queue()
            self.ends()
        finally:
            self.device.pending.clear()
            for address, content in saved:
                ctypes.memmove(address, content, len(content))
            torch.set_rng_state(random)
        self.made.append(Rerun(queue, self.device, lambda: self.launches()))
        return self.made[-1]
