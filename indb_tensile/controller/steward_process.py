"""Runs the steward of searches beside a controller while there are searches: it ends when there are none."""

import logging
import threading

from indb_tensile.backoff import Backoff
from indb_tensile.controller.companion_process import CompanionProcess
from indb_tensile.controller.fork_client import ForkServer

log = logging.getLogger("controller")

_FIRST_PAUSE_S = 0.5  # after a steward that failed
_LONGEST_PAUSE_S = 30.0


class StewardProcess(CompanionProcess):
    """Starts the steward when it is called.

    Any thread may call `call`; one thread calls the rest. A steward that ends with an error, or is killed, is started
    again after a pause that doubles with each failure.
    """

    def __init__(self, *, forks: ForkServer, module: str) -> None:
        super().__init__(forks=forks, module=module)
        self._called = threading.Event()
        self._start_at_s = 0.0
        self._backoff = Backoff(first_s=_FIRST_PAUSE_S, longest_s=_LONGEST_PAUSE_S)

    def call(self) -> None:
        """Request a steward, because there are searches."""
        self._called.set()

    def _is_due(self, now_s: float) -> bool:
        if not self._called.is_set() or now_s < self._start_at_s:
            return False
        self._called.clear()
        return True

    def _ended(self, code: int | None, now_s: float) -> None:
        if code == 0:
            self._backoff.succeed()
            return
        pause_s = self._backoff.fail()
        log.warning("the steward of searches ended with code %s and is started again in %g s", code, pause_s)
        self._start_at_s = now_s + pause_s
        self._called.set()
