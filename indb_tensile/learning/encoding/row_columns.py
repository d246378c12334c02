"""Turns predicted rows that came as JSON into columns, as far as their inputs are measured."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from indb_tensile.learning.decoding.jsonrows import column_of, named, single
from indb_tensile.learning.encoding.preprocessor import Preprocessor
from indb_tensile.learning.storage.columns import ColumnData, Columns


def columns_of_rows(preprocessor: Preprocessor, rows: Sequence[Any], features: Sequence[str]) -> Columns:
    """Return these features of the rows, which the preprocessor must have accepted.

    The numbers are those that the model has read: values of type real are rounded to single precision.
    """
    recipe, kinds = preprocessor.recipe, preprocessor.feature_kinds
    single_array = bool(recipe.arrays or recipe.labels)
    objects = [named(row, recipe.features, single_array=single_array) for row in rows]
    columns: dict[str, ColumnData] = {}
    for name in features:
        data = column_of(name, kinds[name], [row[name] for row in objects])
        if name in recipe.singles:
            data = replace(data, values=single(data.values))
        columns[name] = data
    return columns
