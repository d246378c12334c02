"""Runs the learner process beside a controller: it trains the latency predictor if that is due, and ends."""

import logging

from indb_tensile.controller.companion_process import CompanionProcess
from indb_tensile.controller.fork_client import ForkServer

log = logging.getLogger("controller")

AGAIN_S = 600.0  # pause between the end of one learner and the start of the next, which uses new measurements of jobs


class LearnerProcess(CompanionProcess):
    """Runs the learner at intervals while there is a worker."""

    def __init__(self, *, forks: ForkServer, module: str, again_s: float = AGAIN_S) -> None:
        super().__init__(forks=forks, module=module)
        self._again_s = again_s
        self._start_at_s = 0.0

    def _is_due(self, now_s: float) -> bool:
        return now_s >= self._start_at_s

    def _ended(self, code: int | None, now_s: float) -> None:
        if code != 0:
            log.warning("the learner ended with code %s and is started again in %g s", code, self._again_s)
        self._start_at_s = now_s + self._again_s
