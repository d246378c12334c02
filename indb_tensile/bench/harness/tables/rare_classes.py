"""Tables in which the rows of one class are rare, and count as anomalies."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from indb_tensile.bench.harness.tables.sample_tables import make_table
from indb_tensile.learning.decoding.jsonrows import column_of
from indb_tensile.learning.storage.columns import ColumnKind, TableData


@dataclass(frozen=True, slots=True, kw_only=True)
class RareSet:
    """A data set of scikit-learn, the classes that are anomalies, and how many rows of them are kept."""

    name: str
    load: Callable[[], Any]
    rare: tuple[int, ...]
    kept: int
    label: str = "odd"


def _cancer() -> Any:
    from sklearn.datasets import load_breast_cancer

    return load_breast_cancer()


def _wine() -> Any:
    from sklearn.datasets import load_wine

    return load_wine()


def _digits() -> Any:
    from sklearn.datasets import load_digits

    return load_digits()


# The rare classes and their rows follow ODDS: WBC, Wine and Optdigits.
RARE_SETS = (
    RareSet(name="cancer", load=_cancer, rare=(0,), kept=21),
    RareSet(name="wine", load=_wine, rare=(0,), kept=10),
    RareSet(name="digits", load=_digits, rare=(0,), kept=50),
)


def rare_table(chosen: RareSet, seed: int) -> TableData:
    """Return the table, in a random order, with a boolean column that says which rows are anomalies."""
    loaded = chosen.load()
    odd = np.isin(loaded.target, chosen.rare)
    random = np.random.default_rng(seed)
    rows = np.concatenate([np.flatnonzero(~odd), random.permutation(np.flatnonzero(odd))[: chosen.kept]])
    rows = random.permutation(rows)
    names = [f"x{place}" for place in range(loaded.data.shape[1])]
    columns = {
        name: column_of(name, ColumnKind.FLOAT, loaded.data[rows, place].tolist()) for place, name in enumerate(names)
    }
    columns[chosen.label] = column_of(chosen.label, ColumnKind.BOOLEAN, odd[rows].tolist())
    return make_table(columns)
