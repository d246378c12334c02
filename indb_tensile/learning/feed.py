"""Gathers the rows of the next batch while the device works on this one.

Batches come in the order that is asked for and with the bits of the parts' rows. A second thread gathers at most one
batch ahead, into the other of two buffers. It copies with numpy, on itself alone: neither the number of a job's
threads nor torch's allocator, which a plan watches, sees it.
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

ALIGNMENT_BYTES = 64  # of torch's own tensors on the host: kernels choose their path by it

Arrays = tuple[np.ndarray[Any, Any], ...]
Batch = tuple[Tensor, ...]


@dataclass(slots=True, kw_only=True)
class Waiting:
    """How long training has waited for batches, and how many batches there were."""

    waited_s: float = 0.0
    latest_s: float = 0.0  # for the latest
    batches: int = 0

    def add(self, waited_s: float) -> None:
        """One more batch."""
        self.waited_s += waited_s
        self.latest_s = waited_s
        self.batches += 1


@dataclass(slots=True)
class _Buffers:
    """Room for one batch: as arrays to the thread that gathers, as tensors to the one that trains."""

    rows: int
    tensors: Batch
    arrays: Arrays = field(init=False)

    def __post_init__(self) -> None:
        self.arrays = tuple(tensor.numpy() for tensor in self.tensors)

    def first(self, rows: int) -> Batch:
        return tuple(tensor[:rows] for tensor in self.tensors)


class Feed:
    """One second thread, and two buffers for each set of parts; `close` ends the thread."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="batches")
        self._buffers: dict[tuple[int, ...], tuple[_Buffers, _Buffers]] = {}
        self.waiting = Waiting()

    def batches(self, parts: Batch, orders: Iterable[Tensor]) -> Generator[tuple[Tensor, Batch]]:
        """For each order of row numbers: these, and a batch of those rows of every part.

        A batch holds until the next one is asked for. Whoever stops early closes the iterator.
        """
        sources = tuple(part.detach().contiguous().numpy() for part in parts)
        upcoming: Future[Batch] | None = None
        following, numbers = iter(orders), 0
        order = next(following, None)
        try:
            while order is not None:
                started_s = time.monotonic()
                if upcoming is None:
                    upcoming = self._begin(parts, sources, order, numbers)
                batch = upcoming.result()
                self.waiting.add(time.monotonic() - started_s)
                rows, numbers = order, numbers + 1
                order = next(following, None)
                upcoming = None if order is None else self._begin(parts, sources, order, numbers)
                yield rows, batch
        finally:
            if upcoming is not None and not upcoming.cancel():
                upcoming.exception()  # no thread may write to buffers that another pass takes

    def close(self) -> None:
        """End the thread, after what it has begun."""
        self._thread.shutdown(cancel_futures=True)
        self._buffers.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _begin(self, parts: Batch, sources: Arrays, order: Tensor, number: int) -> "Future[Batch]":
        buffers = self._room(parts, len(order))[number % 2]
        return self._thread.submit(_gather, sources, order.numpy(), buffers)

    def _room(self, parts: Batch, rows: int) -> tuple[_Buffers, _Buffers]:
        """The buffers for these parts; a pass begins with its largest batches."""
        key = tuple(part.data_ptr() for part in parts)
        found = self._buffers.get(key)
        if found is None or found[0].rows < rows:
            found = self._buffers[key] = (_made(parts, rows), _made(parts, rows))
        return found


def _gather(sources: Arrays, order: np.ndarray[Any, Any], buffers: _Buffers) -> Batch:
    for source, array in zip(sources, buffers.arrays, strict=True):
        # Every number is a row's: "clip" only keeps numpy from gathering into memory of its own first.
        np.take(source, order, axis=0, out=array[: len(order)], mode="clip")
    return buffers.first(len(order))


def _made(parts: Batch, rows: int) -> _Buffers:
    return _Buffers(rows, tuple(_aligned(part, rows) for part in parts))


def _aligned(part: Tensor, rows: int) -> Tensor:
    """Memory for so many rows of a part that is none of torch's: the plan of a job's device does not count it."""
    size_bytes = rows * part[:1].numel() * part.element_size()
    memory = np.empty(size_bytes + ALIGNMENT_BYTES, dtype=np.uint8)
    start = -memory.ctypes.data % ALIGNMENT_BYTES
    flat = torch.from_numpy(memory[start : start + size_bytes]).view(part.dtype)
    return flat.reshape(rows, *part.shape[1:])
