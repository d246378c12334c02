"""Signs of life: what tells the controller that a trainer gets on, however seldom it has something to write."""

import time
from collections.abc import Callable

from indb_tensile.job import JobId, Phase
from indb_tensile.link import Link, Progressed

SIGN_S = 0.5  # between two signs


class Signs:
    """Called after each iteration; sends a sign every now and then, with the longest that one took."""

    def __init__(self, link: Link, job: JobId, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._link = link
        self._job = job
        self._clock_s = clock_s
        self._before_s = clock_s()
        self._due_s = self._before_s
        self._longest_s = 0.0
        self.phase = Phase.READING
        self.epoch = 0
        self.step = 0

    def give(self) -> None:
        """The trainer got on by something that may have taken long."""
        now_s = self._clock_s()
        self._longest_s = max(self._longest_s, now_s - self._before_s)
        self._before_s = now_s
        if now_s < self._due_s:
            return
        self._due_s = now_s + SIGN_S
        self._link.send(
            Progressed(job=self._job, phase=self.phase, epoch=self.epoch, step=self.step, longest_s=self._longest_s)
        )

    def begin(self) -> None:
        """What was done until now says nothing about how long an iteration takes."""
        self._before_s = self._clock_s()
