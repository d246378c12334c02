"""Forecasts series from rows that SQL sends, and judges forecasts on rows whose outcome is known."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from indb_tensile.errors import DataError, RequestError
from indb_tensile.learning.decoding.jsonrows import column_of
from indb_tensile.learning.encoding.forecast_encoding import ErrorSums
from indb_tensile.learning.forecasting.forecast_recipe import ForecastRecipe
from indb_tensile.learning.forecasting.series_grid import Matrix, SeriesGrid, filled_known, make_grid, require_times
from indb_tensile.learning.forecasting.windows import Origins, naive_errors, packed_targets
from indb_tensile.learning.models.model_predictor import ModelPredictor
from indb_tensile.learning.storage.columns import ColumnData

_MOST_ORIGINS = 2_000  # most origins of one series that are evaluated; of more, evenly spaced ones are

Answer = list[Any]  # series by column, target, step, time, value, lower and upper end


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesRow:
    """A row of a series. `later` rows are from the relation with future values of known columns."""

    later: bool
    values: Mapping[str, Any]


class Forecaster:
    """A forecasting model, and how rows become its windows."""

    def __init__(self, predictor: ModelPredictor) -> None:
        recipe = predictor.bundle.forecast
        if recipe is None:
            target = predictor.preprocessor.target.name
            raise RequestError(
                f'the model predicts "{target}" of single rows, and forecasts no series',
                hint="Ask for predictions with tensile_predict(...), or train it with task => 'forecast'.",
            )
        self._predictor = predictor
        self.recipe: ForecastRecipe = recipe

    def forecast(self, rows: Sequence[SeriesRow], horizon: int | None = None) -> list[Answer]:
        """Return the next steps of each series, of each target.

        A series that is too short for a window has no values. Raises DataError for a known column without a value.
        """
        steps = self.recipe.horizon if horizon is None else horizon
        if not 1 <= steps <= self.recipe.horizon:
            raise RequestError(
                f"horizon is {steps}, and the model forecasts {self.recipe.horizon} steps",
                hint=f"Give 1 to {self.recipe.horizon}, or train the model with a longer horizon.",
            )
        if not rows:
            return []
        grid = self._grid(rows)
        self._require_known(grid, steps)
        chosen = np.flatnonzero(grid.lengths >= self.recipe.fewest)
        origins = np.stack([chosen, grid.lengths[chosen]], axis=1).astype(np.int64)
        predicted = self._predicted(grid, filled_known(grid), origins)
        place_of = dict(zip(chosen.tolist(), range(len(chosen)), strict=True))
        answers: list[Answer] = []
        for series in range(len(grid)):
            place = place_of.get(series)
            own = None if place is None else predicted[place]
            answers += self._answers(grid, series, steps, own)
        return answers

    def judge(self, rows: Sequence[SeriesRow]) -> ErrorSums | None:
        """Return the sums of errors from every origin of the rows whose horizon is known; None if there is none."""
        if not rows:
            return None
        grid, recipe = self._grid(rows), self.recipe
        parts = []
        for series in range(len(grid)):
            known = np.arange(recipe.fewest, int(grid.lengths[series]) - recipe.horizon + 1)
            known = known[
                np.arange(min(len(known), _MOST_ORIGINS)) * len(known) // max(min(len(known), _MOST_ORIGINS), 1)
            ]
            parts.append(np.stack([np.full(len(known), series), known], axis=1))
        origins = np.concatenate(parts).astype(np.int64)
        if not len(origins):
            return None
        errors = naive_errors(grid, int((grid.starts + grid.lengths).max()), recipe.season, recipe.shape.targets)
        windows = recipe.windows(grid, filled_known(grid), origins)
        outcomes = recipe.values.split(packed_targets(grid, origins, recipe.shape, windows, errors))
        outputs = self._outputs(grid, origins, windows)
        return ErrorSums.of(recipe.values, outcomes, recipe.values.restored(outputs, outcomes.level, outcomes.spread))

    def _predicted(self, grid: SeriesGrid, known: Matrix, origins: Origins) -> Matrix:
        """Return lower ends, medians and upper ends: (origins, 3, horizon, targets)."""
        recipe = self.recipe
        if not len(origins):
            return np.empty((0, 3, recipe.horizon, recipe.shape.targets))
        windows = recipe.windows(grid, known, origins)
        targets = recipe.shape.targets
        level, spread = windows.level[:, :targets], windows.spread[:, :targets]
        return recipe.values.restored(self._outputs(grid, origins, windows), level, spread)

    def _outputs(self, grid: SeriesGrid, origins: Origins, windows: Any) -> Any:
        columns = self.recipe.window_columns(grid, windows, origins)
        return self._predictor.outputs(self._predictor.preprocessor.transform(columns))

    def _grid(self, rows: Sequence[SeriesRow]) -> SeriesGrid:
        recipe = self.recipe
        rows = self._without_overlap(rows)
        data: dict[str, ColumnData] = {
            name: column_of(name, recipe.columns.kinds[name], [row.values.get(name) for row in rows])
            for name in recipe.columns.names
        }
        require_times(recipe.columns, data)
        return make_grid(recipe.columns, data, recipe.steps)

    def _without_overlap(self, rows: Sequence[SeriesRow]) -> list[SeriesRow]:
        """Leave out later rows of steps whose target is known, and rows of steps that a later row has too."""
        if not any(row.later for row in rows):
            return list(rows)
        columns, steps = self.recipe.columns, self.recipe.steps
        times = column_of(columns.time, columns.kinds[columns.time], [row.values.get(columns.time) for row in rows])
        numbers = steps.numbers(np.nan_to_num(times.numbers())).tolist()
        keys = [tuple(row.values.get(name) for name in columns.series) for row in rows]
        last: dict[tuple[Any, ...], int] = {}
        for key, number, row in zip(keys, numbers, rows, strict=True):
            if not row.later and any(row.values.get(name) is not None for name in columns.targets):
                last[key] = max(last.get(key, number), number)
        replaced = {
            (key, number)
            for key, number, row in zip(keys, numbers, rows, strict=True)
            if row.later and number > last.get(key, number)
        }
        return [
            row
            for key, number, row in zip(keys, numbers, rows, strict=True)
            if ((key, number) in replaced if row.later else (key, number) not in replaced)
        ]

    def _require_known(self, grid: SeriesGrid, steps: int) -> None:
        """Refuse a known column without a value at one of the next steps."""
        columns = self.recipe.columns
        if not columns.known:
            return
        for series in range(len(grid)):
            if grid.lengths[series] < self.recipe.fewest:
                continue
            start = int(grid.offsets[series] + grid.lengths[series])
            own = grid.known[start : min(start + steps, int(grid.offsets[series + 1]))]
            whole = np.concatenate([own, np.full((steps - len(own), own.shape[1]), np.nan)])
            if np.isnan(whole).any():
                step, place = np.argwhere(np.isnan(whole))[0].tolist()
                moment = self._times(grid, series, steps)[step]
                raise DataError(
                    f'{grid.title(series, columns)} has no value of "{columns.known[place]}" at {moment}, which is '
                    "known in advance",
                    detail=f"Step {step + 1} of {steps} needs it.",
                    hint="Add rows with future times, whose target is NULL, or name a relation that has them: "
                    "future => 'table'. Or ask for fewer steps: horizon => 1.",
                )

    def _times(self, grid: SeriesGrid, series: int, steps: int) -> list[str]:
        last = np.full(steps, grid.last_times[series])
        own = self.recipe.steps
        if own.truncates:
            last = own.times(last, np.zeros(steps, np.int64))
        return own.texts(own.times(last, np.arange(1, steps + 1)))

    def _answers(self, grid: SeriesGrid, series: int, steps: int, predicted: Matrix | None) -> list[Answer]:
        key = dict(zip(self.recipe.columns.series, grid.keys[series], strict=True))
        times = self._times(grid, series, steps)
        answers: list[Answer] = []
        for place, target in enumerate(self.recipe.columns.targets):
            for step in range(steps):
                lower, value, upper = (None,) * 3 if predicted is None else predicted[:, step, place].tolist()
                answers.append([key, target, step + 1, times[step], value, lower, upper])
        return answers
