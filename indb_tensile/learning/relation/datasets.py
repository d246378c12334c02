"""Sample data sets from the scikit-learn package. Nothing is downloaded."""

import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from sklearn import datasets

from indb_tensile.errors import MissingError

Row = tuple[Any, ...]

_UNITS = re.compile(r" ?\([a-z]+\)")


def columns(name: str) -> list[tuple[str, str]]:
    """Return names and SQL types of the columns: first `id bigint`, the primary key; last the target."""
    return _dataset(name)[0]


def rows(name: str) -> Iterator[list[Any]]:
    """Yield the rows in the order of `columns`, as values that JSON can represent. The ids count from 1."""
    for position, values in enumerate(_dataset(name)[1]):
        yield [position + 1, *values]


def target(name: str) -> str:
    """Return the name of the column to predict."""
    return _dataset(name)[0][-1][0]


@cache
def _dataset(name: str) -> tuple[list[tuple[str, str]], list[Row]]:
    if name not in _LOADERS:
        hint = f"Known data sets: {', '.join(DATASETS)}."
        raise MissingError(f'unknown data set "{name}"', hint=hint)
    described, values = _LOADERS[name]()
    return [("id", "bigint"), *described], values


def _digits() -> tuple[list[tuple[str, str]], list[Row]]:
    """Load 1,797 images of handwritten digits, each of 8 x 8 pixels with values from 0 to 16."""
    loaded = datasets.load_digits()
    values = zip(loaded.images.tolist(), loaded.target.tolist(), strict=True)
    return [("pixels", "real[]"), ("label", "int")], list(values)


def _tabular(load: Callable[[], Any], *, labels: bool) -> Callable[[], tuple[list[tuple[str, str]], list[Row]]]:
    """Return a loader for a data set of numbers. With `labels` the target is the class name."""

    def loaded() -> tuple[list[tuple[str, str]], list[Row]]:
        bunch = load()
        names = [_snake(name) for name in bunch.feature_names]
        targets = bunch.target_names[bunch.target].tolist() if labels else bunch.target.tolist()
        described = [
            *((name, "double precision") for name in names),
            ("target", "text" if labels else "double precision"),
        ]
        return described, [(*features, value) for features, value in zip(bunch.data.tolist(), targets, strict=True)]

    return loaded


def _snake(name: str) -> str:
    """Convert a feature name to a column name: `sepal length (cm)` becomes sepal_length."""
    return re.sub(r"[^a-z0-9]+", "_", _UNITS.sub("", name.lower())).strip("_")


_LOADERS: dict[str, Callable[[], tuple[list[tuple[str, str]], list[Row]]]] = {
    "digits": _digits,
    "breast_cancer": _tabular(datasets.load_breast_cancer, labels=True),
    "diabetes": _tabular(datasets.load_diabetes, labels=False),
    "wine": _tabular(datasets.load_wine, labels=True),
    "iris": _tabular(datasets.load_iris, labels=True),
}
DATASETS = tuple(_LOADERS)
