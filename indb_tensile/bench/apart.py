"""PyTorch's own ways to train, in a process of their own: they take turns with ours on one GPU.

A process has one allocator for a GPU's memory: ours is served from a job's regions, the rivals' is torch's own.
Turns are timed where they run, so what passes between the processes is in no time.
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

from indb_tensile.bench.allocations import Memory, measure_memory
from indb_tensile.bench.rivals import Here, Torch, Values
from indb_tensile.bench.transfers import TorchTransfers
from indb_tensile.bench.trial import Subject
from indb_tensile.errors import DeviceError
from indb_tensile.executor.opening import settle_results

T = TypeVar("T")
Ways = Callable[[Torch], Iterator[Here]]  # what can be made of one module


class Elsewhere:
    """One process that is asked, one thing after another, as long as this is open."""

    def __init__(self, place: torch.device, *begun: Any) -> None:
        """It computes at that place, and calls the first of `begun`, where there is one, with the others."""
        context = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(1, context, initializer=_begin, initargs=(str(place), *begun))

    def ask(self, function: Callable[..., T], *arguments: Any) -> T:
        """What the function of a module answers there. Raises DeviceError where that process is gone."""
        try:
            return self._pool.submit(function, *arguments).result()
        except BrokenProcessPool:
            raise DeviceError(
                "the process of PyTorch's own ways to train ended before its time",
                hint="What it printed says why; a smaller --batch leaves both processes more memory.",
            ) from None

    def __enter__(self) -> "Elsewhere":
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class There:
    """A contender of that process."""

    method: str
    memory: Memory
    number: int
    process: Elsewhere

    def turn(self, iterations: int) -> float:
        """Timed there."""
        return self.process.ask(_turn, self.number, iterations)

    def values(self) -> Values:
        """As they are there."""
        return {name: torch.from_numpy(array) for name, array in self.process.ask(_values, self.number).items()}


@contextmanager
def apart(subject: Callable[[], Subject], ways: Ways, place: torch.device) -> Iterator[list[There]]:
    """The contenders that `ways` makes of the subject over there, each of which has run. Both are sent there."""
    with Elsewhere(place, _gather, subject, ways, place) as process:
        listed = process.ask(_listed)
        yield [There(method=m, memory=memory, number=i, process=process) for i, (m, memory) in enumerate(listed)]


def memory_of(contender: Here, shared: Torch) -> Memory:
    """What it needs, once it has run: by then optimizer state is there and kernels are chosen."""
    contender.iterate()
    return measure_memory(contender.iterate, shared.standing(), shared.place)


# --- over there ----------------------------------------------------------------------------------------------------

_gathered: list[tuple[Here, Memory]] = []


def _begin(place_name: str, function: Callable[..., None] | None = None, *arguments: Any) -> None:
    torch.set_num_threads(1)
    place = torch.device(place_name)
    if place.type == "cuda":
        settle_results(place)
    if function is not None:
        function(*arguments)


def _gather(subject: Callable[[], Subject], ways: Ways, place: torch.device) -> None:
    shared = Torch(subject(), TorchTransfers(place), place)
    _gathered.extend((one, memory_of(one, shared)) for one in ways(shared))


def _listed() -> list[tuple[str, Memory]]:
    return [(one.method, memory) for one, memory in _gathered]


def _turn(number: int, iterations: int) -> float:
    return _gathered[number][0].turn(iterations)


def _values(number: int) -> dict[str, np.ndarray[Any, Any]]:
    return {name: tensor.numpy() for name, tensor in _gathered[number][0].values().items()}
