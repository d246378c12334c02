"""Gathers the rows of the next batch on a second thread while the device works on the current batch.

A small batch of an array in memory is gathered on the training thread, which takes some microseconds. Passing it to
another thread and back takes fifty.

Batches come in the requested order, with the bits of the parts' rows. The second thread is at most one batch ahead
and writes to the other of two sets of buffers. It copies with numpy on its own thread only, so it affects neither the
number of the job's compute threads nor torch's allocator, which a memory plan observes.

The buffers may be those from which the device uploads batches. A row is then copied once on the host, from its table
to pinned memory, on the second thread, and a set is written again only after the upload that reads it has ended.
"""

import time
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np
import torch
from torch import Tensor

from indb_tensile.errors import InvariantError
from indb_tensile.learning.storage.block_cache import ArrayRows, RowSource

PROMPT_S = 1e-3  # a batch for which training waited no longer was ready: passing it between threads takes 50 us
FEW_BYTES = 64 * 1024  # size of a batch that numpy gathers in about twenty microseconds
ALIGNMENT_BYTES = 64  # the alignment of torch's own host tensors; kernels select a code path by alignment

Arrays = tuple[np.ndarray[Any, Any], ...]
Batch = tuple[Tensor, ...]


@dataclass(slots=True, kw_only=True)
class BatchWaitTime:
    """The time that training has waited for batches, and the number of batches."""

    waited_s: float = 0.0
    latest_s: float = 0.0  # for the latest batch
    batches: int = 0

    def add(self, waited_s: float) -> None:
        """Record the waiting time of one more batch."""
        self.waited_s += waited_s
        self.latest_s = waited_s
        self.batches += 1


class UploadMemory(Protocol):
    """Memory from which batches are uploaded: two sets of tensors, of which uploads read one."""

    def rooms(self, parts: Batch, rows: int) -> Sequence[Sequence[Tensor | None]]:
        """Return two sets of tensors of `rows` rows of each part; None for a part that is not uploaded."""
        ...

    def wait_until_read(self, number: int) -> None:
        """Wait until no upload reads this set."""
        ...


class OrdinaryMemory:
    """The memory of batches that are not uploaded: no set is read after its batch is given back."""

    def rooms(self, parts: Batch, rows: int) -> Sequence[Sequence[Tensor | None]]:
        """Return no tensors."""
        del rows
        return ((None,) * len(parts),) * 2

    def wait_until_read(self, number: int) -> None:
        """Return at once."""


@dataclass(slots=True)
class _Buffers:
    """The memory of one batch: as numpy arrays for the gathering thread, as tensors for the training thread."""

    rows: int
    tensors: Batch
    arrays: Arrays = field(init=False)

    def __post_init__(self) -> None:
        self.arrays = tuple(tensor.numpy() for tensor in self.tensors)

    @property
    def size_bytes(self) -> int:
        return sum(array.nbytes for array in self.arrays)

    def first(self, rows: int) -> Batch:
        return tuple(tensor[:rows] for tensor in self.tensors)


@dataclass(frozen=True, slots=True)
class _SmallBatch:
    """A batch that is gathered when it is used. It has the methods of a future that are called here."""

    sources: Sequence[RowSource]
    order: np.ndarray[Any, Any]
    buffers: _Buffers

    def result(self) -> Batch:
        return _gather(self.sources, self.order, self.buffers)

    def cancel(self) -> bool:
        return True

    def exception(self) -> None:
        """Nothing has been gathered that could fail."""


class BatchPrefetcher:
    """The gathering thread, and two buffers for each set of parts. `close` ends the thread.

    Batches of arrays in memory of up to `few_bytes` are not passed to the thread.
    Passes over different parts may share their memory, so a pass begins after the previous one has ended.
    """

    def __init__(self, memory: UploadMemory | None = None, *, few_bytes: int = FEW_BYTES) -> None:
        self._memory = memory or OrdinaryMemory()
        self._few_bytes = few_bytes
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="batches")
        self._buffers: dict[tuple[tuple[int, torch.Size], ...], tuple[_Buffers, _Buffers]] = {}
        self._upcoming: Future[Batch] | _SmallBatch | None = None
        self.waiting = BatchWaitTime()

    def next_batch(self, *, wait: bool = False) -> Batch | None:
        """Return the batch after the present one, if it has been gathered already. It stays the next batch.

        With `wait`, wait for it, unless training has waited for the present batch: then gathering takes longer than
        the device. A small batch is gathered when it is used.
        """
        upcoming = self._upcoming
        if not isinstance(upcoming, Future):
            return None
        if not upcoming.done() and (not wait or self.waiting.latest_s > PROMPT_S):
            return None
        return None if upcoming.exception() else upcoming.result()  # `batches` raises the exception

    def batches(
        self,
        parts: Batch | Callable[[Tensor], Batch],
        orders: Iterable[Tensor],
        sources: Sequence[RowSource] | None = None,
    ) -> Generator[tuple[Tensor, Batch]]:
        """Yield each order of row numbers together with a batch of these rows of every part.

        The rows are taken from `sources`, if they are given, instead of from the parts' memory. If batches have
        different shapes, `parts` returns tensors with the shapes of the rows of a batch. A batch is valid
        until the next one is requested. A caller that stops early must close the iterator.
        """
        parts_of: Callable[[Tensor], Batch] = parts if callable(parts) else lambda _: parts
        if sources is None:
            if callable(parts):
                raise InvariantError("batches of different shapes need sources")
            sources = tuple(ArrayRows(part.detach().contiguous().numpy()) for part in parts)
        upcoming: Future[Batch] | _SmallBatch | None = None
        on_this_thread = all(source.in_memory for source in sources)
        following, number = iter(orders), 0
        order = next(following, None)
        try:
            while order is not None:
                started_s = time.monotonic()
                if upcoming is None:
                    upcoming = self._submit(parts_of(order), sources, order, number, on_this_thread=on_this_thread)
                batch = upcoming.result()
                self.waiting.add(time.monotonic() - started_s)
                rows, number = order, number + 1
                order = next(following, None)
                self._upcoming = upcoming = (
                    None
                    if order is None
                    else self._submit(parts_of(order), sources, order, number, on_this_thread=on_this_thread)
                )
                yield rows, batch
        finally:
            self._upcoming = None
            if upcoming is not None and not upcoming.cancel():
                upcoming.exception()  # wait: the thread must not write to buffers that another pass uses

    def close(self) -> None:
        """End the thread after its current batch."""
        self._thread.shutdown(cancel_futures=True)
        self._buffers.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _submit(
        self, parts: Batch, sources: Sequence[RowSource], order: Tensor, number: int, *, on_this_thread: bool
    ) -> "Future[Batch] | _SmallBatch":
        buffers = self._buffers_for(parts, len(order))[number % 2]
        self._memory.wait_until_read(number % 2)
        if on_this_thread and buffers.size_bytes <= self._few_bytes:
            return _SmallBatch(sources, order.numpy(), buffers)
        return self._thread.submit(_gather, sources, order.numpy(), buffers)

    def _buffers_for(self, parts: Batch, rows: int) -> tuple[_Buffers, _Buffers]:
        """Return two buffers for these parts.

        Larger buffers for rows of a shape are allocated only for its first batch of a pass, which is its largest.
        """
        key = tuple((part.data_ptr(), part.shape[1:]) for part in parts)
        buffers = self._buffers.get(key)
        if buffers is None or buffers[0].rows < rows:
            first, second = (_allocate(parts, rows, room) for room in self._memory.rooms(parts, rows))
            buffers = self._buffers[key] = (first, second)
        return buffers


def _gather(sources: Sequence[RowSource], order: np.ndarray[Any, Any], buffers: _Buffers) -> Batch:
    for source, array in zip(sources, buffers.arrays, strict=True):
        source.take(order, array[: len(order)])
    return buffers.first(len(order))


def _allocate(parts: Batch, rows: int, room: Sequence[Tensor | None]) -> _Buffers:
    """Return buffers in the room for uploads, and in ordinary memory for parts that have none there."""
    return _Buffers(
        rows,
        tuple(
            _aligned_tensor(part, rows) if tensor is None else tensor
            for part, tensor in zip(parts, room, strict=True)
        ),
    )


def _aligned_tensor(part: Tensor, rows: int) -> Tensor:
    """Allocate memory for `rows` rows of a part outside torch's allocator.

    The plan of a job's device therefore does not count this memory.
    """
    size_bytes = rows * part[:1].numel() * part.element_size()
    memory = np.empty(size_bytes + ALIGNMENT_BYTES, dtype=np.uint8)
    start = -memory.ctypes.data % ALIGNMENT_BYTES
    flat = torch.from_numpy(memory[start : start + size_bytes]).view(part.dtype)
    return flat.reshape(rows, *part.shape[1:])
