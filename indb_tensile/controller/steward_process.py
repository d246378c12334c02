"""Runs the steward of searches beside a controller while there are searches: it ends when there are none."""

import logging
import threading

from indb_tensile.backoff import Backoff
from indb_tensile.controller.fork_client import ForkedProcess, ForkServer
from indb_tensile.job import WorkerId

log = logging.getLogger("controller")

_FIRST_PAUSE_S = 0.5  # after a steward that failed
_LONGEST_PAUSE_S = 30.0


class StewardProcess:
    """Starts the steward when it is called. Times are monotonic seconds, given by the caller.

    Any thread may call `call`; one thread calls the rest. A steward that ends with an error, or is killed, is started
    again after a pause that doubles with each failure.
    """

    def __init__(self, *, forks: ForkServer, module: str) -> None:
        self._forks = forks
        self._module = module
        self._enabled = False
        self._called = threading.Event()
        self._process: ForkedProcess | None = None
        self._start_at_s = 0.0
        self._backoff = Backoff(first_s=_FIRST_PAUSE_S, longest_s=_LONGEST_PAUSE_S)

    @property
    def asked(self) -> bool:
        """Whether a steward runs or has been requested."""
        return self._process is not None

    @property
    def pid(self) -> int | None:
        """The process id of the running steward."""
        return None if self._process is None else self._process.pid

    def call(self) -> None:
        """Say that there are searches to attend to."""
        self._called.set()

    def serve(self, worker: WorkerId | None) -> None:
        """Run stewards while there is a worker."""
        self._enabled = worker is not None
        if not self._enabled:
            self.stop()

    def attend(self, now_s: float) -> None:
        """Notice that the steward has ended, and start it if it was called."""
        self._forks.receive()
        process = self._process
        if process is not None and process.over:
            self._process = None
            self._judge(process, now_s)
        if self._process is None and self._enabled and self._called.is_set() and now_s >= self._start_at_s:
            self._called.clear()
            self._process = self._forks.ask(self._module, descriptors={})

    def stop(self) -> None:
        """Stop the steward. Another one continues every search."""
        process, self._process = self._process, None
        if process is not None:
            process.abandon()

    def _judge(self, process: ForkedProcess, now_s: float) -> None:
        code = None if process.failed else process.reap()
        if code == 0:
            self._backoff.succeed()
            return
        pause_s = self._backoff.fail()
        log.warning("the steward of searches ended with code %s and is started again in %g s", code, pause_s)
        self._start_at_s = now_s + pause_s
        self._called.set()
