"""Runs the learner process beside a controller: it trains the latency predictor if that is due, and ends."""

import logging

from indb_tensile.controller.fork_client import ForkedProcess, ForkServer
from indb_tensile.job import WorkerId

log = logging.getLogger("controller")

AGAIN_S = 600.0  # between the end of one learner and the start of the next, which uses new measurements of jobs


class LearnerProcess:
    """Runs the learner at intervals while there is a worker. Times are monotonic seconds, given by the caller."""

    def __init__(self, *, forks: ForkServer, module: str, again_s: float = AGAIN_S) -> None:
        self._forks = forks
        self._module = module
        self._again_s = again_s
        self._enabled = False
        self._process: ForkedProcess | None = None
        self._start_at_s = 0.0

    @property
    def asked(self) -> bool:
        """Whether a learner runs or has been requested."""
        return self._process is not None

    @property
    def pid(self) -> int | None:
        """The process id of the running learner."""
        return None if self._process is None else self._process.pid

    def serve(self, worker: WorkerId | None) -> None:
        """Run learners while there is a worker. Without one, another worker may use the device."""
        self._enabled = worker is not None
        if not self._enabled:
            self.stop()

    def attend(self, now_s: float) -> None:
        """Notice that the learner has ended, and start it if it is due."""
        self._forks.receive()
        process = self._process
        if process is not None and process.over:
            code = None if process.failed else process.reap()
            if code != 0:
                log.warning("the learner ended with code %s and is started again in %g s", code, self._again_s)
            self._process = None
            self._start_at_s = now_s + self._again_s
        if self._process is None and self._enabled and now_s >= self._start_at_s:
            self._process = self._forks.ask(self._module, descriptors={})

    def stop(self) -> None:
        """Stop the learner and all processes that it started. Results that it has not stored are dropped."""
        process, self._process = self._process, None
        if process is not None:
            process.abandon()
