"""Decides whether other programs compute too much for a measurement, from readings of processor times.

A measurement that another program disturbs cannot be told from one of a slower machine. So it is dropped, whoever
computes: a job of another database's controller, the database itself, or a compiler.
"""

from collections import deque

SPAN_S = 2.0  # Linux counts hundredths of a second, by samples: over a shorter time, an idle machine seems busy
_LEAST_PART = 0.05  # of all cores: daemons of a large machine keep more cores busy together than those of a small one


def tolerated_cores(cores: int, least: float) -> float:
    """Return how many of this number of cores other programs may keep busy during a measurement."""
    return max(least, _LEAST_PART * cores)


class OtherLoad:
    """The mean number of cores that other programs kept busy during the last `span_s` seconds."""

    def __init__(self, span_s: float = SPAN_S) -> None:
        self._span_s = span_s
        self._readings: deque[tuple[float, float]] = deque()

    def add(self, now_s: float, others_s: float) -> float | None:
        """Add a reading and return the mean up to it, or None until the readings cover the span.

        `others_s` is the processor time of other programs since any fixed time. Neither time goes back. The mean
        covers the time since the latest reading that is `span_s` old or older.
        """
        self._readings.append((now_s, others_s))
        while len(self._readings) > 1 and self._readings[1][0] <= now_s - self._span_s:
            self._readings.popleft()
        since_s, before_s = self._readings[0]
        if now_s < since_s + self._span_s:
            return None
        return max(0.0, others_s - before_s) / (now_s - since_s)

    def forget(self) -> None:
        """Drop all readings: what computes from now on is not compared with what did before."""
        self._readings.clear()
