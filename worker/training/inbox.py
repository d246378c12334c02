"""What the controller says, read beside the training; the process ends when the controller is gone."""

import os
import queue
import threading
from typing import TypeVar

from indb_tensile.errors import InvariantError
from indb_tensile.job import ORPHANED
from indb_tensile.link import Link, Message

_M = TypeVar("_M", bound=Message)


class Inbox:
    """A thread reads the link into a queue, so that a waiting message never holds up an iteration."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
        threading.Thread(target=self._read, name="inbox", daemon=True).start()

    def next(self) -> Message:
        """The next message, waited for."""
        return self._messages.get()

    def poll(self) -> Message | None:
        """The next message, or None where there is none yet."""
        try:
            return self._messages.get_nowait()
        except queue.Empty:
            return None

    def expect(self, kind: type[_M]) -> _M:
        """The next message, which must be of that kind."""
        message = self.next()
        if not isinstance(message, kind):
            raise InvariantError(f"the controller sent {type(message).__name__} where {kind.__name__} was due")
        return message

    def _read(self) -> None:
        try:
            while (message := self._link.receive()) is not None:
                self._messages.put(message)
        except OSError:
            pass
        # Nothing can be finished without a controller: the job belongs to whoever rescues it.
        os._exit(ORPHANED)
