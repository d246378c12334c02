"""Runs the process that computes baselines of published versions beside a controller, one after another."""

import logging

from indb_tensile.catalog.baseline_files import BaselineFiles
from indb_tensile.controller.companion_process import CompanionProcess
from indb_tensile.controller.fork_client import ForkServer

log = logging.getLogger("controller")

LOOK_S = 1.0  # time between two looks for files
AGAIN_S = 60.0  # pause after a process that failed, for example because the database is away


class BaselineProcess(CompanionProcess):
    """Starts a process when rows of a baseline wait.

    The process computes all baselines that wait, and ends. It runs only when a processor is idle, so it delays
    neither a job nor a prediction, and it has no access to the device.
    """

    def __init__(
        self,
        *,
        forks: ForkServer,
        module: str,
        files: BaselineFiles,
        look_s: float = LOOK_S,
        again_s: float = AGAIN_S,
    ) -> None:
        super().__init__(forks=forks, module=module)
        self._files = files
        self._look_s = look_s
        self._again_s = again_s
        self._look_at_s = 0.0

    def _is_due(self, now_s: float) -> bool:
        if now_s < self._look_at_s:
            return False
        self._look_at_s = now_s + self._look_s
        return bool(self._files.waiting())

    def _ended(self, code: int | None, now_s: float) -> None:
        if code != 0:
            again = (
                "the process that computes baselines ended with code %s and is started again in %g s at the earliest"
            )
            log.warning(again, code, self._again_s)
            self._look_at_s = now_s + self._again_s
