"""The learner process: beside each controller, it trains the latency predictor where one is due, and ends."""

import logging

from indb_tensile.controller.forkserver import Copy, ForkServer
from indb_tensile.job import WorkerId

log = logging.getLogger("controller")

AGAIN_S = 600.0  # between the end of one and the next look at what jobs have measured meanwhile


class LearnerProcess:
    """Runs the learner now and then while there is a worker. Times are the caller's monotonic seconds."""

    def __init__(self, *, forks: ForkServer, module: str, again_s: float = AGAIN_S) -> None:
        self._forks = forks
        self._module = module
        self._again_s = again_s
        self._wanted = False
        self._process: Copy | None = None
        self._start_at_s = 0.0

    @property
    def asked(self) -> bool:
        """Whether one runs, or is to begin."""
        return self._process is not None

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
        self._forks.receive()
        process = self._process
        if process is not None and process.over:
            code = None if process.failed else process.reap()
            if code != 0:
                log.warning("the learner ended with code %s and is started again in %g s", code, self._again_s)
            self._process = None
            self._start_at_s = now_s + self._again_s
        if self._process is None and self._wanted and now_s >= self._start_at_s:
            self._process = self._forks.ask(self._module, descriptors={})

    def stop(self) -> None:
        """End it and whatever it started: what it has not stored yet is worth nothing."""
        process, self._process = self._process, None
        if process is not None:
            process.abandon()
