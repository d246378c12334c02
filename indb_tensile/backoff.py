"""Pauses between attempts that something else fills: a trainer goes on training, the controller goes on serving.

Where the caller waits, tenacity repeats the attempt (`catalog/connection.py`). It always sleeps between two attempts,
so it cannot be used here.
"""


class Backoff:
    """The pauses after failures in a row: `first_s`, then twice the previous one, at most `longest_s`."""

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
