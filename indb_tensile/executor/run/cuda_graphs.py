"""Whole iterations as CUDA graphs: what an iteration queues is recorded once, and launched as one from then on.

The host then spends on an iteration what it spends on one launch, whatever the number of operators. Recording
computes nothing: the driver keeps kernels and copies with their addresses and arguments. So all of these have to stay
the same (repeats.py sees to it), and what changes from one iteration to the next is read from memory: the batch from
its pinned buffers, the learning rate from a word on the device, random numbers from words that torch advances with
each launch, which is why torch's own graph is used and not the driver's. Copies go to streams of their own that fork
from the computing one and join it again (native/cuda/cuda_device.hpp): a graph keeps them beside the computation.

Sources: CUDA programming guide, CUDA graphs, "Stream Capture"; `torch.cuda.CUDAGraph` of torch 2.11 to 2.13, which
asks a pluggable allocator for no pool of its own: the memory recorded is what the plan placed.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Protocol

import torch

from indb_tensile import _native
from indb_tensile.device.allocator_shim import Serving
from indb_tensile.device.cuda import CudaDevice

_WORDS_BYTES = 1 << 20  # two pieces for each attention: more than a thousand of them
_PIECE_BYTES = 512  # that native/device/script.cpp lends at a time


class Graph(Protocol):
    """One recorded iteration."""

    def launch(self) -> None:
        """Do it once more; when it returns the device has done it."""
        ...

    def close(self) -> None:
        """It is launched no more."""
        ...


class Graphs(Protocol):
    """Records iterations."""

    def record(self, queue: Callable[[], None]) -> Graph:
        """What `queue` gives the device, none of which is done. Nothing may be under way there.

        Whatever it raises, the device goes on as if nothing had been recorded.
        """
        ...


class Capture(Protocol):
    """The driver's record of what one stream is given from `begin` to `end`, if nothing fails in between."""

    def begin(self) -> None:
        """From now on the driver records."""
        ...

    def end(self) -> None:
        """It records no more."""
        ...

    def give_up(self) -> None:
        """The same where recording failed, or may have."""
        ...

    def launch(self) -> None:
        """Do what was recorded; when it returns the device has done it."""
        ...

    def close(self) -> None:
        """Forget what was recorded, or was to be."""
        ...


class Words:
    """A little of the device's memory, for words that an iteration asks for only while it is recorded.

    Attention draws the seed of its dropout on the host, or, while it is recorded, into two words on the device
    (aten/src/ATen/native/transformers/cuda/attention.cu). No plan has a place for these, and every launch uses them.
    """

    def __init__(self, device: CudaDevice, serving: Serving) -> None:
        self._device = device
        self._serving = serving
        self._address = device.allocate_outside(_WORDS_BYTES)
        # The first piece stays free: its address is that of the whole, which is given back by it.
        self._first = self._address + _PIECE_BYTES

    @contextmanager
    def lent(self) -> Iterator[None]:
        """A context manager around the iteration that is recorded."""
        if not self._address:  # what the job may have beside its regions is used up
            yield
            return
        self._serving.lend(self._first, _WORDS_BYTES - _PIECE_BYTES)
        try:
            yield
        finally:
            self._serving.lend(0, 0)

    def close(self) -> None:
        """Give the words back. No launch may use them any more."""
        if self._address:
            self._serving.lend(self._first, 0)
            self._device.free_outside(self._address)
            self._address = 0


class CudaGraphs:
    """Records what a device computes and copies, each time by a capture that `make` makes.

    `serving` is asked for the tensors of an iteration; without one none has words of its own.
    """

    def __init__(self, device: CudaDevice, make: Callable[[], Capture], serving: Serving | None = None) -> None:
        self._device = device
        self._make = make
        self._serving = serving

    def record(self, queue: Callable[[], None]) -> "CudaGraph":
        """See `Graphs`. Raises DeviceError, or torch's RuntimeError, for what cannot be recorded."""
        self._device.drain()
        gc.collect()  # what goes by itself while the iteration is recorded would seem to be its own
        words = None if self._serving is None else Words(self._device, self._serving)
        capture = self._make()
        try:
            capture.begin()
            self._device.begin_recording()
            with nullcontext() if words is None else words.lent():
                queue()
            copied = self._device.end_recording()
            capture.end()
        except BaseException:
            capture.give_up()
            self._device.give_up_recording()
            self._device.check_context()  # what befell the device goes before what could not be recorded
            capture.close()
            if words is not None:
                words.close()
            raise
        return CudaGraph(capture, self._device, copied, words)


class CudaGraph:
    """A recorded iteration of one device."""

    def __init__(
        self, capture: Capture, device: CudaDevice, copied: tuple[int, int], words: Words | None = None
    ) -> None:
        self._words = words
        self._capture = capture
        self._device = device
        self._copied = copied

    def launch(self) -> None:
        """See `Graph`."""
        self._capture.launch()
        self._device.count_copied(*self._copied)

    def close(self) -> None:
        """See `Graph`."""
        self._capture.close()
        if self._words is not None:
            self._words.close()


class TorchCapture:
    """Torch's graph of its current stream: random numbers are drawn anew in each launch."""

    def __init__(self, place: torch.device) -> None:
        self._place = place
        self._stream = torch.cuda.current_stream(place)
        self._graph = torch.cuda.CUDAGraph()

    def begin(self) -> None:
        """See `Capture`. Other threads may go on asking the driver for what it refuses while this one records."""
        with beside_the_regions():  # where torch keeps the seed of a graph
            self._graph.capture_begin(capture_error_mode="thread_local")

    def end(self) -> None:
        """See `Capture`."""
        self._graph.capture_end()

    def give_up(self) -> None:
        """See `Capture`. Where the end fails, torch 2.11 leaves the generator as if it were still being recorded."""
        with suppress(RuntimeError):
            self._graph.capture_end()
        generator = torch.cuda.default_generators[self._place.index or 0]
        generator.graphsafe_set_state(generator.clone_state())

    def launch(self) -> None:
        """See `Capture`."""
        self._graph.replay()
        self._stream.synchronize()

    def close(self) -> None:
        """See `Capture`. Torch 2.13 ends the stream's workspaces with any graph of it, 2.11 does not."""
        self._graph.reset()
        with suppress(RuntimeError):  # whatever befell the device, whoever uses it next is told
            set_libraries_up(self._place)


@contextmanager
def beside_the_regions() -> Iterator[None]:
    """Torch's memory comes from where no plan's block is in its way: for words that outlive every plan."""
    _native.cuda_allocate_beside(True)
    try:
        yield
    finally:
        _native.cuda_allocate_beside(False)


def set_libraries_up(place: torch.device) -> None:
    """Give cuBLAS its workspace for the current stream now, where no plan's block is in its way.

    It would ask for it in the middle of the first iteration, for as long as the process lives: a region that holds
    it is missing to every plan that takes all that its job was granted.
    """
    with beside_the_regions():
        rows = torch.zeros(16, 16, device=place)
        torch.addmm(rows[0], rows, rows)  # by cuBLASLt, whose workspace may be another
        torch.mm(rows, rows)


def rate_word(place: torch.device) -> torch.Tensor:
    """Where an iteration reads its learning rate, recorded or not: kernels on a GPU take it in single precision."""
    if place.type == "cpu":
        return torch.zeros((), dtype=torch.float64)
    with beside_the_regions():
        return torch.zeros((), dtype=torch.float32, device=place)
