"""Measures how long training steps take with all that lies between two iterations."""

import time
from collections.abc import Callable


class StepDuration:
    """The mean time of a step since the last report: with batches, evaluations, reports and checkpoints.

    Work is counted in training steps (remaining.py), so an evaluation is a part of a step. Time in which the job
    follows orders of the controller does not count.
    """

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._since_s = 0.0
        self._left_since: float | None = None

    def skip(self, duration_s: float) -> None:
        """Leave out this time, which has just passed."""
        self._since_s += duration_s

    def begin(self, steps_left: float) -> None:
        """Begin to measure, if that has not begun: at the end of the first step, which takes longer than others."""
        if self._left_since is None:
            self._since_s, self._left_since = self._clock_s(), steps_left

    def take_ns(self, steps_left: float) -> int:
        """Return the mean time of a step since the last call, in nanoseconds; 0 if there was none."""
        if self._left_since is None or self._left_since <= steps_left:
            return 0
        took_s, done = self._clock_s() - self._since_s, self._left_since - steps_left
        self._since_s, self._left_since = self._since_s + took_s, steps_left
        return max(0, round(took_s / done * 1e9))
