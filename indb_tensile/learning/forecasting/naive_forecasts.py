"""Forecasts that need no training, as baselines of every forecasting model: naive, seasonal naive, and smoothing.

Exponential smoothing is the additive model with a damped trend: the innovations form of Hyndman, Koehler, Ord and
Snyder, "Forecasting with Exponential Smoothing" (2008), chapter 2. Its parameters are the best of a fixed grid by the
squared errors of one step, on the steps before the first origin.
"""

from itertools import product

import numpy as np

from indb_tensile.learning.forecasting.series_grid import Matrix, SeriesGrid
from indb_tensile.learning.forecasting.windows import Origins

BASELINES = ("naive", "seasonal_naive", "exponential_smoothing")
_MOST_STEPS = 3_000  # most steps of a series that are smoothed: the last ones
_FEWEST_STEPS = 4  # steps that must precede the first origin
# alpha, beta, gamma and the damping phi. A beta or a gamma of 0 keeps the first trend or season.
_GRID = np.array(
    list(product((0.05, 0.2, 0.4, 0.6, 0.8, 0.95), (0.0, 0.02, 0.1, 0.3), (0.0, 0.1, 0.3), (0.8, 0.95, 0.99)))
)


def naive_forecast(grid: SeriesGrid, origins: Origins, horizon: int, targets: int, season: int = 1) -> Matrix:
    """Return the values a season before each step, or the last ones: (origins, horizon, targets)."""
    series, ends = origins[:, 0], origins[:, 1]
    places = ends[:, None] - season + np.arange(horizon) % season
    places = np.where(places >= 0, places, ends[:, None] - 1)
    return grid.values[grid.offsets[series][:, None] + places][:, :, :targets]


def smoothed_forecast(grid: SeriesGrid, origins: Origins, horizon: int, targets: int, season: int) -> Matrix:
    """Return forecasts by exponential smoothing: (origins, horizon, targets).

    The parameters of a series are chosen before its first origin, and its state follows the values up to each origin.
    """
    forecasts = naive_forecast(grid, origins, horizon, targets)
    for series in np.unique(origins[:, 0]).tolist():
        rows = np.flatnonzero(origins[:, 0] == series)
        ends = origins[rows, 1]
        begin = max(0, int(ends.max()) - _MOST_STEPS)
        if ends.min() - begin < _FEWEST_STEPS:
            continue
        start = int(grid.offsets[series])
        values = grid.values[start + begin : start + int(ends.max()), :targets]
        for target in range(targets):
            own = smooth(values[:, target], int(ends.min()) - begin, horizon, season)
            forecasts[rows, :, target] = own[ends - begin - int(ends.min() - begin)]
    return forecasts


def smooth(values: Matrix, known: int, horizon: int, season: int) -> Matrix:
    """Return the forecasts after `known` values, after one more, and so on up to all: (origins, horizon)."""
    seasons = season if 1 < season <= known // 2 else 1
    grid = _GRID if seasons > 1 else _GRID[_GRID[:, 2] == 0]
    errors = _follow(values[:known], grid, seasons, horizon, known)[1]
    best = int(np.argmin(np.where(np.isfinite(errors), errors, np.inf)))
    return _follow(values, grid[best : best + 1], seasons, horizon, known)[0][:, 0]


def _follow(values: Matrix, grid: Matrix, season: int, horizon: int, known: int) -> tuple[Matrix, Matrix]:
    """Return the forecasts from each origin and the squared errors of one step, for each row of parameters."""
    alpha, beta, gamma, phi = grid.T
    level = np.full(len(grid), values[:season].mean())
    second = values[season : 2 * season].mean() if len(values) >= 2 * season and season > 1 else values[1]
    trend = np.full(len(grid), (second - level[0]) / season)
    seasonal = (
        np.tile(values[:season] - values[:season].mean(), (len(grid), 1)) if season > 1 else np.zeros((len(grid), 1))
    )
    damped = np.cumsum(phi[:, None] ** np.arange(1, horizon + 1), axis=1)
    errors, forecasts = np.zeros(len(grid)), []
    for place in range(len(values) + 1):
        if place >= known:
            ahead = seasonal[:, (place + np.arange(horizon)) % season]
            forecasts.append(level[:, None] + damped * trend[:, None] + ahead)
        if place == len(values):
            break
        slot = place % season
        error = values[place] - (level + phi * trend + seasonal[:, slot])
        if place >= season:
            errors += error * error
        level, trend = level + phi * trend + alpha * error, phi * trend + alpha * beta * error
        seasonal[:, slot] += gamma * (1 - alpha) * error if season > 1 else 0.0
    return np.array(forecasts), errors


def baseline_forecasts(
    grid: SeriesGrid, origins: Origins, horizon: int, targets: int, season: int
) -> dict[str, Matrix]:
    """Return the forecast of each baseline: (origins, horizon, targets)."""
    return {
        "naive": naive_forecast(grid, origins, horizon, targets),
        "seasonal_naive": naive_forecast(grid, origins, horizon, targets, season),
        "exponential_smoothing": smoothed_forecast(grid, origins, horizon, targets, season),
    }
