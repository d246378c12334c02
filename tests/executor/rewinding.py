"""A double of CUDA graphs without a GPU: recording runs the iteration and then restores every byte it changed.

Recording on a GPU has the same effect: the host executes the iteration, the device computes nothing. A launch runs
the iteration again with the recorded arguments: the same words to read, and the same tensors for the results.
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
        """Run the recorded iteration without counting memory: on a GPU no host code runs at a launch."""
        before = self._device.used_bytes
        self._device.accounts = False
        self._queue()
        self._device.accounts = True
        self._device.settle()  # every copy of the launch ends with it
        assert self._device.used_bytes == before
        self._launches()


class RewindingGraphs:
    """Records on a device in this process's memory. Its tensors lie in the block of `serving`."""

    def __init__(self, device: MemoryDevice, serving: ArenaServing) -> None:
        self.device = device
        self.serving = serving
        self.placer: Placer | None = None
        self.made: list[Rerun] = []
        self.recorded = 0
        self.begins: Callable[[], None] = lambda: None  # called when a recording begins
        self.ends: Callable[[], None] = lambda: None
        self.launches: Callable[[], None] = lambda: None  # called when a launch ends

    def record(self, queue: Callable[[], None]) -> Rerun:
        assert self.placer is not None
        assert not self.device.pending, "copies are pending at the start of a recording"
        size_bytes = max(program.offsets.size_bytes for program in self.placer._placed)
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
