"""Detects the season of series: the lag at which their changes repeat."""

import numpy as np
import numpy.typing as npt

from indb_tensile.learning.forecasting.time_steps import TimeSteps

_CANDIDATES: dict[tuple[int, str], tuple[int, ...]] = {
    (1, "hour"): (24, 168),
    (30, "minute"): (48, 336),
    (15, "minute"): (96,),
    (10, "minute"): (144,),
    (5, "minute"): (288,),
    (1, "minute"): (60, 1440),
    (1, "second"): (60,),
    (1, "day"): (7,),
    (1, "week"): (52,),
    (1, "month"): (12,),
    (1, "quarter"): (4,),
}
_LEAST_CORRELATION = 0.3
_LONGEST_SOUGHT = 400  # longest season that is looked for if the step suggests none
_FEWEST_SEASONS = 3  # seasons that the values must cover

Matrix = npt.NDArray[np.float64]


def detect_season(series: list[Matrix], steps: TimeSteps) -> int:
    """Return the season of most series, or 1 if there is none. `series` are values of training steps alone.

    Candidates are the lengths that the step suggests, such as 24 and 168 hours. If it suggests none, they are all
    lags at which the autocorrelation has a maximum.
    """
    candidates = _CANDIDATES.get((steps.count, steps.unit))
    votes = [_season_of(values, candidates) for values in series if len(values) > 2]
    if not votes:
        return 1
    seasons, counts = np.unique(votes, return_counts=True)
    return int(seasons[np.argmax(counts)])


def _season_of(values: Matrix, candidates: tuple[int, ...] | None) -> int:
    """Return the lag with the highest autocorrelation of what a straight line leaves, if it is high enough."""
    longest = len(values) // _FEWEST_SEASONS
    lags = np.arange(2, min(longest, _LONGEST_SOUGHT) + 1) if candidates is None else np.array(candidates)
    lags = lags[lags <= longest]
    changes = np.diff(values) if candidates is not None else _without_line(values)
    spread = float(np.square(changes - changes.mean()).sum())
    if not len(lags) or spread == 0:
        return 1
    rest = changes - changes.mean()
    correlations = np.array(
        [float((rest[lag:] * rest[:-lag]).sum()) / spread * len(rest) / (len(rest) - lag) for lag in lags]
    )
    if candidates is None:
        rises = correlations[1:] > correlations[:-1]
        inner = np.flatnonzero(rises[:-1] & ~rises[1:]) + 1
        lags, correlations = lags[inner], correlations[inner]
    if not len(lags) or correlations.max() < _LEAST_CORRELATION:
        return 1
    return int(lags[np.argmax(correlations)])


def _without_line(values: Matrix) -> Matrix:
    places = np.arange(len(values), dtype=np.float64)
    slope, level = np.polyfit(places, values, 1)
    rest: Matrix = values - (slope * places + level)
    return rest
