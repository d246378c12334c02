"""Counts the predictions that a service has answered and refused since it last stored its counts."""

from bisect import bisect_left

PREDICTED_ROWS = ("predicted_rows", "")  # name and label of the counter of predicted rows
LATENCY = "prediction_latency"  # counter of the requests in each bucket
# Upper bounds of the buckets in seconds, as texts, which are the labels of the counter and of the metric.
BOUNDS = ("0.001", "0.0025", "0.005", "0.01", "0.025", "0.05", "0.1", "0.25", "0.5", "1", "2.5", "5", "10", "+Inf")
_SECONDS = tuple(map(float, BOUNDS))


class PredictionCounts:
    """Counts of one service. Only the event loop of the service calls it."""

    def __init__(self) -> None:
        self._amounts: dict[tuple[str, str], float] = {}

    def answered(self, rows: int, duration_s: float) -> None:
        """Count an answered request, with its number of rows and the time that it took."""
        self._add(*PREDICTED_ROWS, rows)
        self._time(duration_s)

    def refused(self, duration_s: float) -> None:
        """Count a request that was answered with an error, and the time that it took."""
        self._add("prediction_faults", "", 1)
        self._time(duration_s)

    def take(self) -> dict[tuple[str, str], float]:
        """Return the counts since the last call, by name and label of the counter, and begin again at nothing."""
        amounts, self._amounts = self._amounts, {}
        return amounts

    def _time(self, duration_s: float) -> None:
        self._add("prediction_s", "", duration_s)
        self._add(LATENCY, BOUNDS[bisect_left(_SECONDS, duration_s)], 1)

    def _add(self, name: str, label: str, amount: float) -> None:
        self._amounts[name, label] = self._amounts.get((name, label), 0.0) + amount
