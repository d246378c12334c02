"""Gathers the rows of the next batch on a second thread while the device works on the current batch.

Batches come in the requested order, with the bits of the parts' rows. The second thread is at most one batch ahead
and writes to the other of two buffers. It copies with numpy on its own thread only, so it affects neither the number
of the job's compute threads nor torch's allocator, which a memory plan observes.
"""

import time
from collections.abc import Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

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


@dataclass(slots=True)
class _Buffers:
    """The memory of one batch: as numpy arrays for the gathering thread, as tensors for the training thread."""

    rows: int
    tensors: Batch
    arrays: Arrays = field(init=False)

    def __post_init__(self) -> None:
        self.arrays = tuple(tensor.numpy() for tensor in self.tensors)

    def first(self, rows: int) -> Batch:
        return tuple(tensor[:rows] for tensor in self.tensors)


class BatchPrefetcher:
    """The gathering thread, and two buffers for each set of parts. `close` ends the thread."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="batches")
        self._buffers: dict[tuple[int, ...], tuple[_Buffers, _Buffers]] = {}
        self.waiting = BatchWaitTime()

    def batches(self, parts: Batch, orders: Iterable[Tensor]) -> Generator[tuple[Tensor, Batch]]:
        """Yield each order of row numbers together with a batch of these rows of every part.

        A batch is valid until the next one is requested. A caller that stops early must close the iterator.
        """
        sources = tuple(part.detach().contiguous().numpy() for part in parts)
        upcoming: Future[Batch] | None = None
        following, number = iter(orders), 0
        order = next(following, None)
        try:
            while order is not None:
                started_s = time.monotonic()
                if upcoming is None:
                    upcoming = self._submit(parts, sources, order, number)
                batch = upcoming.result()
                self.waiting.add(time.monotonic() - started_s)
                rows, number = order, number + 1
                order = next(following, None)
                upcoming = None if order is None else self._submit(parts, sources, order, number)
                yield rows, batch
        finally:
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

    def _submit(self, parts: Batch, sources: Arrays, order: Tensor, number: int) -> "Future[Batch]":
        buffers = self._buffers_for(parts, len(order))[number % 2]
        return self._thread.submit(_gather, sources, order.numpy(), buffers)

    def _buffers_for(self, parts: Batch, rows: int) -> tuple[_Buffers, _Buffers]:
        """Return two buffers for these parts.

        Larger buffers are allocated only at the start of a pass, because a pass begins with its largest batches.
        """
        key = tuple(part.data_ptr() for part in parts)
        buffers = self._buffers.get(key)
        if buffers is None or buffers[0].rows < rows:
            buffers = self._buffers[key] = (_allocate(parts, rows), _allocate(parts, rows))
        return buffers


def _gather(sources: Arrays, order: np.ndarray[Any, Any], buffers: _Buffers) -> Batch:
    for source, array in zip(sources, buffers.arrays, strict=True):
        # Every index is valid. "clip" only prevents numpy from gathering into a temporary array first.
        np.take(source, order, axis=0, out=array[: len(order)], mode="clip")
    return buffers.first(len(order))


def _allocate(parts: Batch, rows: int) -> _Buffers:
    return _Buffers(rows, tuple(_aligned_tensor(part, rows) for part in parts))


def _aligned_tensor(part: Tensor, rows: int) -> Tensor:
    """Allocate memory for `rows` rows of a part outside torch's allocator.

    The plan of a job's device therefore does not count this memory.
    """
    size_bytes = rows * part[:1].numel() * part.element_size()
    memory = np.empty(size_bytes + ALIGNMENT_BYTES, dtype=np.uint8)
    start = -memory.ctypes.data % ALIGNMENT_BYTES
    flat = torch.from_numpy(memory[start : start + size_bytes]).view(part.dtype)
    return flat.reshape(rows, *part.shape[1:])
