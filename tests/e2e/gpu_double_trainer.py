"""A trainer that computes on the CPU although its device is a GPU: its driver is a double (test_gpu_double.py)."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from indb_tensile.device.device import Device
from indb_tensile.executor.run.open_device import OpenDevice, open_device
from worker import trainer
from worker.training import run


class _Again:
    """An iteration as its graph would do it: the host goes through it, and what it has then is accounted for once."""

    def __init__(self, queue: Callable[[], None], device: Device) -> None:
        self._queue = queue
        self._device = device
        self._home_bytes = device.usage().used_bytes

    def launch(self) -> None:
        passing_bytes = self._device.usage().used_bytes - self._home_bytes
        self._device.move(passing_bytes, 0)
        self._queue()
        self._device.move(0, passing_bytes)

    def close(self) -> None:
        pass


class _Graphs:
    """Where the host computes, nothing can be recorded without doing it: it is only remembered."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def record(self, queue: Callable[[], None]) -> _Again:
        return _Again(queue, self._device)


@contextmanager
def _opened(*arguments: Any) -> Iterator[OpenDevice]:
    with open_device(*arguments) as found:
        yield replace(found, graphs=_Graphs(found.device))


def main() -> int:
    """What a user's trainer runs, but for where torch computes."""
    vars(run).update(torch_device=lambda _: torch.device("cpu"), open_device=_opened)
    return trainer.main()
