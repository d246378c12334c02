"""Records whole iterations as CUDA graphs, so that one launch replaces the launches of all operators of an iteration.

The host then spends the time of one launch on an iteration, whatever the number of operators. Recording computes
nothing: the driver keeps kernels and copies with their addresses and arguments. All of these must stay the same
between launches, which graph_cache.py checks. Values that change from one iteration to the next are read from memory:
the batch from its pinned buffers, the learning rate from a word on the device, and random numbers from words that
torch advances with each launch. These random-number words are the reason to use torch's graph class instead of the
driver's. Copies run on streams that fork from the computing stream and join it again (native/cuda/cuda_device.hpp),
so a graph keeps them in parallel with computation.

Sources: CUDA programming guide, CUDA graphs, "Stream Capture"; `torch.cuda.CUDAGraph` of torch 2.11 to 2.13, which
requests no pool from a pluggable allocator, so that recorded addresses are those that the plan placed.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Protocol

import torch

from indb_tensile import _native
from indb_tensile.device.allocator_shim import ArenaServing
from indb_tensile.device.cuda import CudaDevice

_WORDS_BYTES = 1 << 20  # two pieces for each attention operator: enough for more than a thousand
_PIECE_BYTES = 512  # the unit in which native/device/script.cpp lends memory


class Graph(Protocol):
    """One recorded iteration."""

    def launch(self) -> None:
        """Run the recorded iteration once more, and return when the device has finished it."""
        ...

    def close(self) -> None:
        """Free the graph, which is not launched again."""
        ...


class Graphs(Protocol):
    """Records iterations."""

    def record(self, queue: Callable[[], None]) -> Graph:
        """Record the work that `queue` gives the device, without executing any of it.

        No work may be under way on the device. If an exception is raised, the device continues as if nothing had been
        recorded.
        """
        ...


class GraphRecording(Protocol):
    """The driver's record of the work that one stream receives from `begin` to `end`, if nothing fails in between."""

    def begin(self) -> None:
        """Start recording."""
        ...

    def end(self) -> None:
        """End recording."""
        ...

    def give_up(self) -> None:
        """End recording after a failure, or when recording may have failed."""
        ...

    def launch(self) -> None:
        """Run the recorded work, and return when the device has finished it."""
        ...

    def close(self) -> None:
        """Free the recorded work, or abandon the recording."""
        ...


class RecordingWords:
    """A small block of device memory for words that an iteration allocates only while it is recorded.

    Attention draws the seed of its dropout on the host, or, while it is recorded, into two words on the device
    (aten/src/ATen/native/transformers/cuda/attention.cu). No plan has a place for these words, and every launch uses
    them.
    """

    def __init__(self, device: CudaDevice, serving: ArenaServing) -> None:
        self._device = device
        self._serving = serving
        self._address = device.allocate_outside(_WORDS_BYTES)
        # The first piece stays unused: its address is that of the whole block, by which the block is freed.
        self._first = self._address + _PIECE_BYTES

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Return a context manager that serves words from this block while an iteration is recorded."""
        if not self._address:  # the memory that the job may use outside its regions is used up
            yield
            return
        self._serving.lend(self._first, _WORDS_BYTES - _PIECE_BYTES)
        try:
            yield
        finally:
            self._serving.lend(0, 0)

    def close(self) -> None:
        """Free the words. No launch may use them afterwards."""
        if self._address:
            self._serving.lend(self._first, 0)
            self._device.free_outside(self._address)
            self._address = 0


class CudaGraphs:
    """Records the computation and copies of a device, with a new capture from `make` for each recording.

    `serving` serves the tensors of an iteration. Without `serving`, no memory is set aside for words.
    """

    def __init__(
        self, device: CudaDevice, make: Callable[[], GraphRecording], serving: ArenaServing | None = None
    ) -> None:
        self._device = device
        self._make = make
        self._serving = serving

    def record(self, queue: Callable[[], None]) -> "CudaGraph":
        """See `Graphs`. Raises DeviceError, or torch's RuntimeError, for work that cannot be recorded."""
        self._device.drain()
        gc.collect()  # otherwise garbage freed during the recording would appear to be the iteration's own frees
        words = None if self._serving is None else RecordingWords(self._device, self._serving)
        capture = self._make()
        self._device.hold_regions()
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
            self._device.check_context()  # an error of the device takes precedence over an error of the recording
            capture.close()
            if words is not None:
                words.close()
            raise
        finally:
            self._device.let_regions_change()
        return CudaGraph(capture, self._device, copied, words)


class CudaGraph:
    """A recorded iteration of one device."""

    def __init__(
        self,
        capture: GraphRecording,
        device: CudaDevice,
        copied: tuple[int, int],
        words: RecordingWords | None = None,
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
    """Torch's graph of its current stream. Each launch draws new random numbers."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.current_stream(device)
        self._graph = torch.cuda.CUDAGraph()

    def begin(self) -> None:
        """See `GraphRecording`. Other threads may still make calls to the driver that recording forbids."""
        with allocate_outside_regions():  # torch keeps the seed of a graph there
            self._graph.capture_begin(capture_error_mode="thread_local")

    def end(self) -> None:
        """See `GraphRecording`."""
        self._graph.capture_end()

    def give_up(self) -> None:
        """See `GraphRecording`.

        If ending fails, torch 2.11 leaves the generator in its recording state, so its state is reset.
        """
        with suppress(RuntimeError):
            self._graph.capture_end()
        generator = torch.cuda.default_generators[self._device.index or 0]
        generator.graphsafe_set_state(generator.clone_state())

    def launch(self) -> None:
        """See `GraphRecording`."""
        self._graph.replay()
        self._stream.synchronize()

    def close(self) -> None:
        """See `GraphRecording`. Torch 2.13 frees the stream's workspaces with any of its graphs; 2.11 does not."""
        self._graph.reset()
        with suppress(RuntimeError):  # the next use of the device reports an error of the device
            allocate_workspaces(self._device)


@contextmanager
def allocate_outside_regions() -> Iterator[None]:
    """Allocate torch's memory outside the regions, where it blocks no plan: for words that outlive every plan."""
    _native.cuda_allocate_beside(True)
    try:
        yield
    finally:
        _native.cuda_allocate_beside(False)


def allocate_workspaces(device: torch.device) -> None:
    """Make cuBLAS allocate its workspace for the current stream now, outside the regions.

    Otherwise cuBLAS would allocate the workspace in the middle of the first iteration and keep it for the life of the
    process. No plan that uses the job's whole grant could then use the region that holds the workspace.
    """
    with allocate_outside_regions():
        rows = torch.zeros(16, 16, device=device)
        torch.addmm(rows[0], rows, rows)  # runs in cuBLASLt, which may have a separate workspace
        torch.mm(rows, rows)


def learning_rate_tensor(device: torch.device) -> torch.Tensor:
    """Return the tensor from which iterations, recorded or not, read their learning rate.

    Kernels on a GPU take the learning rate in single precision.
    """
    if device.type == "cpu":
        return torch.zeros((), dtype=torch.float64)
    with allocate_outside_regions():
        return torch.zeros((), dtype=torch.float32, device=device)
