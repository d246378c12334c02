"""Compares forecasts of real series by the default of `task => 'forecast'` with statsmodels' exponential smoothing.

    python -m indb_tensile.bench series [--sets co2 sunspots …] [--architectures auto dlinear …] [--seeds 1] [--json]

The sets and origins are those of `bench/harness/tables/series_sets.py`. Each network is trained once, on the steps
before those that are forecast, and forecasts from every origin. Exponential smoothing (`ExponentialSmoothing` with an
additive damped trend, and an additive season where the set has one) is fitted anew at every origin, to all steps
before it: it sees more. Naive forecasts are the last value, and the value a season before. All methods are told the
season of the set, so nothing is detected here.

A figure is the mean absolute error over all steps of all origins, by that of the naive forecast. Networks are trained
as a job trains them, by plain PyTorch on the processor.
"""

import argparse
import json
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace

import numpy as np
import torch
from rich.console import Console
from threadpoolctl import threadpool_limits

from indb_tensile.bench.harness.processes.argument_types import whole
from indb_tensile.bench.harness.processes.process_exit import run
from indb_tensile.bench.harness.results.result_tables import print_table
from indb_tensile.bench.harness.tables.series_sets import (
    SETS,
    TEST_SHARE,
    VALID_SHARE,
    Numbers,
    SeriesSet,
    load_series,
    origins,
)
from indb_tensile.bench.harness.trainings.table_trainings import Stopwatch, outputs_of, train
from indb_tensile.job import JobSpec, Relation, Task
from indb_tensile.learning.encoding.forecast_encoding import interval_width
from indb_tensile.learning.forecasting.forecast_table import ForecastRows, window_table
from indb_tensile.learning.forecasting.naive_forecasts import naive_forecast, smoothed_forecast
from indb_tensile.learning.forecasting.windows import Origins
from indb_tensile.learning.storage.columns import Column, ColumnData, ColumnKind, CopyEncoding, TableData
from indb_tensile.learning.training.preparation import assemble_windows

_RIVALS = ("naive", "seasonal_naive", "own_smoothing", "statsmodels")
_UNITS = {"month": 1, "quarter": 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesScore:
    """The error of one method on one set, by that of the naive forecast, and its cost."""

    set: str
    method: str
    seed: int
    origins: int
    mae: float
    by_naive: float
    coverage: float | None
    processor_s: float


def main() -> None:
    """Print a table, or one JSON object for each score."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    names = [chosen.name for chosen in SETS]
    parser.add_argument("--sets", nargs="+", choices=names, default=names)
    parser.add_argument("--architectures", nargs="*", default=["auto"])
    parser.add_argument("--rivals", nargs="*", choices=_RIVALS, default=list(_RIVALS))
    parser.add_argument("--seeds", type=whole(), default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    scores: list[SeriesScore] = []
    with threadpool_limits(1):
        torch.set_num_threads(1)
        for chosen in (own for own in SETS if own.name in options.sets):
            for score in measure(chosen, options.architectures, options.rivals, options.seeds):
                scores.append(score)
                if options.json:
                    print(json.dumps(asdict(score)), flush=True)
    if not options.json:
        _print(scores)


def measure(chosen: SeriesSet, architectures: list[str], rivals: list[str], seeds: int) -> Iterator[SeriesScore]:
    """Yield the scores of all methods on one set. All are judged on the same steps."""
    values = load_series(chosen)
    rows = window_table(table_of(chosen, values), specify(chosen, "auto", 0)).rows
    ends = np.array([[0, known] for known in origins(chosen, values)])
    assert rows.origins.tolist() == ends.tolist()
    naive = _error(chosen, values, ends, naive_forecast(rows.grid, ends, chosen.horizon, 1)[:, :, 0])
    for rival in rivals:
        with Stopwatch() as watch:
            forecasts = _rival(rival, chosen, rows, ends)
        error = _error(chosen, values, ends, forecasts)
        yield _score(chosen, rival, 0, len(ends), error, naive, None, watch.processor_s)
    for architecture in architectures:
        for seed in range(seeds):
            with Stopwatch() as watch:
                forecasts, coverage = _network(chosen, values, architecture, seed)
            error = _error(chosen, values, ends, forecasts)
            yield _score(chosen, architecture, seed, len(ends), error, naive, coverage, watch.processor_s)


def table_of(chosen: SeriesSet, values: Numbers) -> TableData:
    """Return the series as a table with the columns t and y."""
    rows = len(values)
    if chosen.unit == "year":
        kind, type_name, times = ColumnKind.INTEGER, "integer", int(chosen.start) + np.arange(rows)
    else:
        months = np.datetime64(chosen.start[:7], "M") + _UNITS[chosen.unit] * np.arange(rows)
        kind, type_name = ColumnKind.DATE, "date"
        times = months.astype("datetime64[s]").astype(np.int64).astype(np.float64)
    columns = {
        "t": ColumnData(kind=kind, values=times, missing=np.zeros(rows, np.bool_)),
        "y": ColumnData(kind=ColumnKind.FLOAT, values=values.copy(), missing=np.isnan(values)),
    }
    described = (
        Column(name="t", type=type_name, wire=CopyEncoding(kind=kind, item=">i4")),
        Column(name="y", type="double precision", wire=CopyEncoding(kind=ColumnKind.FLOAT, item=">f8")),
    )
    hashes = np.arange(rows, dtype=np.uint64)
    return TableData(columns=columns, described=described, rows=rows, row_hash=hashes, digest=chosen.name)


def specify(chosen: SeriesSet, architecture: str, seed: int) -> JobSpec:
    """Return a job's specification for this set."""
    return JobSpec(
        model="m",
        relation=Relation(oid=1, schema="public", name="series"),
        target="y",
        task=Task.FORECAST,
        architecture={"type": architecture},
        hyperparams={"seed": seed},
        split={"test_size": TEST_SHARE, "valid_size": VALID_SHARE},
        forecast={"time": "t", "horizon": chosen.horizon, "season": chosen.season},
    )


def _network(chosen: SeriesSet, values: Numbers, architecture: str, seed: int) -> tuple[Numbers, float]:
    """Train, and return the forecasts (origins, horizon) and the share of values within the interval."""
    prepared = assemble_windows(window_table(table_of(chosen, values), specify(chosen, architecture, seed)))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        train(prepared)
    assert prepared.forecast is not None
    meaning = prepared.forecast.recipe.values
    valid = outputs_of(prepared, prepared.valid).numpy()
    meaning = replace(meaning, width=interval_width(meaning, valid, prepared.valid.targets.numpy()))
    outcomes = meaning.split(prepared.test.targets.numpy())
    outputs = outputs_of(prepared, prepared.test).numpy()
    predicted = meaning.restored(outputs, outcomes.level, outcomes.spread)[..., 0]
    actual, present = outcomes.actual[..., 0], outcomes.present[..., 0]
    inside = (predicted[:, 0] <= actual) & (actual <= predicted[:, 2])
    return predicted[:, 1], float(inside[present].mean())


def _rival(name: str, chosen: SeriesSet, rows: ForecastRows, ends: Origins) -> Numbers:
    """Return the forecasts of a rival: (origins, horizon)."""
    grid, horizon, season = rows.grid, chosen.horizon, chosen.season
    match name:
        case "naive":
            forecasts = naive_forecast(grid, ends, horizon, 1)
        case "seasonal_naive":
            forecasts = naive_forecast(grid, ends, horizon, 1, season)
        case "own_smoothing":
            forecasts = smoothed_forecast(grid, ends, horizon, 1, season)
        case _:
            return np.array([_statsmodels(grid.values[:known, 0], chosen) for known in ends[:, 1].tolist()])
    own: Numbers = forecasts[:, :, 0]
    return own


def _statsmodels(history: Numbers, chosen: SeriesSet) -> Numbers:
    from statsmodels.tsa.holtwinters import ExponentialSmoothing  # slow to import, and not needed by others

    season = {"seasonal": "add", "seasonal_periods": chosen.season} if chosen.season > 1 else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of optimizations that end without convergence
        fitted = ExponentialSmoothing(history, trend="add", damped_trend=True, **season).fit()
        forecast: Numbers = np.asarray(fitted.forecast(chosen.horizon))
    return forecast


def _error(chosen: SeriesSet, values: Numbers, ends: Origins, forecasts: Numbers) -> float:
    """Return the mean absolute error over the steps whose values are known."""
    actual = values[ends[:, 1, None] + np.arange(chosen.horizon)]
    return float(np.nanmean(np.abs(actual - forecasts)))


def _score(
    chosen: SeriesSet,
    method: str,
    seed: int,
    count: int,
    error: float,
    naive: float,
    coverage: float | None,
    processor_s: float,
) -> SeriesScore:
    return SeriesScore(
        set=chosen.name,
        method=method,
        seed=seed,
        origins=count,
        mae=error,
        by_naive=round(error / naive, 4),
        coverage=None if coverage is None else round(coverage, 3),
        processor_s=round(processor_s, 2),
    )


def _print(scores: list[SeriesScore]) -> None:
    """Print a line for each set with the ratio of each method, the mean over its seeds, and the means of all sets."""
    methods = list(dict.fromkeys(score.method for score in scores))
    lines = []
    for name in dict.fromkeys(score.set for score in scores):
        own = [score for score in scores if score.set == name]
        line = {"set": name, "origins": str(own[0].origins)}
        for method in methods:
            line[method] = f"{np.mean([score.by_naive for score in own if score.method == method]):.3f}"
        covered = [score.coverage for score in own if score.coverage is not None]
        lines.append(line | {"coverage": f"{np.mean(covered):.2f}" if covered else ""})
    means = {"set": "mean of ratios", "origins": ""}
    for method in methods:
        means[method] = f"{np.mean([float(line[method]) for line in lines]):.3f}"
    covered = [float(line["coverage"]) for line in lines if line["coverage"]]
    lines.append(means | {"coverage": f"{np.mean(covered):.2f}" if covered else ""})
    print_table(Console(width=160, highlight=False), "mean absolute error by that of the naive forecast", lines)


if __name__ == "__main__":
    run(main)
