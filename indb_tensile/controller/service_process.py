"""Runs the service process of a controller, which answers predictions, and restarts it when it ends."""

import logging
import os
import signal

from indb_tensile.backoff import Backoff
from indb_tensile.controller.fork_client import ForkedProcess, ForkServer
from indb_tensile.job import WorkerId

log = logging.getLogger("controller")

ANSWERING_VARIABLE = "TENSILE_ANSWERING_FD"  # names the descriptor to which a service writes when it is ready
_FIRST_PAUSE_S = 0.5  # after a service that was ready: users wait, and are served again within 2 s of its end
_LONGEST_PAUSE_S = 30.0  # after several services in a row that ended before they were ready


class ServiceProcess:
    """Keeps one service running for a worker. Times are monotonic seconds, given by the caller.

    A service that ends after it was ready is restarted after `_FIRST_PAUSE_S`, however often that happens. Services
    that end before they are ready are restarted after a pause that doubles up to `_LONGEST_PAUSE_S`.
    """

    def __init__(self, *, forks: ForkServer, module: str, grace_s: float) -> None:
        self.forks = forks
        self._module = module
        self._grace_s = grace_s
        self._worker: WorkerId | None = None
        self._process: ForkedProcess | None = None
        self._ready_pipe: int | None = None  # the pipe to which the running service writes when it is ready
        self._start_at_s = 0.0
        self._backoff = Backoff(first_s=_FIRST_PAUSE_S, longest_s=_LONGEST_PAUSE_S)

    @property
    def pid(self) -> int | None:
        """The process id of the running service."""
        return None if self._process is None else self._process.pid

    @property
    def asked(self) -> bool:
        """Whether a service runs or has been requested."""
        return self._process is not None

    def serve(self, worker: WorkerId | None) -> None:
        """Run the service for this worker from now on; None stops the service."""
        if worker != self._worker:
            self.stop()
            self._worker = worker
            self._start_at_s = 0.0

    def attend(self, now_s: float) -> None:
        """Notice that the service has ended, and start it if it is due."""
        self.forks.receive()
        process = self._process
        if process is not None and process.over:
            self._reap(process, now_s)
        if self._process is None and self._worker is not None and now_s >= self._start_at_s:
            self._start()

    def stop(self) -> None:
        """Stop the service and all processes that it started."""
        process, self._process = self._process, None
        self._close_pipe()
        if process is None or process.failed:
            return
        if process.pid is None:
            process.abandon()
            return
        os.killpg(process.pid, signal.SIGTERM)
        process.ended(self._grace_s)
        process.reap()

    def _start(self) -> None:
        self._ready_pipe, service_end = os.pipe()
        os.set_blocking(self._ready_pipe, False)
        self._process = self.forks.ask(
            self._module,
            environment={"TENSILE_WORKER_ID": str(self._worker)},
            descriptors={ANSWERING_VARIABLE: service_end},
        )
        os.close(service_end)

    def _reap(self, process: ForkedProcess, now_s: float) -> None:
        self._process = None
        if self._was_ready():
            self._backoff.succeed()
        self._close_pipe()
        outcome = "could not be started" if process.failed else f"ended with code {process.reap()}"
        pause_s = self._backoff.fail()
        log.warning("the service %s and is started again in %g s", outcome, pause_s)
        self._start_at_s = now_s + pause_s

    def _was_ready(self) -> bool:
        try:
            return self._ready_pipe is not None and bool(os.read(self._ready_pipe, 1))
        except BlockingIOError:
            return False

    def _close_pipe(self) -> None:
        if self._ready_pipe is not None:
            os.close(self._ready_pipe)
            self._ready_pipe = None


class NoService:
    """A service that never runs, for controllers without one."""

    def serve(self, worker: WorkerId | None) -> None:
        """Do nothing."""

    def see_jobs(self, jobs: int) -> None:
        """Do nothing."""

    def attend(self, now_s: float) -> None:
        """Do nothing."""

    def stop(self) -> None:
        """Do nothing."""
