"""A thread that waits for notifications, so that a queued job and a cancel are seen before the next poll."""

import logging
import threading
from collections.abc import Callable
from typing import Protocol

import psycopg

from indb_tensile.catalog.notify import Wake
from indb_tensile.errors import DatabaseError

log = logging.getLogger("controller")

_SLICE_S = 0.5  # how long a close may have to wait


class Waiting(Protocol):
    """The part of `catalog.notify.Listener` that is used."""

    def wait(self, timeout_s: float) -> tuple[Wake, ...]:
        """What came within the time; empty when nothing came or the database is away."""
        ...

    def close(self) -> None:
        """End the connection."""
        ...


class ListenerThread:
    """Hands every notification to `tell`, which must not block."""

    def __init__(self, listener: Waiting, tell: Callable[[Wake], None]) -> None:
        self._listener = listener
        self._tell = tell
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="listener", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening and end the connection."""
        self._closed.set()
        self._thread.join(timeout=4 * _SLICE_S)

    def _listen(self) -> None:
        try:
            while not self._closed.is_set():
                for wake in self._listener.wait(_SLICE_S):
                    self._tell(wake)
        except (psycopg.Error, DatabaseError) as error:
            log.error("no more notifications, polling goes on: %s", error)  # noqa: TRY400 - one line says it all
        finally:
            self._listener.close()
