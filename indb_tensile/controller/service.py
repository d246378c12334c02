"""The service process: one beside each controller, started again when it dies."""

import logging
import os
import signal

from indb_tensile.controller.forkserver import Copy, ForkServer
from indb_tensile.job import WorkerId

log = logging.getLogger("controller")

ANSWERING_VARIABLE = "TENSILE_ANSWERING_FD"  # names the descriptor on which a service says that it answers
_FIRST_PAUSE_S = 0.5  # after a service that answered: users wait, and are served again within 2 s of its end
_LONGEST_PAUSE_S = 30.0  # after services that ended, one after the other, before they answered


class ServiceProcess:
    """Keeps one service running for the worker that it is told. Times are the caller's monotonic seconds.

    A service that ends after it has answered is started again after `_FIRST_PAUSE_S`, however often that happens.
    Services that end before they answer are started again after a pause that doubles up to `_LONGEST_PAUSE_S`.
    """

    def __init__(self, *, forks: ForkServer, module: str, grace_s: float) -> None:
        self.forks = forks
        self._module = module
        self._grace_s = grace_s
        self._worker: WorkerId | None = None
        self._process: Copy | None = None
        self._answering: int | None = None  # the pipe on which the running service says that it answers
        self._start_at_s = 0.0
        self._pause_s = _FIRST_PAUSE_S

    @property
    def pid(self) -> int | None:
        """The running service's process id."""
        return None if self._process is None else self._process.pid

    @property
    def asked(self) -> bool:
        """Whether one runs, or is to begin."""
        return self._process is not None

    def serve(self, worker: WorkerId | None) -> None:
        """Serve this worker from now on; None: nobody."""
        if worker != self._worker:
            self.stop()
            self._worker = worker
            self._start_at_s = 0.0

    def attend(self, now_s: float) -> None:
        """Start it when it is due; notice that it has ended."""
        self.forks.receive()
        process = self._process
        if process is not None and process.over:
            self._bury(process, now_s)
        if self._process is None and self._worker is not None and now_s >= self._start_at_s:
            self._start()

    def stop(self) -> None:
        """End it and whatever it started."""
        process, self._process = self._process, None
        self._forget_pipe()
        if process is None or process.failed:
            return
        if process.pid is None:
            process.abandon()
            return
        os.killpg(process.pid, signal.SIGTERM)
        process.ended(self._grace_s)
        process.reap()

    def _start(self) -> None:
        self._answering, theirs = os.pipe()
        os.set_blocking(self._answering, False)
        self._process = self.forks.ask(
            self._module,
            environment={"TENSILE_WORKER_ID": str(self._worker)},
            descriptors={ANSWERING_VARIABLE: theirs},
        )
        os.close(theirs)

    def _bury(self, process: Copy, now_s: float) -> None:
        self._process = None
        if self._has_answered():
            self._pause_s = _FIRST_PAUSE_S
        self._forget_pipe()
        befell = "could not be started" if process.failed else f"ended with code {process.reap()}"
        log.warning("the service %s and is started again in %g s", befell, self._pause_s)
        self._start_at_s = now_s + self._pause_s
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)

    def _has_answered(self) -> bool:
        try:
            return self._answering is not None and bool(os.read(self._answering, 1))
        except BlockingIOError:
            return False

    def _forget_pipe(self) -> None:
        if self._answering is not None:
            os.close(self._answering)
            self._answering = None


class NoService:
    """Stands where no service is wanted."""

    def serve(self, worker: WorkerId | None) -> None:
        """Nobody is served."""

    def attend(self, now_s: float) -> None:
        """Nothing is due."""

    def stop(self) -> None:
        """Nothing runs."""
