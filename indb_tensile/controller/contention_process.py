"""Runs the measurement of contention beside a controller, while no job uses the device and other programs rest."""

import logging
import random
from collections.abc import Callable

from indb_tensile.controller.companion_process import CompanionProcess
from indb_tensile.controller.fork_client import ForkServer
from indb_tensile.device.other_load import SPAN_S, OtherLoad
from indb_tensile.device.processor_times import busy_s

log = logging.getLogger("controller")

DISTURBED = 75  # exit code (sysexits.h: EX_TEMPFAIL) of a measurement that stopped because something else computed
IDLE_S = SPAN_S  # time without a job before a measurement: a controller that has just started still loads modules
# The least pause after a job of another controller, or another program, stopped the measurement. The longest is twice
# as long: controllers of two databases that stop each other must not begin again together.
DISTURBED_AGAIN_S = 15.0
PATIENCE_S = 30.0  # for other programs to rest, before work that was held back goes on
BUSY_AGAIN_S = 60.0  # pause after they did not
FAILED_AGAIN_S = 600.0  # pause after a measurement that failed


class ContentionProcess(CompanionProcess):
    """Runs the measurement until it has ended once in order, and never beside a job of this controller.

    The measurement takes tens of seconds, and nobody waits for it. A job that comes ends it at once. What it has
    stored by then is kept, and the rest is measured when the device is idle again. Until then decisions use the
    estimate from the number of cores. `announce` reads the stored factors and passes them on. It returns whether it
    could: the database may be away.

    A measurement begins when other programs have kept at most `tolerated_cores` busy for `IDLE_S`. `read_busy_s`
    returns the processor time of all programs, or None if it is not known. `draw` returns a random number below 1.
    """

    def __init__(
        self,
        *,
        forks: ForkServer,
        module: str,
        announce: Callable[[], bool],
        tolerated_cores: float,
        read_busy_s: Callable[[], float | None] = busy_s,
        draw: Callable[[], float] = random.random,
    ) -> None:
        super().__init__(forks=forks, module=module)
        self._announce = announce
        self._tolerated_cores = tolerated_cores
        self._read_busy_s = read_busy_s
        self._draw = draw
        self._load = OtherLoad(IDLE_S)
        self._busy_since_s: float | None = None
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
            self._idle_since_s = self._busy_since_s = None
            self._load.forget()
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
        others_rest = self._others_rest(now_s)
        return others_rest and now_s >= max(self._start_at_s, self._idle_since_s + IDLE_S)

    def _others_rest(self, now_s: float) -> bool:
        """Return whether other programs have been idle. If they are not for long, put the measurement off."""
        used_s = self._read_busy_s()
        if used_s is None:
            return True
        busy_cores = self._load.add(now_s, used_s)
        if busy_cores is None or busy_cores <= self._tolerated_cores:
            self._busy_since_s = None
            return busy_cores is not None
        if self._busy_since_s is None:
            self._busy_since_s = now_s
        if now_s >= max(self._start_at_s, self._busy_since_s + PATIENCE_S):
            log.info(
                "other programs keep %.2f cores busy: how jobs slow each other down is measured when they rest",
                busy_cores,
            )
            self._busy_since_s, self._start_at_s = None, now_s + BUSY_AGAIN_S
        return False

    def _ended(self, code: int | None, now_s: float) -> None:
        self._load.forget()
        self._announced = False
        self._measured = code == 0
        if code == DISTURBED:
            self._start_at_s = now_s + DISTURBED_AGAIN_S * (1 + self._draw())
        elif code != 0:
            log.warning(
                "how jobs slow each other down was not measured (code %s), and is estimated from the number of "
                "cores; the measurement begins again in %g s at the earliest",
                code,
                FAILED_AGAIN_S,
            )
            self._start_at_s = now_s + FAILED_AGAIN_S
