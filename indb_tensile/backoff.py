"""Computes growing pauses between attempts, for callers that do other work during a pause.

A trainer goes on training, and the controller goes on serving its jobs. A caller that only waits uses tenacity
(`catalog/connection.py`), which sleeps between two attempts and so cannot be used here.
"""


class Backoff:
    """The pauses after failures in a row: `first_s`, then twice the previous one, at most `longest_s`.

    `failures` is the number of failures since the last success.
    """

    def __init__(self, *, first_s: float, longest_s: float) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._pause_s = first_s
        self.failures = 0

    def fail(self) -> float:
        """Count a failure, and return the pause until the next attempt."""
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, self._longest_s)
        self.failures += 1
        return pause_s

    def succeed(self) -> None:
        """Forget the failures."""
        self._pause_s = self._first_s
        self.failures = 0
