"""Decodes rows on threads of their own while other work goes on. Rows that are waited for come first.

The network of a training with images is captured, planned and trained meanwhile (pending_images.py). Each row is
decoded once, and the threads end when all rows are.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Protocol

import numpy as np
import numpy.typing as npt

from indb_tensile.errors import InvariantError
from indb_tensile.learning.storage.row_storage import row_blocks

Numbers = npt.NDArray[np.int64]

NAMING_S = 5.0  # time for finding more rows that cannot be decoded, before the error with the first one is raised

_ALIVE_S = 0.5  # time between two signs of life while the last rows are decoded
_WANTED_ROWS = 8  # most rows that a thread takes of those that are waited for: few, so that all threads have some
_OTHER_ROWS = (
    8  # rows that a thread takes of the others: few, because a wait for other rows begins when they are done
)
_WAITING, _TAKEN, _DECODED = range(3)


class RowDecoder(Protocol):
    """Decodes rows by their numbers."""

    def decode(self, numbers: Numbers) -> bool:
        """Decode these rows. Returns whether one of them cannot be decoded. Several threads call it at once."""
        ...

    def fault(self, *, complete: bool) -> Exception:
        """Return the error for the rows that cannot be decoded. With `complete` all rows have been tried."""
        ...


class BackgroundDecoding:
    """Decodes the rows from 0 to `rows`, except those that are `decoded` already.

    If a row cannot be decoded, others are tried for `naming_s` seconds more, so that the error names several of them.
    Every wait then raises that error.
    """

    def __init__(
        self, decoder: RowDecoder, rows: int, decoded: Numbers, threads: int, naming_s: float = NAMING_S
    ) -> None:
        self._states = np.full(rows, _WAITING, np.uint8)
        self._states[decoded] = _DECODED
        self._remaining = int(np.count_nonzero(self._states == _WAITING))
        self._decoder: RowDecoder | None = decoder if self._remaining else None  # it has the bytes of all rows
        self._wanted: deque[Numbers] = deque()
        self._next = 0  # no row before this one waits
        self._pauses = 0
        self._naming_s = naming_s
        self._named_at_s: float | None = None  # when the error is due, after a row could not be decoded
        self._error: BaseException | None = None
        self._closed = False
        self._changed = threading.Condition()
        self._workers = max(1, min(threads, -(-self._remaining // _WANTED_ROWS)))
        self._threads = ThreadPoolExecutor(max_workers=self._workers, thread_name_prefix="decoding")
        for _ in range(self._workers if self._remaining else 0):
            self._threads.submit(self._work, decoder).add_done_callback(self._ended)

    @property
    def decoded(self) -> int:
        """Return how many rows are decoded."""
        return len(self._states) - self._remaining

    def require(self, numbers: Numbers) -> None:
        """Wait until these rows are decoded. Raises the error for rows that cannot be decoded."""
        if not self._remaining and self._error is None:
            return
        with self._changed:
            waiting = np.unique(numbers[self._states[numbers] == _WAITING])
            self._states[waiting] = _TAKEN
            step = max(1, min(_WANTED_ROWS, -(-len(waiting) // self._workers)))
            self._wanted.extend(waiting[start:end] for start, end in row_blocks(len(waiting), step))
            self._changed.notify_all()
            while not self._settled(numbers):
                self._changed.wait(self._until_error_s())

    def finish(self, alive: Callable[[], None] = lambda: None) -> None:
        """Wait until all rows are decoded, and call `alive` meanwhile. Raises the error for rows that cannot be."""
        everything = np.arange(len(self._states), dtype=np.int64)
        while True:
            with self._changed:
                if self._settled(everything):
                    return
                self._changed.wait(min(_ALIVE_S, self._until_error_s() or _ALIVE_S))
            alive()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Decode only what is waited for, so that what runs in this context can be timed."""
        with self._changed:
            self._pauses += 1
        try:
            yield
        finally:
            with self._changed:
                self._pauses -= 1
                self._changed.notify_all()

    def close(self) -> None:
        """End the threads after the rows that they decode now. Does nothing once all rows are decoded."""
        with self._changed:
            self._closed = self._remaining > 0
            self._changed.notify_all()
        self._threads.shutdown()

    def _settled(self, numbers: Numbers) -> bool:
        """Return whether these rows are decoded. Raises the error if it is due, or if they never will be."""
        if self._error is None and self._decoder is not None and self._until_error_s() == 0:
            self._error = self._decoder.fault(complete=False)
            self._changed.notify_all()  # the threads end
        if self._error is not None:
            raise self._error
        decoded = bool((self._states[numbers] == _DECODED).all())
        if self._closed and not decoded:
            raise InvariantError("rows are read whose decoding has been ended")
        return decoded and self._named_at_s is None

    def _until_error_s(self) -> float | None:
        return None if self._named_at_s is None else max(0.0, self._named_at_s - time.monotonic())

    def _work(self, decoder: RowDecoder) -> None:
        while (numbers := self._take()) is not None:
            faulty = decoder.decode(numbers)
            with self._changed:
                self._states[numbers] = _DECODED
                if faulty and self._named_at_s is None:
                    self._named_at_s = time.monotonic() + self._naming_s
                remaining = self._remaining - len(numbers)
                if not remaining:
                    if self._named_at_s is not None:
                        self._error = self._error or decoder.fault(complete=True)
                    self._decoder = None
                self._remaining = remaining  # after the error, because `require` looks at this number first
                self._changed.notify_all()

    def _take(self) -> Numbers | None:
        """Return the next rows to decode; None if there are none, or the decoding is to end."""
        with self._changed:
            while self._remaining and self._error is None and not self._closed:
                if self._wanted:
                    return self._wanted.popleft()
                if not self._pauses:
                    return self._take_others()
                self._changed.wait()
        return None

    def _take_others(self) -> Numbers | None:
        own = self._next + np.flatnonzero(self._states[self._next : self._next + _OTHER_ROWS] == _WAITING)
        while not len(own) and self._next < len(self._states):
            self._next += _OTHER_ROWS
            own = self._next + np.flatnonzero(self._states[self._next : self._next + _OTHER_ROWS] == _WAITING)
        self._states[own] = _TAKEN
        return own if len(own) else None

    def _ended(self, work: Future[None]) -> None:
        """Let the waits raise what a thread was ended by."""
        if error := work.exception():
            with self._changed:
                self._error = self._error or error
                self._changed.notify_all()
