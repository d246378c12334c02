"""Runs PyTorch's own ways to train in a process of their own, in turns with ours on one GPU.

A process has one allocator for a GPU's memory: a job's regions serve ours, and the rivals use torch's own. Turns are
timed in the process that runs them, so no time includes communication between the processes.
"""

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch

from indb_tensile.bench.harness.comparisons.allocations import StepMemory, measure_memory
from indb_tensile.bench.harness.comparisons.rivals import LocalContender, TorchTraining, Values
from indb_tensile.bench.harness.comparisons.torch_transfers import TorchTransfers
from indb_tensile.bench.harness.execution.trial import TrainingSubject
from indb_tensile.errors import DeviceError
from indb_tensile.executor.run.open_device import settle_results

T = TypeVar("T")
ContenderFactory = Callable[[TorchTraining], Iterator[LocalContender]]  # makes contenders of one module


class ContenderProcess:
    """Another process that runs one function after another for as long as this object is open."""

    def __init__(self, place: torch.device, *begun: Any) -> None:
        """Start the process. It computes on `place` and first calls `begun[0]`, if any, with the rest of `begun`."""
        context = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(1, context, initializer=_begin, initargs=(str(place), *begun))

    def ask(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run a function of a module in that process. Raises DeviceError if the process has ended."""
        try:
            return self._pool.submit(function, *arguments).result()
        except BrokenProcessPool:
            raise DeviceError(
                "the process of PyTorch's contenders ended too early",
                hint="Its output says why; a smaller --batch leaves both processes more memory.",
            ) from None

    def __enter__(self) -> "ContenderProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteContender:
    """A contender in that process."""

    method: str
    memory: StepMemory
    number: int
    process: ContenderProcess

    def turn(self, iterations: int) -> float:
        """Run a turn, which is timed there."""
        return self.process.ask(_turn, self.number, iterations)

    def values(self) -> Values:
        """Return copies of its parameters and buffers."""
        return {name: torch.from_numpy(array) for name, array in self.process.ask(_values, self.number).items()}


@contextmanager
def remote_contenders(
    subject: Callable[[], TrainingSubject], ways: ContenderFactory, place: torch.device
) -> Iterator[list[RemoteContender]]:
    """Yield the contenders that `ways` makes of the subject in the other process. Each has run once.

    `subject` and `ways` are sent to the process, so they must be picklable.
    """
    with ContenderProcess(place, _gather, subject, ways, place) as process:
        listed = process.ask(_listed)
        yield [
            RemoteContender(method=m, memory=memory, number=i, process=process)
            for i, (m, memory) in enumerate(listed)
        ]


def memory_of(contender: LocalContender, shared: TorchTraining) -> StepMemory:
    """Run a contender once, so that optimizer state exists and kernels are chosen, and return its memory."""
    contender.iterate()
    return measure_memory(contender.iterate, shared.standing(), shared.place)


# --- in the other process ------------------------------------------------------------------------------------------

_gathered: list[tuple[LocalContender, StepMemory]] = []


def _begin(place_name: str, function: Callable[..., None] | None = None, *arguments: Any) -> None:
    torch.set_num_threads(1)
    place = torch.device(place_name)
    if place.type == "cuda":
        settle_results(place)
    if function is not None:
        function(*arguments)


def _gather(subject: Callable[[], TrainingSubject], ways: ContenderFactory, place: torch.device) -> None:
    shared = TorchTraining(subject(), TorchTransfers(place), place)
    _gathered.extend((contender, memory_of(contender, shared)) for contender in ways(shared))


def _listed() -> list[tuple[str, StepMemory]]:
    return [(contender.method, memory) for contender, memory in _gathered]


def _turn(number: int, iterations: int) -> float:
    return _gathered[number][0].turn(iterations)


def _values(number: int) -> dict[str, np.ndarray[Any, Any]]:
    return {name: tensor.numpy() for name, tensor in _gathered[number][0].values().items()}
