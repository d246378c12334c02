"""A thread that receives notifications, so that queued and cancelled jobs are handled before the next poll."""

import logging
import threading
from collections.abc import Callable
from typing import Protocol

from indb_tensile.catalog.notify import Notification

log = logging.getLogger("controller")

_SLICE_S = 0.5  # the longest time that a close has to wait
_PAUSE_S = 0.05  # after a wake-up: the controller is woken at most 20 times a second, however many notifications come


class NotificationSource(Protocol):
    """The methods of `catalog.notify.Listener` that the thread uses."""

    def wait(self, timeout_s: float) -> tuple[Notification, ...]:
        """Return the notifications that arrive within the time. Empty if there are none or the database is away."""
        ...

    def close(self) -> None:
        """End the connection."""
        ...


class ListenerThread:
    """Passes wake-ups to `tell`, which must not block.

    Of the notifications that arrive together, one of each kind is passed on, without its job. The thread survives any
    notification, because every role may notify and nobody restarts the thread.
    """

    def __init__(
        self,
        listener: NotificationSource,
        tell: Callable[[Notification], None],
        *,
        pause_s: float = _PAUSE_S,
        back_off_s: float = 1.0,
    ) -> None:
        self._listener = listener
        self._tell = tell
        self._pause_s = pause_s
        self._back_off_s = back_off_s
        self._closed = threading.Event()
        self._failing = False
        self._thread = threading.Thread(target=self._listen, name="listener", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening and end the connection."""
        self._closed.set()
        self._thread.join(timeout=4 * _SLICE_S)

    def _listen(self) -> None:
        while not self._closed.is_set():
            try:
                kinds = dict.fromkeys(wake.kind for wake in self._listener.wait(_SLICE_S))
                for kind in kinds:
                    self._tell(Notification(kind=kind))
                self._failing = False
            except Exception as error:  # noqa: BLE001 - the thread's outermost loop, and it is logged
                self._report(error)
                self._listener.close()
                self._closed.wait(self._back_off_s)
                continue
            if kinds:
                self._closed.wait(self._pause_s)
        self._listener.close()

    def _report(self, error: Exception) -> None:
        """Log the first of several failures in a row."""
        if not self._failing:
            log.error("notifications cannot be received now, polling continues: %s", error, exc_info=error)
        self._failing = True
