"""Hands blocks to a second thread, in order and with a bound, so that blocks are decoded while others arrive.

The decoder's work on large blocks (numpy, SHA-256) releases the interpreter's lock, so both threads run at once.
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Self

_MOST_WAITING = 2  # most blocks that wait for the second thread, in memory


class BackgroundFeed:
    """Calls `take` with one block after another on a thread of its own. Leaving the context waits for all blocks.

    An exception of `take` is raised by a later `put` or when the context is left, and no further block is taken.
    """

    def __init__(self, take: Callable[[bytearray], None]) -> None:
        self._take = take
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="decoding")
        self._waiting: deque[Future[None]] = deque()
        self._failed = False

    def put(self, block: bytearray) -> None:
        """Hand over the next block. Waits while too many blocks are waiting."""
        while len(self._waiting) > _MOST_WAITING or (self._waiting and self._waiting[0].done()):
            self._waiting.popleft().result()
        self._waiting.append(self._thread.submit(self._take_next, block))

    def _take_next(self, block: bytearray) -> None:
        if self._failed:
            return
        try:
            self._take(block)
        except BaseException:
            self._failed = True
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            while kind is None and self._waiting:
                self._waiting.popleft().result()
        finally:
            self._thread.shutdown(cancel_futures=True)
