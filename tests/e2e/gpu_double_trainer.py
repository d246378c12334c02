"""A trainer whose device is a GPU with a double of its driver, but which computes on the CPU (test_gpu_double.py)."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from indb_tensile.device.device import Device
from indb_tensile.executor.run.open_device import OpenDevice, open_device
from worker import trainer
from worker.training import run


class _FakeCudaGraph:
    """A recorded iteration. A launch runs the iteration on the host again, and accounts for its transient memory
    once, like the launch of a CUDA graph.
    """

    def __init__(self, queue: Callable[[], None], device: Device) -> None:
        self._queue = queue
        self._device = device
        self._home_bytes = device.usage().used_bytes

    def launch(self) -> None:
        transient_bytes = self._device.usage().used_bytes - self._home_bytes
        self._device.move(transient_bytes, 0)
        self._queue()
        self._device.move(0, transient_bytes)

    def close(self) -> None:
        pass


class _FakeGraphs:
    """Records iterations. The host cannot record computation without executing it, so only the function is stored."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def record(self, queue: Callable[[], None]) -> _FakeCudaGraph:
        return _FakeCudaGraph(queue, self._device)


@contextmanager
def _open_device(*arguments: Any) -> Iterator[OpenDevice]:
    with open_device(*arguments) as opened:
        yield replace(opened, graphs=_FakeGraphs(opened.device))


def main() -> int:
    """Run the real trainer, except that torch computes on the CPU."""
    vars(run).update(torch_device=lambda _: torch.device("cpu"), open_device=_open_device)
    return trainer.main()
