"""Chooses the columns to learn from, and checks that rows have the values that they must have."""

from collections.abc import Sequence

import numpy as np

from indb_tensile.errors import MissingError, RequestError
from indb_tensile.learning.encoding.encoders import require
from indb_tensile.learning.encoding.feature_options import FeatureOptions
from indb_tensile.learning.storage.columns import Column, ColumnKind, ColumnRows, Columns, Rows
from indb_tensile.learning.storage.row_storage import BLOCK_ROWS
from indb_tensile.request.feature_rules import check_features


def choose_features(
    described: Sequence[Column],
    target: str,
    features: Sequence[str] | None,
    exclude: Sequence[str] = (),
    options: FeatureOptions | None = None,
) -> tuple[str, ...]:
    """Return the columns to learn from.

    Without `features` these are all columns except the target, the excluded ones, primary keys and identity columns.
    Raises MissingError for an unknown column, RequestError for a contradiction, if no column is left, and for an
    option that does not apply to its column.
    """
    names = [column.name for column in described]
    for name in (*([target] if target else []), *(features or ()), *exclude):
        if name not in names:
            detail = f"The table's columns are: {', '.join(names)}."
            raise MissingError(f'column "{name}" does not exist in the table', detail=detail)
    if features is not None:
        _check_feature_names(features, exclude)
        chosen = tuple(features)
    else:
        out = {target, *exclude}
        chosen = tuple(c.name for c in described if c.name not in out and not c.primary_key and not c.identity)
    check_features([target], chosen, "the table", names)
    if options is not None:
        options.check({column.name: column for column in described if column.name in chosen}, names)
    return chosen


def require_present(columns: Columns, features: Sequence[str], options: FeatureOptions, rows: Rows) -> None:
    """Raise DataError if one of `rows` lacks a required value.

    The message contains the row's position in the table. `columns` have the chosen paths of documents.
    """
    paths = options.document_paths([name for name in features if columns[name].kind is ColumnKind.DOCUMENT])
    for name in (*features, *(path.name for path in paths)):
        if options.missing_rule(name, columns[name].kind) == "error":
            blocks = ColumnRows(columns[name], rows).blocks(BLOCK_ROWS)
            require(name, np.concatenate([block.absent() for block in blocks]), rows)


def _check_feature_names(features: Sequence[str], exclude: Sequence[str]) -> None:
    for name in features:
        if features.count(name) > 1:
            raise RequestError(f'feature "{name}" is named {features.count(name)} times', hint="Name it once.")
        if name in exclude:
            raise RequestError(f'column "{name}" is both a feature and excluded', hint="Leave it out of one of them.")
