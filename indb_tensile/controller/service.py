"""The service process: one beside each controller, started again when it dies."""

import logging
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence

from indb_tensile.job import WorkerId

log = logging.getLogger("controller")

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0
_HEALTHY_S = 60.0  # one that lived so long is started again at once


class ServiceProcess:
    """Keeps one service running for the worker that it is told. Times are the caller's monotonic seconds."""

    def __init__(self, *, command: Sequence[str], environment: Mapping[str, str], grace_s: float) -> None:
        self._command = tuple(command)
        self._environment = dict(environment)
        self._grace_s = grace_s
        self._worker: WorkerId | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._started_s = 0.0
        self._start_at_s = 0.0
        self._pause_s = _FIRST_PAUSE_S

    @property
    def pid(self) -> int | None:
        """The running service's process id."""
        return None if self._process is None else self._process.pid

    def serve(self, worker: WorkerId | None) -> None:
        """Serve this worker from now on; None: nobody."""
        if worker != self._worker:
            self.stop()
            self._worker = worker
            self._start_at_s = 0.0

    def attend(self, now_s: float) -> None:
        """Start it when it is due; notice that it has ended."""
        if self._process is not None and self._ended(self._process, 0.0):
            self._bury(now_s)
        if self._process is None and self._worker is not None and now_s >= self._start_at_s:
            self._start(now_s)

    def stop(self) -> None:
        """End it and whatever it started."""
        if self._process is None:
            return
        os.killpg(self._process.pid, signal.SIGTERM)
        self._ended(self._process, self._grace_s)
        self._reap(self._process)

    def _start(self, now_s: float) -> None:
        self._started_s = now_s
        try:
            self._process = subprocess.Popen(
                self._command,
                env=self._environment | {"TENSILE_WORKER_ID": str(self._worker)},
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr.fileno(),
                process_group=0,
            )
        except OSError as error:
            log.error("the service could not be started: %s", error)  # noqa: TRY400 - one line says it all
            self._back_off(now_s)

    def _bury(self, now_s: float) -> None:
        code = None if self._process is None else self._reap(self._process)
        if now_s - self._started_s >= _HEALTHY_S:
            self._pause_s = _FIRST_PAUSE_S
        log.warning("the service ended with code %s and is started again in %g s", code, self._pause_s)
        self._back_off(now_s)

    def _back_off(self, now_s: float) -> None:
        self._start_at_s = now_s + self._pause_s
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)

    def _ended(self, process: subprocess.Popen[bytes], timeout_s: float) -> bool:
        """Whether it ended in time; it stays a zombie, so that its group is still its own."""
        pidfd = os.pidfd_open(process.pid)
        try:
            return bool(select.select([pidfd], [], [], timeout_s)[0])
        finally:
            os.close(pidfd)

    def _reap(self, process: subprocess.Popen[bytes]) -> int:
        os.killpg(process.pid, signal.SIGKILL)
        self._process = None
        return process.wait()


class NoService:
    """Stands where no service is wanted."""

    def serve(self, worker: WorkerId | None) -> None:
        """Nobody is served."""

    def attend(self, now_s: float) -> None:
        """Nothing is due."""

    def stop(self) -> None:
        """Nothing runs."""
