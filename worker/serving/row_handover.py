"""Hands rows from the thread that reads them to the event loop, in order and with a bound."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable

from indb_tensile.errors import TensileError
from indb_tensile.learning.decoding.binary_rows import CopiedRows

_MOST_WAITING = 4  # most groups of rows in memory that the event loop has not taken yet
_STALL_S = 2.0  # a reader that waits this long for the event loop checks whether the session still wants the rows


class ClosedError(Exception):
    """Nobody takes rows any more, so the thread that reads them must end."""


class RowHandover:
    """A queue with one thread that puts and one event loop that takes. `None` follows the last rows."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._arrived = asyncio.Event()
        self._changed = threading.Condition()
        self._waiting: deque[CopiedRows | None] = deque()
        self._failure: TensileError | None = None
        self._closed = False

    def put(self, rows: CopiedRows, on_stall: Callable[[], None]) -> None:
        """Add rows. Waits while too many wait, and calls `on_stall` whenever it has waited for _STALL_S.

        Raises ClosedError once the other side is closed.
        """
        while not self._put(rows):
            on_stall()

    def _put(self, rows: CopiedRows) -> bool:
        """Add rows as soon as there is room, and return false if there is none for too long."""
        with self._changed:
            if not self._changed.wait_for(self._has_room, _STALL_S):
                return False
            self._add(rows)
            return True

    def _has_room(self) -> bool:
        return self._closed or len(self._waiting) < _MOST_WAITING

    def end(self, failure: TensileError | None = None) -> None:
        """Add the end of the rows, or the error that ended them."""
        with self._changed:
            self._failure = failure
            if not self._closed:
                self._add(None)

    async def take(self) -> CopiedRows | None:
        """Return the next rows, or None at their end. Raises the error that ended them."""
        while True:
            with self._changed:
                if self._waiting and (rows := self._waiting[0]) is not None:
                    self._waiting.popleft()
                    self._changed.notify()
                    return rows
                if self._waiting:  # the end stays
                    if self._failure is not None:
                        raise self._failure
                    return None
                self._arrived.clear()
            await self._arrived.wait()

    def close(self) -> None:
        """Take no more rows, and let the thread end."""
        with self._changed:
            self._closed = True
            self._waiting.clear()
            self._changed.notify()

    @property
    def closed(self) -> bool:
        """Whether nobody takes rows any more."""
        return self._closed

    def _add(self, rows: CopiedRows | None) -> None:
        if self._closed:
            raise ClosedError
        self._waiting.append(rows)
        self._loop.call_soon_threadsafe(self._arrived.set)
