"""Turns the rows of a training that forecasts into a table of windows. Training then treats it like any other table.

A window is the history up to one step of a series, its *origin*, and the steps that follow, which are forecast. Each
step may be an origin (rolling origins). Steps are divided by time: the last steps test, the steps before them
validate, the rest trains. A window belongs to the part in which all the steps that it forecasts lie; if they lie in
two parts, there is no such window. The history of a window may reach into an earlier part. Seasons, scales and errors
of naive forecasts come from training steps and from histories.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from indb_tensile.errors import DataError, MissingColumnError
from indb_tensile.job import JobSpec, Task
from indb_tensile.learning.encoding.forecast_encoding import STEP_METRICS, ErrorSums
from indb_tensile.learning.encoding.targets import TargetEncoding
from indb_tensile.learning.forecasting.forecast_recipe import FUTURE, HISTORY, ForecastRecipe, array_column
from indb_tensile.learning.forecasting.naive_forecasts import baseline_forecasts
from indb_tensile.learning.forecasting.seasons import detect_season
from indb_tensile.learning.forecasting.series_grid import (
    Matrix,
    SeriesColumns,
    SeriesGrid,
    filled_known,
    make_grid,
    steps_of,
)
from indb_tensile.learning.forecasting.time_steps import calendar_cycles, form_of
from indb_tensile.learning.forecasting.windows import Origins, naive_errors, packed_targets
from indb_tensile.learning.storage.columns import Column, ColumnData, ColumnKind, CopyEncoding, TableData
from indb_tensile.learning.storage.splits import Split
from indb_tensile.request.forecast_rules import FORECAST, check_forecast, check_roles, check_sizes, check_steps
from indb_tensile.request.parameter_rules import fill_defaults

PART = "part"  # the column that says which part a window is in
# Numbers of all training windows together: 160 MB of 4 bytes each. If there are more windows, evenly spaced ones
# train.
_MOST_NUMBERS = 40_000_000
_MOST_TESTED = 20_000  # most windows that validate, and that test
_MOST_BASELINES = 2_000  # most windows that baselines forecast
_SEASON_SERIES = 20  # number of series, the longest ones, in which a season is looked for
_LONGEST_WINDOW = 512  # longest window that is chosen if the request gives none
_SHORTEST_WINDOW = 8
_VALID_WINDOWS = 8  # validation windows of a series that is long enough: fewer tell little about when to stop


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ForecastRows:
    """The series of a training, the origins that test, and the first step of each part.

    `errors` are the errors by which MASE divides, of each series and target. `windows` are the numbers of windows
    that train, validate and test. `skipped` is the number of series that are too short for any window.
    """

    grid: SeriesGrid
    known: Matrix
    recipe: ForecastRecipe
    origins: Origins
    errors: Matrix
    valid_from: int
    test_from: int
    windows: tuple[int, int, int]
    skipped: int

    def target(self, name: str) -> TargetEncoding:
        """Return the encoding of the column with what follows each origin."""
        return TargetEncoding(name=name, task=Task.FORECAST, kind=ColumnKind.ARRAY, forecast=self.recipe.values)

    def columns_for(self, recipe: ForecastRecipe) -> dict[str, ColumnData]:
        """Return the windows of the origins that test, as another version's recipe makes them, and what followed."""
        origins = self.origins[self.origins[:, 1] >= recipe.fewest]
        windows = recipe.windows(self.grid, self.known, origins)
        packed = packed_targets(self.grid, origins, recipe.shape, windows, self.errors)
        columns = recipe.window_columns(self.grid, windows, origins)
        return columns | {FUTURE: array_column(packed)}

    def baseline_sums(self) -> dict[str, ErrorSums]:
        """Return the errors of each baseline on evenly spaced windows that test."""
        chosen = _spaced(self.origins, _MOST_BASELINES)
        recipe, values = self.recipe, self.recipe.values
        windows = recipe.windows(self.grid, self.known, chosen)
        packed = packed_targets(self.grid, chosen, recipe.shape, windows, self.errors)
        outcomes = values.split(packed)
        forecasts = baseline_forecasts(self.grid, chosen, recipe.horizon, values.targets, recipe.season)
        return {
            name: ErrorSums.of(values, outcomes, np.repeat(forecast[:, None], 3, axis=1))
            for name, forecast in forecasts.items()
        }

    def facts(self) -> dict[str, Any]:
        """Return what was chosen and found, as plain data."""
        recipe, grid = self.recipe, self.grid
        return {
            "series": len(grid),
            "step": recipe.steps.text,
            "season": recipe.season,
            "window": recipe.window,
            "horizon": recipe.horizon,
            "calendar": list(recipe.cycles),
            "filled_steps": grid.filled,
            "series_too_short": self.skipped,
            "windows": dict(zip(("train", "valid", "test"), self.windows, strict=True)),
        }


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WindowTable:
    """Return the windows as a table, the specification of a training on this table, and the series of the windows."""

    table: TableData
    spec: JobSpec
    rows: ForecastRows


def forecast_columns(spec: JobSpec, described: Mapping[str, ColumnKind]) -> tuple[SeriesColumns, dict[str, Any]]:
    """Return the columns of a specification by role, and all options of its forecast. `described` has their kinds."""
    options = check_forecast(spec.forecast or {})
    targets = spec.target_columns
    if options.get("time") is None:
        raise MissingColumnError("the specification of the forecast names no time", hint="Use tensile_train.")
    check_roles(options, targets, {name: kind.value for name, kind in described.items()})
    check_sizes(options, len(targets))
    if options["time"] in described:
        check_steps(options, described[options["time"]].value)
    values = fill_defaults(options, FORECAST)
    roles = {role: tuple(values[role] or ()) for role in ("series", "known", "observed", "static")}
    columns = SeriesColumns(
        time=values["time"],
        targets=targets,
        kinds=dict(described),
        gaps=values["gaps"],
        duplicates=values["duplicates"],
        **roles,
    )
    return columns, values


def window_table(table: TableData, spec: JobSpec) -> WindowTable:
    """Return the windows of a table's rows. Raises DataError for rows that make none."""
    kinds = {name: data.kind for name, data in table.columns.items()}
    columns, values = forecast_columns(spec, kinds)
    columns = replace(columns, kinds={name: kinds[name] for name in columns.names})
    type_name = next(column.type for column in table.described if column.name == columns.time)
    form = form_of(type_name, kinds[columns.time].value)
    steps = steps_of(columns, table.columns, form, values["step"], values["time_zone"])
    grid = make_grid(columns, table.columns, steps)
    split = Split.parse(spec.split)
    horizon, targets = values["horizon"], len(columns.targets)
    valid_from, test_from = _parts(grid, horizon, split)
    season = values["season"] or detect_season(_longest(grid, valid_from), steps)
    window = values["window"] or _default_window(grid, valid_from, horizon, season)
    covered_s = float(valid_from - grid.starts.min()) * steps.length_s
    recipe = ForecastRecipe(
        columns=columns,
        steps=steps,
        window=window,
        horizon=horizon,
        season=min(season, window),
        cycles=calendar_cycles(steps, covered_s) if values["calendar"] else (),
        interval=values["interval"],
        fewest=min(window, max(4, season + 1 if season > 1 else 2)),
    )
    return _table_of(
        table, spec, grid, recipe, valid_from, test_from, naive_errors(grid, valid_from, recipe.season, targets)
    )


def _table_of(
    table: TableData,
    spec: JobSpec,
    grid: SeriesGrid,
    recipe: ForecastRecipe,
    valid_from: int,
    test_from: int,
    errors: Matrix,
) -> WindowTable:
    parts = _origins(grid, recipe, valid_from, test_from)
    known, origins = filled_known(grid), np.concatenate(parts)
    windows = recipe.windows(grid, known, origins)
    columns = recipe.window_columns(grid, windows, origins)
    columns[FUTURE] = array_column(packed_targets(grid, origins, recipe.shape, windows, errors))
    names = np.repeat(np.array(["train", "valid", "test"], object), [len(own) for own in parts])
    columns[PART] = ColumnData(kind=ColumnKind.TEXT, values=names, missing=np.zeros(len(names), np.bool_))
    counts = (len(parts[0]), len(parts[1]), len(parts[2]))
    rows = ForecastRows(
        grid=grid,
        known=known,
        recipe=recipe,
        origins=parts[2],
        errors=errors,
        valid_from=valid_from,
        test_from=test_from,
        windows=counts,
        skipped=len(grid) - len(np.unique(origins[:, 0])),
    )
    made = TableData(
        columns=columns,
        described=tuple(_described(name, data) for name, data in columns.items()),
        rows=len(origins),
        row_hash=np.arange(len(origins), dtype=np.uint64),
        digest=table.digest,
    )
    own_spec = replace(
        spec,
        target=FUTURE,
        targets=(),
        features=recipe.features,
        exclude=(),
        preprocess={"standardize": {HISTORY: False}},
        split={"column": PART, "valid_size": 0},
        column_numbers={},
        forecast=None,
    )
    return WindowTable(table=made, spec=own_spec, rows=rows)


def _parts(grid: SeriesGrid, horizon: int, split: Split) -> tuple[int, int]:
    """Return the steps from which on steps validate and test, of all series together."""
    first, end = int(grid.starts.min()), int((grid.starts + grid.lengths).max())
    count = end - first
    test = max(round(split.test_size * count), horizon)
    valid = max(round(split.valid_size * count), horizon + _VALID_WINDOWS - 1) if split.valid_size else 0
    if valid and count - test - valid < 2 * horizon:
        valid = max(round(split.valid_size * count), horizon)
    if count - test - valid < horizon + 2:
        raise DataError(
            f"the series have {count} steps, too few for a horizon of {horizon}",
            detail=f"{test} steps test and {valid} validate, each part at least as many as the horizon; "
            f"{max(count - test - valid, 0)} would train.",
            hint=f"Add rows, or shorten the horizon: forecast => '{{\"horizon\": {max(1, count // 8)}, ...}}'.",
        )
    return end - test - valid, end - test


def _longest(grid: SeriesGrid, before: int) -> list[Matrix]:
    """Return the first target's training steps of the longest series."""
    known = np.minimum(grid.lengths, np.maximum(before - grid.starts, 0))
    chosen = np.argsort(-known, kind="stable")[:_SEASON_SERIES]
    return [grid.values[grid.offsets[s] : grid.offsets[s] + known[s], 0] for s in chosen.tolist()]


def _default_window(grid: SeriesGrid, valid_from: int, horizon: int, season: int) -> int:
    """Return the steps of history: the longer of two seasons and two horizons, in whole seasons. No longer than half
    of the median series' training steps.
    """
    wanted = max(2 * horizon, 2 * season if season > 1 else 0, _SHORTEST_WINDOW)
    if season > 1:
        wanted = -(-wanted // season) * season
    known = np.minimum(grid.lengths, np.maximum(valid_from - grid.starts, 0))
    room = int(np.median(known[known > 0])) - horizon if (known > 0).any() else 2
    return int(max(2, min(wanted, _LONGEST_WINDOW, max(room // 2, 2))))


def _origins(
    grid: SeriesGrid, recipe: ForecastRecipe, valid_from: int, test_from: int
) -> tuple[Origins, Origins, Origins]:
    """Return the origins of each part, in the order of series and time."""
    begins = {"train": None, "valid": valid_from, "test": test_from}
    ends = {"train": valid_from, "valid": test_from, "test": None}
    parts = []
    for part in ("train", "valid", "test"):
        own = []
        for series in range(len(grid)):
            start, length = int(grid.starts[series]), int(grid.lengths[series])
            begin, end = begins[part], ends[part]
            first = recipe.fewest if begin is None else max(recipe.fewest, begin - start)
            last = (length if end is None else min(length, end - start)) - recipe.horizon
            if first <= last:
                known = np.arange(first, last + 1)
                own.append(np.stack([np.full(len(known), series), known], axis=1))
        parts.append(np.concatenate(own) if own else np.empty((0, 2), np.int64))
    if not len(parts[0]) or not len(parts[2]):
        first, end = int(grid.starts.min()), int((grid.starts + grid.lengths).max())
        part, steps = ("test", end - test_from) if len(parts[0]) else ("training", valid_from - first)
        raise DataError(
            f"no series is long enough for a window of the {part} part",
            detail=f"A window has {recipe.fewest} steps or more before its origin and {recipe.horizon} after it. The "
            f"longest series has {int(grid.lengths.max())} steps, and the {part} part has {steps} steps.",
            hint='Shorten "horizon" or "window", or add rows.',
        )
    train = _spaced(parts[0], max(1, _MOST_NUMBERS // max(recipe.shape.width + 2 * recipe.shape.values, 1)))
    return train, _spaced(parts[1], _MOST_TESTED), _spaced(parts[2], _MOST_TESTED)


def _spaced(origins: Origins, most: int) -> Origins:
    """Return evenly spaced origins, at most this many."""
    if len(origins) <= most:
        return origins
    return origins[np.arange(most) * len(origins) // most]


def _described(name: str, data: ColumnData) -> Column:
    item = ">f4" if data.kind is ColumnKind.ARRAY else ""
    return Column(name=name, type="", wire=CopyEncoding(kind=data.kind, item=item))


def step_rows(recipe: ForecastRecipe, ours: ErrorSums, baselines: Mapping[str, ErrorSums]) -> list[list[Any]]:
    """Return target, step, metric, our value and that of each baseline, for each step that the rows define."""
    rows: list[list[Any]] = []
    for place, target in enumerate(recipe.columns.targets):
        for step in range(recipe.horizon):
            own = ours.by_step(step, place)
            theirs = [sums.by_step(step, place) for sums in baselines.values()]
            for metric in (*STEP_METRICS, "coverage"):
                if metric in own:
                    others = [None if metric == "coverage" else figures.get(metric) for figures in theirs]
                    rows.append([target, step + 1, metric, own[metric], *others])
    return rows
