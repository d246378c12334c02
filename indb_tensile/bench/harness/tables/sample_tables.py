"""Sample tables for benchmarks of quality, in memory as a relation's reader returns them: real, synthetic, or CSV."""

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from indb_tensile.errors import DataError, MissingError
from indb_tensile.job import Task
from indb_tensile.learning.decoding.jsonrows import column_of
from indb_tensile.learning.relation import datasets
from indb_tensile.learning.storage.columns import Column, ColumnData, ColumnKind, CopyEncoding, TableData
from indb_tensile.learning.storage.splits import row_hashes

_KEY = "id"
_SEED = 20130101
_KINDS = {
    "bigint": ColumnKind.INTEGER,
    "int": ColumnKind.INTEGER,
    "text": ColumnKind.TEXT,
    "real[]": ColumnKind.ARRAY,
}
_NULL = ("", "NA")  # NULL in a CSV file, as PostgreSQL and R write it


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SampleTable:
    """A table with a target column, and the task of predicting that."""

    name: str
    table: TableData
    target: str
    task: Task


def sample(name: str) -> SampleTable:
    """Return the sample table of this name, one of NAMES. Raises MissingError for any other name."""
    if name in _SYNTHETIC:
        columns, task = _SYNTHETIC[name](np.random.default_rng(_SEED))
        return SampleTable(name=name, table=make_table(columns), target="target", task=task)
    if name not in NAMES:
        raise MissingError(f'unknown table "{name}"', hint=f"Known tables: {', '.join(NAMES)}.")
    described, rows = datasets.columns(name), list(datasets.rows(name))
    columns = {
        column: column_of(column, _KINDS.get(kind, ColumnKind.FLOAT), [row[place] for row in rows])
        for place, (column, kind) in enumerate(described)
    }
    del columns[_KEY]
    task = Task.REGRESSION if name == "diabetes" else Task.CLASSIFICATION
    return SampleTable(name=name, table=make_table(columns), target=datasets.target(name), task=task)


def from_csv(path: Path, target: str) -> SampleTable:
    """Read a CSV file with a header. A column whose values are all numbers or timestamps gets that type, else text.

    A target column of numbers makes the task a regression. Raises MissingError if the file or the target is missing.
    """
    if not path.is_file():
        raise MissingError(f"there is no file {path}")
    with path.open(newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    if target not in header:
        raise MissingError(f'{path} has no column "{target}"', hint=f"Its columns are: {', '.join(header)}.")
    columns = {name: parse_column([row[place] for row in rows]) for place, name in enumerate(header)}
    task = Task.REGRESSION if columns[target].kind is ColumnKind.FLOAT else Task.CLASSIFICATION
    return SampleTable(name=path.stem, table=make_table(columns), target=target, task=task)


def make_table(columns: dict[str, ColumnData]) -> TableData:
    """Return the columns as a table with the primary key `id`, whose values count the rows from 1."""
    rows = len(next(iter(columns.values())).missing)
    key = _complete_column(ColumnKind.INTEGER, np.arange(1, rows + 1))
    described = tuple(
        Column(name=name, type=data.kind.value, wire=CopyEncoding(kind=data.kind, item=""), primary_key=name == _KEY)
        for name, data in ({_KEY: key} | columns).items()
    )
    return TableData(
        columns={_KEY: key} | columns,
        described=described,
        rows=rows,
        row_hash=row_hashes([key], rows),
        digest="",
    )


def parse_column(texts: Sequence[str]) -> ColumnData:
    """Return a column of numbers if all texts are numbers, of timestamps if all are timestamps, else of texts."""
    values = [None if text in _NULL else text for text in texts]
    try:
        numbers = np.array([np.nan if value is None else float(value) for value in values])
        return ColumnData(kind=ColumnKind.FLOAT, values=numbers, missing=np.isnan(numbers))
    except ValueError:
        pass
    try:
        return column_of("", ColumnKind.TIME, values)
    except DataError:
        return column_of("", ColumnKind.TEXT, values)


def _complete_column(kind: ColumnKind, values: npt.ArrayLike) -> ColumnData:
    listed = np.asarray(values)
    return ColumnData(kind=kind, values=listed, missing=np.zeros(len(listed), np.bool_))


def _number_columns(x: npt.NDArray[np.float64]) -> dict[str, ColumnData]:
    return {f"x{place}": _complete_column(ColumnKind.FLOAT, x[:, place]) for place in range(x.shape[1])}


def _with_target(
    columns: dict[str, ColumnData], target: npt.NDArray[np.generic]
) -> tuple[dict[str, ColumnData], Task]:
    kind, task = (
        (ColumnKind.BOOLEAN, Task.CLASSIFICATION) if target.dtype == np.bool_ else (ColumnKind.FLOAT, Task.REGRESSION)
    )
    return columns | {"target": _complete_column(kind, target)}, task


def _tiny(drawn: np.random.Generator) -> tuple[dict[str, ColumnData], Task]:
    """Return 30 rows of 4 columns, two of which decide between two classes."""
    x = drawn.normal(size=(30, 4))
    return _with_target(_number_columns(x), x[:, 0] + 0.5 * x[:, 1] + 0.3 * drawn.normal(size=30) > 0)


def _imbalanced(drawn: np.random.Generator) -> tuple[dict[str, ColumnData], Task]:
    """Return 2,000 rows, one in twenty of which is in the positive class; a product of columns decides."""
    x = drawn.normal(size=(2000, 8))
    score = x[:, 0] + x[:, 1] * x[:, 2] + 0.5 * drawn.normal(size=2000)
    return _with_target(_number_columns(x), score > np.quantile(score, 0.95))


def _middle(drawn: np.random.Generator) -> tuple[dict[str, ColumnData], Task]:
    """Return 5,000 rows of Friedman's first regression problem (1991)."""
    x = drawn.uniform(size=(5000, 10))
    y = 10 * np.sin(np.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3] + 5 * x[:, 4]
    return _with_target(_number_columns(x), y + drawn.normal(size=5000))


def _wide(drawn: np.random.Generator) -> tuple[dict[str, ColumnData], Task]:
    """Return 400 rows of 500 columns, ten of which decide between two classes."""
    x = drawn.normal(size=(400, 500))
    return _with_target(_number_columns(x), x[:, :10].sum(axis=1) + drawn.normal(size=400) > 0)


def _mixed(drawn: np.random.Generator) -> tuple[dict[str, ColumnData], Task]:
    """Return 327,000 rows of 25 mixed columns, the shape of a year of flights.

    The columns are 19 numbers, five texts of 3 to 4,000 distinct values and a timestamp. The target depends on the
    hour, the texts and a product of numbers.
    """
    rows = 327_000
    x = drawn.normal(size=(rows, 19))
    y = x[:, 0] + x[:, 1] * x[:, 2] + np.abs(x[:, 3])
    columns = _number_columns(x)
    for place, size in enumerate((3, 16, 105, 2000, 4000)):
        codes = np.minimum(drawn.geometric(min(0.5, 5 / size), rows) - 1, size - 1)
        columns[f"word{place}"] = _complete_column(
            ColumnKind.TEXT, np.array([f"w{code}" for code in range(size)], object)[codes]
        )
        y = y + drawn.normal(scale=0.6, size=size)[codes]
    moment = 1_356_998_400 + 60 * drawn.integers(0, 525_600, rows).astype(np.float64)
    columns["moment"] = _complete_column(ColumnKind.TIME, moment)
    hour = moment % 86_400 / 3600
    return _with_target(columns, y + np.sin(2 * np.pi * (hour - 5) / 24) + drawn.normal(size=rows))


_SYNTHETIC: dict[str, Callable[[np.random.Generator], tuple[dict[str, ColumnData], Task]]] = {
    "tiny": _tiny,
    "imbalanced": _imbalanced,
    "middle": _middle,
    "wide": _wide,
    "mixed": _mixed,
}
NAMES = (*datasets.DATASETS, *_SYNTHETIC)
