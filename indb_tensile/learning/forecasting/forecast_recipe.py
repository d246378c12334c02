"""What a version of a forecasting model needs beside its network, in the form in which it is stored."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from indb_tensile.errors import DatabaseError
from indb_tensile.learning.encoding.forecast_encoding import ForecastValues
from indb_tensile.learning.forecasting.series_grid import Matrix, SeriesColumns, SeriesGrid
from indb_tensile.learning.forecasting.time_steps import TimeSteps
from indb_tensile.learning.forecasting.windows import Origins, SeriesWindows, WindowShape, make_windows
from indb_tensile.learning.storage.columns import ColumnData, ColumnKind

HISTORY, KNOWN, FUTURE = "past values", "known values", "future values"  # the columns that windows become


@dataclass(frozen=True, kw_only=True)
class ForecastRecipe:
    """How rows become windows: the columns, the steps, the season, and the shape of the windows.

    `fewest` is the number of steps that a series must have before an origin. `width` is that of intervals
    (forecast_encoding.py).
    """

    columns: SeriesColumns
    steps: TimeSteps
    window: int
    horizon: int
    season: int
    cycles: tuple[str, ...]
    interval: float
    fewest: int
    width: float = 1.0

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "ForecastRecipe":
        """Restore the recipe that `to_json` returned. Raises DatabaseError for anything else."""
        try:
            return msgspec.convert(stored, cls)
        except msgspec.ValidationError as error:
            raise DatabaseError(f"the stored forecast cannot be read: {error}") from error

    def to_json(self) -> dict[str, Any]:
        """Return the recipe as plain data that JSON can represent."""
        stored: dict[str, Any] = msgspec.to_builtins(self)
        return stored

    @property
    def shape(self) -> WindowShape:
        """Return the shape of the windows."""
        columns = self.columns
        return WindowShape(
            window=self.window,
            horizon=self.horizon,
            targets=len(columns.targets),
            channels=len(columns.channels),
            known=len(columns.known) + 2 * len(self.cycles),
        )

    @property
    def values(self) -> ForecastValues:
        """Return what the outputs of the network mean."""
        return ForecastValues(
            horizon=self.horizon, targets=len(self.columns.targets), interval=self.interval, width=self.width
        )

    @property
    def layout(self) -> dict[str, int]:
        """Return what a network for windows must know of them."""
        shape = self.shape
        own = {"window": self.window, "horizon": self.horizon, "window_channels": shape.channels}
        return own | {"targets": shape.targets, "known": shape.known, "season": self.season}

    @property
    def features(self) -> tuple[str, ...]:
        """Return the names of the columns that a window becomes, in the order of the encoded numbers."""
        return (*self.columns.static, HISTORY, *((KNOWN,) if self.shape.known else ()))

    def windows(self, grid: SeriesGrid, known: Matrix, origins: Origins) -> SeriesWindows:
        """Return the windows of the origins."""
        return make_windows(grid, known, origins, self.shape, self.steps, self.cycles)

    def window_columns(self, grid: SeriesGrid, windows: SeriesWindows, origins: Origins) -> dict[str, ColumnData]:
        """Return the windows as columns of a table, which the preprocessing encodes."""
        columns = {name: data.take(origins[:, 0]) for name, data in grid.static.items()}
        columns[HISTORY] = array_column(windows.history)
        if self.shape.known:
            columns[KNOWN] = array_column(windows.known)
        return columns


def array_column(values: Any) -> ColumnData:
    """Return a column of arrays, each of which is there and finite."""
    missing = np.broadcast_to(np.False_, len(values))
    return ColumnData(kind=ColumnKind.ARRAY, values=values, missing=missing, all_finite=True)
