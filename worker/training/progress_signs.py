"""Sends signs of progress to the controller, even while there is nothing to write to the catalog."""

import time
from collections.abc import Callable

from indb_tensile.job import JobId, Phase
from indb_tensile.messages import Progressed, TrainerLink

SIGN_S = 0.5  # time between two messages


class ProgressSigns:
    """Sends a sign of progress at limited intervals, with the duration of the longest iteration so far."""

    def __init__(self, link: TrainerLink, job: JobId, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._link = link
        self._job = job
        self._clock_s = clock_s
        self._last_s = clock_s()
        self._due_s = self._last_s
        self._longest_s = 0.0
        self.phase = Phase.READING
        self.epoch = 0
        self.step = 0
        self.steps_left: float | None = None  # in training steps (remaining.py); None before the first step
        self._admitted_s: float | None = None  # until the first step has ended
        self._startup_s: float | None = None  # until it is sent

    def admit(self) -> None:
        """Record that the order to start has arrived."""
        self._admitted_s = self._clock_s()

    def give(self) -> None:
        """Record that one piece of work, such as an iteration, has ended, and send a sign if it is time."""
        now_s = self._clock_s()
        self._longest_s = max(self._longest_s, now_s - self._last_s)
        self._last_s = now_s
        if self._admitted_s is not None and self.steps_left is not None:
            self._startup_s, self._admitted_s = now_s - self._admitted_s, None
        if now_s < self._due_s:
            return
        self._due_s = now_s + SIGN_S
        self._link.send(
            Progressed(
                job=self._job,
                phase=self.phase,
                epoch=self.epoch,
                step=self.step,
                longest_s=self._longest_s,
                steps_left=self.steps_left,
                startup_s=self._startup_s,
            )
        )
        self._startup_s = None

    def begin(self) -> None:
        """Start the clock of the first iteration. Work before it does not count as an iteration."""
        self._last_s = self._clock_s()
