"""A queue from threads and signal handlers to the loop, with a descriptor for the loop's selector."""

import os
import queue
from typing import Generic, TypeVar

_Item = TypeVar("_Item")
_CLOSED = -1


class Mailbox(Generic[_Item]):
    """A queue to which any thread may post, and from which one thread takes."""

    def __init__(self) -> None:
        self._items: queue.SimpleQueue[_Item] = queue.SimpleQueue()
        self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def post(self, item: _Item) -> None:
        """Add an item. Never blocks, and may be called in a signal handler."""
        self._items.put(item)
        if self._event != _CLOSED:
            os.eventfd_write(self._event, 1)

    def take(self) -> list[_Item]:
        """Remove and return all items, in the order in which they were posted."""
        try:
            os.eventfd_read(self._event)
        except BlockingIOError:
            return []
        items: list[_Item] = []
        while True:
            try:
                items.append(self._items.get_nowait())
            except queue.Empty:
                return items

    def fileno(self) -> int:
        """Return the descriptor for a selector. It is readable when there are items."""
        return self._event

    def close(self) -> None:
        """Close the descriptor. Nobody may take afterwards; only signal handlers may still post."""
        event, self._event = self._event, _CLOSED
        os.close(event)
