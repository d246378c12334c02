"""Where threads and signal handlers put what the loop shall look at; a selector sees that there is something."""

import os
import queue
from typing import Generic, TypeVar

_Item = TypeVar("_Item")


class Mailbox(Generic[_Item]):
    """Any thread posts, one takes."""

    def __init__(self) -> None:
        self._items: queue.SimpleQueue[_Item] = queue.SimpleQueue()
        self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def post(self, item: _Item) -> None:
        """Never blocks; safe in a signal handler."""
        self._items.put(item)
        os.eventfd_write(self._event, 1)

    def take(self) -> list[_Item]:
        """Everything that was posted, in order."""
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
        """For a selector."""
        return self._event

    def close(self) -> None:
        """Nothing may be posted afterwards."""
        os.close(self._event)
