"""The real time series of `bench series`, and the origins from which each is forecast. Nothing is downloaded.

The list, the horizons, the seasons and the origins were fixed before the first run, and no default may be tuned on
these results: they show how defaults do on unseen series. The files are those of the package statsmodels (the extra
`data`), which are read and not imported.

Each set is one series. The last `TEST_SHARE` of its steps are forecast: the first origin is the step before them, and
each later step is an origin too, as long as the whole horizon is known. The `VALID_SHARE` before them validates.
"""

import csv
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import numpy.typing as npt

from indb_tensile.errors import MissingError

TEST_SHARE = 0.2
VALID_SHARE = 0.15
_MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesSet:
    """A series: a column of a file, the steps to forecast, and the length of its season (1: it has none).

    `unit` is the time between two values, and `start` the first time, as a date or the number of a year.
    """

    name: str
    file: str
    column: str
    horizon: int
    season: int
    unit: str
    start: str


def _macro(column: str) -> SeriesSet:
    return SeriesSet(
        name=f"macrodata {column}",
        file="macrodata/macrodata.csv",
        column=column,
        horizon=8,
        season=4,
        unit="quarter",
        start="1959-01-01",
    )


def _interest(column: str) -> SeriesSet:
    return SeriesSet(
        name=f"interest {column}",
        file="interest_inflation/E6.csv",
        column=column,
        horizon=4,
        season=4,
        unit="quarter",
        start="1972-04-01",
    )


SETS = (
    SeriesSet(name="co2", file="co2/co2.csv", column="co2", horizon=12, season=12, unit="month", start="1958-03-01"),
    SeriesSet(
        name="sunspots",
        file="sunspots/sunspots.csv",
        column="SUNACTIVITY",
        horizon=6,
        season=11,
        unit="year",
        start="1700",
    ),
    SeriesSet(
        name="elnino", file="elnino/elnino.csv", column="", horizon=12, season=12, unit="month", start="1950-01-01"
    ),
    SeriesSet(name="nile", file="nile/nile.csv", column="volume", horizon=5, season=1, unit="year", start="1871"),
    *map(_macro, ("realgdp", "realcons", "realinv", "cpi", "m1", "tbilrate", "unemp", "infl")),
    *map(_interest, ("R", "Dp")),
)


def load_series(chosen: SeriesSet) -> Numbers:
    """Return the values in the order of time; NaN for one that is missing."""
    header, *rows = _records(chosen.file)
    if chosen.name == "elnino":  # a row of the file is a year
        places = [header.index(month) for month in _MONTHS]
        return np.array([[_number(row[place]) for place in places] for row in rows]).reshape(-1)
    place = header.index(chosen.column)
    if chosen.name == "co2":  # a row of the file is a week
        return _monthly_means([row[0] for row in rows], [_number(row[place]) for row in rows])
    return np.array([_number(row[place]) for row in rows])


def origins(chosen: SeriesSet, values: Numbers) -> list[int]:
    """Return how many values are known at each origin."""
    first = len(values) - round(TEST_SHARE * len(values))
    return list(range(first, len(values) - chosen.horizon + 1))


def _records(file: str) -> list[list[str]]:
    spec = find_spec("statsmodels")
    if spec is None or not spec.submodule_search_locations:
        raise MissingError(
            "the package statsmodels, which has the series, is not installed",
            hint="Install it with its dependencies: pip install statsmodels.",
        )
    path = Path(spec.submodule_search_locations[0], "datasets", file)
    with path.open(newline="") as lines:
        return [[cell.strip() for cell in row] for row in csv.reader(lines)]


def _number(text: str) -> float:
    return float(text) if text else float("nan")


def _monthly_means(days: list[str], values: list[float]) -> Numbers:
    """Return the mean of the known values of each month, without gaps in the months."""
    months = np.array([12 * int(day[:4]) + int(day[4:6]) for day in days])
    known = np.isfinite(values)
    sums = np.bincount(months[known] - months[0], np.array(values)[known])
    counts = np.bincount(months[known] - months[0])
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
