"""Chooses the columns to learn from: the requested ones, those of the last run, or all that are not keys."""

from collections.abc import Sequence

from ..request.feature_rules import check_features
from ..request.request_fields import read_names
from ..request.split_rules import deciding_column
from .spi import Json, Plpy
from .training_table import Table, TableColumn, require_learnable


def choose_features(
    plpy: Plpy, request: Json, before: Json, table: Table, target: TableColumn
) -> tuple[list[str] | None, list[str]]:
    """Return `features` and `exclude` of the specification.

    `features` is None if every column that is not excluded is a feature.
    """
    features, exclude = _requested_or_inherited(request, before, table)
    for name in exclude:
        table.column(name, "exclude")
    if features is None:
        exclude = exclude + _exclude_keys(plpy, table, target, exclude)
        used = _all_but(table, target.name, exclude)
    else:
        used = [table.column(name, "features") for name in features if name not in exclude]
    check_features(target.name, [column.name for column in used], str(table), table.column_names)
    require_learnable(table, used)
    return features if features is None else [column.name for column in used], exclude


def used_columns(table: Table, spec: Json) -> list[TableColumn]:
    """Return the feature columns of a specification.

    The column that decides about the split is a feature only if `features` names it.
    """
    if spec["features"] is not None:
        return [column for column in table.columns if column.name in spec["features"]]
    column = deciding_column(spec["split"])
    return _all_but(table, spec["target"], [*spec["exclude"], *([] if column is None else [column])])


def _requested_or_inherited(request: Json, before: Json, table: Table) -> tuple[list[str] | None, list[str]]:
    """Return both arguments; they are inherited together.

    A column that the last run excluded is dropped from `exclude` if it no longer exists or is a feature now.
    """
    features = read_names(request, "features")
    exclude = read_names(request, "exclude")
    if features is None and exclude is None:
        features = before.get("features")
    if exclude is None:
        present = {column.name for column in table.columns}
        exclude = [name for name in before.get("exclude") or () if name in present and name not in (features or ())]
    return features, exclude


def _all_but(table: Table, target: str, exclude: Sequence[str]) -> list[TableColumn]:
    return [column for column in table.columns if column.name != target and column.name not in exclude]


def _exclude_keys(plpy: Plpy, table: Table, target: TableColumn, exclude: Sequence[str]) -> list[str]:
    """Return the key columns, which are excluded, and notify the client of them."""
    keys = [column.name for column in _all_but(table, target.name, exclude) if column.key]
    if keys:
        plpy.notice(
            f"left out of the features, as keys only identify rows: {', '.join(keys)} "
            "(name them in features => array[...] to learn from them)"
        )
    return keys
