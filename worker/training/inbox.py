"""Receives the controller's messages on a thread of its own, and ends the process when the controller is gone."""

import os
import queue
import threading
from typing import TypeVar

from indb_tensile.errors import InvariantError
from indb_tensile.job import ORPHANED
from indb_tensile.messages import Message, TrainerLink

_M = TypeVar("_M", bound=Message)


class Inbox:
    """Queue of the controller's messages. A thread fills it, so that an iteration never waits for a message."""

    def __init__(self, link: TrainerLink) -> None:
        self._link = link
        self._messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
        threading.Thread(target=self._read, name="inbox", daemon=True).start()

    def next(self) -> Message:
        """Wait for the next message and return it."""
        return self._messages.get()

    def poll(self) -> Message | None:
        """Return the next message, or None if there is none."""
        try:
            return self._messages.get_nowait()
        except queue.Empty:
            return None

    def expect(self, kind: type[_M]) -> _M:
        """Wait for the next message, and return it. Raises InvariantError for a message of another kind."""
        message = self.next()
        if not isinstance(message, kind):
            raise InvariantError(f"the controller sent {type(message).__name__} where {kind.__name__} was expected")
        return message

    def _read(self) -> None:
        try:
            while (message := self._link.receive()) is not None:
                self._messages.put(message)
        except OSError:
            pass
        # Without a controller the job cannot be finished. The worker that rescues the job continues it.
        os._exit(ORPHANED)
