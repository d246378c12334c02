"""The learner process: beside each controller, it trains the latency predictor where one is due, and ends."""

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence

from indb_tensile.job import WorkerId

log = logging.getLogger("controller")

AGAIN_S = 600.0  # between the end of one and the next look at what jobs have measured meanwhile


class LearnerProcess:
    """Runs the learner now and then while there is a worker. Times are the caller's monotonic seconds."""

    def __init__(self, *, command: Sequence[str], environment: Mapping[str, str], again_s: float = AGAIN_S) -> None:
        self._command = tuple(command)
        self._environment = dict(environment)
        self._again_s = again_s
        self._wanted = False
        self._process: subprocess.Popen[bytes] | None = None
        self._start_at_s = 0.0

    @property
    def pid(self) -> int | None:
        """The running learner's process id."""
        return None if self._process is None else self._process.pid

    def serve(self, worker: WorkerId | None) -> None:
        """Learn while there is a worker; without one, its device may be somebody else's."""
        self._wanted = worker is not None
        if not self._wanted:
            self.stop()

    def attend(self, now_s: float) -> None:
        """Start it when it is due; notice that it has ended."""
        if self._process is not None and (code := self._process.poll()) is not None:
            if code:
                log.warning("the learner ended with code %s and is started again in %g s", code, self._again_s)
            self._process = None
            self._start_at_s = now_s + self._again_s
        if self._process is None and self._wanted and now_s >= self._start_at_s:
            self._start(now_s)

    def stop(self) -> None:
        """End it and whatever it started."""
        if self._process is None:
            return
        os.killpg(self._process.pid, signal.SIGKILL)  # what it has not stored yet is worth nothing
        self._process.wait()
        self._process = None

    def _start(self, now_s: float) -> None:
        try:
            self._process = subprocess.Popen(
                self._command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr.fileno(),
                process_group=0,
            )
        except OSError as error:
            log.error("the learner could not be started: %s", error)  # noqa: TRY400 - one line says it all
            self._start_at_s = now_s + self._again_s
