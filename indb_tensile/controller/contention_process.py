"""Runs the measurement of contention beside a controller, while no job uses the device."""

import logging
from collections.abc import Callable

from indb_tensile.controller.companion_process import CompanionProcess
from indb_tensile.controller.fork_client import ForkServer

log = logging.getLogger("controller")

DISTURBED = 75  # exit code (sysexits.h: EX_TEMPFAIL) of a measurement that stopped because a job ran on this host
IDLE_S = 2.0  # time without a job before a measurement: a controller that has just started still loads modules
DISTURBED_AGAIN_S = 15.0  # pause after a job of another controller stopped the measurement
FAILED_AGAIN_S = 600.0  # pause after a measurement that failed


class ContentionProcess(CompanionProcess):
    """Runs the measurement until it has ended once in order, and never beside a job of this controller.

    The measurement takes tens of seconds, and nobody waits for it. A job that comes ends it at once. What it has
    stored by then is kept, and the rest is measured when the device is idle again. Until then decisions use the
    estimate from the number of cores. `announce` reads the stored factors and passes them on. It returns whether it
    could: the database may be away.
    """

    def __init__(self, *, forks: ForkServer, module: str, announce: Callable[[], bool]) -> None:
        super().__init__(forks=forks, module=module)
        self._announce = announce
        self._measured = False  # all that is to be measured
        self._announced = True
        self._jobs = 1  # unknown before the first look: as if there were one
        self._idle_since_s: float | None = None
        self._start_at_s = 0.0

    def holds_back_others(self, now_s: float) -> bool:
        """Return whether work that may wait has to: a measurement is under way, or begins soon."""
        return self.asked or (not self._measured and not self._jobs and now_s >= self._start_at_s)

    def see_jobs(self, jobs: int) -> None:
        """Note the number of jobs of this controller. If there are any, a measurement is ended now."""
        self._jobs = jobs
        if jobs:
            self._idle_since_s = None
            if self.asked:
                log.info("a job has come: how jobs slow each other down is measured when the device is idle again")
                self.stop()
                self._announced = False

    def attend(self, now_s: float) -> None:
        """Notice that the process has ended, pass on what it has stored, and start one if it is due."""
        if not self._jobs and self._idle_since_s is None:
            self._idle_since_s = now_s
        super().attend(now_s)
        if not self._announced:
            self._announced = self._announce()

    def _is_due(self, now_s: float) -> bool:
        if self._measured or self._idle_since_s is None:
            return False
        return now_s >= max(self._start_at_s, self._idle_since_s + IDLE_S)

    def _ended(self, code: int | None, now_s: float) -> None:
        self._announced = False
        self._measured = code == 0
        if code == DISTURBED:
            self._start_at_s = now_s + DISTURBED_AGAIN_S
        elif code != 0:
            log.warning(
                "how jobs slow each other down was not measured (code %s), and is estimated from the number of "
                "cores; the measurement begins again in %g s at the earliest",
                code,
                FAILED_AGAIN_S,
            )
            self._start_at_s = now_s + FAILED_AGAIN_S
