"""Windows of series: the values that are known at an origin, and those of the steps after it.

The window of an origin has the values of the steps before it, and the known columns of the steps after it too.
Neither the window nor its scale contains a value of a target or of an observed column from the origin on. Values are
scaled by the last value and the standard deviation of the window itself (Kim and others, "Reversible Instance
Normalization", ICLR 2022, with the last value in place of the mean).
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from indb_tensile.learning.forecasting.series_grid import Matrix, SeriesGrid
from indb_tensile.learning.forecasting.time_steps import TimeSteps, calendar_values
from indb_tensile.learning.storage.row_storage import row_blocks

Float32 = npt.NDArray[np.float32]
Origins = npt.NDArray[np.int64]  # (windows, 2): the series, and the steps of it that are known
_BLOCK_WINDOWS = 4096
_LEAST_SPREAD = 1e-3  # least scale of a nearly constant window, as a share of the size of its last value
_SMALLEST_SPREAD = 1e-30  # below it a window counts as constant: single precision ends at 1e-38
_LARGEST_SCALED = 1e30  # largest scaled value that follows a window


@dataclass(frozen=True, kw_only=True)
class WindowShape:
    """The steps that a window looks back, and the steps that follow it."""

    window: int
    horizon: int
    targets: int
    channels: int
    known: int

    @property
    def values(self) -> int:
        """Return how many values are forecast: steps times targets."""
        return self.horizon * self.targets

    @property
    def width(self) -> int:
        """Return the numbers of a window without static columns."""
        return self.window * self.channels + (self.window + self.horizon) * self.known


@dataclass(frozen=True, kw_only=True, eq=False)
class SeriesWindows:
    """Windows of several origins.

    `history` is (windows, window * channels), scaled, and `known` is (windows, (window + horizon) * known). `level`
    and `spread` are (windows, channels): what the window is scaled by.
    """

    history: Float32
    known: Float32
    level: Matrix
    spread: Matrix


def make_windows(
    grid: SeriesGrid, known: Matrix, origins: Origins, shape: WindowShape, steps: TimeSteps, cycles: tuple[str, ...]
) -> SeriesWindows:
    """Return the windows of the origins. `known` are the known columns without gaps, at least as far as is needed.

    A window that begins before its series has the first value of the series there.
    """
    count = len(origins)
    history = np.empty((count, shape.window * shape.channels), np.float32)
    of_known = np.empty((count, (shape.window + shape.horizon) * shape.known), np.float32)
    level, spread = np.empty((count, shape.channels)), np.empty((count, shape.channels))
    for start, end in row_blocks(count, _BLOCK_WINDOWS):
        series, ends = origins[start:end, 0], origins[start:end, 1]
        places = ends[:, None] + np.arange(-shape.window, 0)
        last = grid.offsets[series + 1] - grid.offsets[series] - 1
        values = grid.values[grid.offsets[series][:, None] + np.maximum(places, 0)]
        level[start:end], spread[start:end] = values[:, -1], _spread(values)
        scaled = (values - level[start:end, None]) / spread[start:end, None]
        history[start:end] = scaled.reshape(end - start, -1)
        if shape.known:
            ahead = ends[:, None] + np.arange(-shape.window, shape.horizon)
            inside = np.clip(ahead, 0, last[:, None])
            columns = known[grid.offsets[series][:, None] + inside]
            waves = calendar_values(steps, (grid.starts[series][:, None] + ahead).reshape(-1), cycles)
            whole = np.concatenate([columns, waves.reshape(*ahead.shape, waves.shape[1])], axis=2)
            of_known[start:end] = whole.reshape(end - start, -1)
    return SeriesWindows(history=history, known=of_known, level=level, spread=spread)


def packed_targets(
    grid: SeriesGrid, origins: Origins, shape: WindowShape, windows: SeriesWindows, errors: Matrix
) -> Float32:
    """Return what follows each origin: scaled values, whether each is known, level, spread and mean naive errors.

    The shape is (windows, 2 * values + 3 * targets). `errors` are those of each series and target by which MASE
    divides; 0 where there are none.
    """
    packed = np.empty((len(origins), 2 * shape.values + 3 * shape.targets), np.float32)
    for start, end in row_blocks(len(origins), _BLOCK_WINDOWS):
        series, ends = origins[start:end, 0], origins[start:end, 1]
        places = grid.offsets[series][:, None] + ends[:, None] + np.arange(shape.horizon)
        values, present = grid.values[places][:, :, : shape.targets], grid.present[places][:, :, : shape.targets]
        level = windows.level[start:end, : shape.targets]
        spread = windows.spread[start:end, : shape.targets]
        scaled = np.where(present, (values - level[:, None]) / spread[:, None], 0.0)
        scaled = np.clip(scaled, -_LARGEST_SCALED, _LARGEST_SCALED)
        rows = end - start
        parts = [scaled.reshape(rows, -1), present.reshape(rows, -1), level, spread, errors[series]]
        packed[start:end] = np.concatenate(parts, axis=1)
    return packed


def naive_errors(grid: SeriesGrid, before: int, season: int, targets: int) -> Matrix:
    """Return the mean absolute difference to the value a season before, of the steps before step number `before`.

    The shape is (series, targets). Where a season gives none, or 0, the difference to the step before counts; 0 is
    returned where neither does.
    """
    errors = np.zeros((len(grid), targets))
    for series in range(len(grid)):
        start = grid.offsets[series]
        end = start + max(0, min(int(grid.lengths[series]), before - int(grid.starts[series])))
        values, present = grid.values[start:end, :targets], grid.present[start:end, :targets]
        for lag in dict.fromkeys((season, 1)):
            both = present[lag:] & present[:-lag]
            differences = np.where(both, np.abs(values[lag:] - values[:-lag]), 0.0)
            means = differences.sum(axis=0) / np.maximum(both.sum(axis=0), 1)
            errors[series] = np.where(errors[series] > 0, errors[series], means)
    return errors


def _spread(values: Matrix) -> Matrix:
    """Return what scales each channel of the windows (windows, steps, channels): never 0."""
    spread = np.maximum(values.std(axis=1), _LEAST_SPREAD * np.abs(values[:, -1]))
    return np.where(spread > _SMALLEST_SPREAD, spread, 1.0)
