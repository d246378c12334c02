"""Scikit-learn's gradient boosting on the columns of a table: numbers as they are, texts as categories."""

from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

from indb_tensile.bench.harness.tables.sample_tables import SampleTable
from indb_tensile.job import Task
from indb_tensile.learning.storage.columns import ColumnData, ColumnKind, Rows
from indb_tensile.learning.storage.splits import Split, divide

_MOST_CATEGORIES = 254  # HistGradientBoosting accepts no more


def boosting(table: SampleTable, seed: int) -> tuple[Any, npt.NDArray[np.float64]]:
    """Return boosting with its defaults, and the features of all rows."""
    columns = {name: data for name, data in table.table.columns.items() if name not in ("id", table.target)}
    x = np.column_stack([_for_boosting(data) for data in columns.values()])
    texts = [name for name, data in columns.items() if data.kind is ColumnKind.TEXT]
    categorical = [place for place, name in enumerate(columns) if name in texts] or None
    estimator = HistGradientBoostingClassifier if table.task is Task.CLASSIFICATION else HistGradientBoostingRegressor
    return estimator(random_state=seed, categorical_features=categorical), x


def rows_to_learn_and_test(table: SampleTable, split: Split) -> tuple[Rows, Rows]:
    """Return the rows to learn from and the rows to score on, from the split of a job."""
    known = np.flatnonzero(~table.table.columns[table.target].missing)
    parts = divide(table.table.row_hash[known], split)
    return known[np.concatenate([parts.train, parts.valid])], known[parts.test]


def _for_boosting(data: ColumnData) -> npt.NDArray[np.float64]:
    """Return an array (rows, columns), NaN where missing. Texts become ranks by frequency; the rarest share one."""
    if data.kind is not ColumnKind.TEXT:
        return data.numbers().reshape(len(data.missing), -1)
    texts = np.where(data.missing, "", data.values).astype(str)
    _, codes, counts = np.unique(texts, return_inverse=True, return_counts=True)
    ranks = np.empty(len(counts), np.int64)
    ranks[np.argsort(-counts, kind="stable")] = np.arange(len(counts))
    codes_by_rank = np.minimum(ranks[codes], _MOST_CATEGORIES - 1).astype(np.float64)
    return np.where(data.missing, np.nan, codes_by_rank)[:, None]
