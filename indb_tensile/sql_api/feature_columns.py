"""Chooses the columns to learn from: the requested ones, those of the last run, or all that are not keys."""

# ruff: noqa: S608 - every name that goes into a statement is quoted by quote_ident

import json
from collections.abc import Collection, Sequence

from ..request.column_types import unusable_reason
from ..request.feature_rules import check_features
from ..request.request_fields import read_names
from ..request.split_rules import withheld_column
from ..request.task_rules import predicts_target, target_columns
from .spi import Json, Plpy, literal
from .training_table import Table, TableColumn, refuse_unusable

_ROWS = 10_000  # rows in which the values of uuids are counted


def choose_features(
    plpy: Plpy, request: Json, before: Json, table: Table, targets: Sequence[str], documents: Collection[str]
) -> tuple[list[str] | None, list[str]]:
    """Return `features` and `exclude` of the specification.

    `features` is None if every column that is not excluded is a feature. `documents` are the json columns whose paths
    are chosen. Refuses all columns together that cannot be features.
    """
    features, exclude = _requested_or_inherited(request, before, table)
    excluded_by_caller = tuple(exclude)
    for name in exclude:
        table.column(name, "exclude")
    if features is None:
        exclude = exclude + _exclude_keys(plpy, table, targets, exclude)
        exclude = exclude + _exclude_unique(plpy, table, _all_but(table, (*targets, *exclude)))
        used = _all_but(table, (*targets, *exclude))
        unique: Collection[str] = ()
    else:
        used = [table.column(name, "features") for name in features if name not in exclude]
        unique = _unique_uuids(plpy, table, used)
    check_features(targets, [column.name for column in used], str(table), table.column_names)
    refuse_unusable(table, _reasons(used, documents, unique), excluded_by_caller)
    return features if features is None else [column.name for column in used], exclude


def check_item(plpy: Plpy, table: Table, items: Sequence[str], documents: Collection[str]) -> None:
    """Refuse columns of an item of pairs that a network cannot learn from, all together."""
    columns = [table.column(name, "target") for name in items]
    refuse_unusable(table, _reasons(columns, documents, _unique_uuids(plpy, table, columns)))


def used_columns(table: Table, spec: Json) -> list[TableColumn]:
    """Return the columns that a network of this specification reads: the features, and the columns of an item."""
    features = _feature_columns(table, spec)
    if predicts_target(spec["task"]):
        return features
    return [column for column in table.columns if column in features or column.name in target_columns(spec)]


def _feature_columns(table: Table, spec: Json) -> list[TableColumn]:
    """Return the feature columns of a specification.

    The column that decides about the split is a feature only if `features` names it; the weight is none.
    """
    if spec["features"] is not None:
        return [column for column in table.columns if column.name in spec["features"]]
    withheld = (withheld_column(spec["split"]), spec["hyperparams"].get("weight"))
    others = [name for name in withheld if name is not None]
    return _all_but(table, (*target_columns(spec), *spec["exclude"], *others))


def all_known(plpy: Plpy, names: Sequence[str], alias: str = "") -> str:
    """Return the SQL condition that none of these columns is NULL."""
    return " and ".join(f"{alias}{plpy.quote_ident(name)} is not null" for name in names) or "true"


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


def _all_but(table: Table, others: Collection[str]) -> list[TableColumn]:
    return [column for column in table.columns if column.name not in others]


def _reasons(used: Sequence[TableColumn], documents: Collection[str], unique: Collection[str]) -> dict[str, str]:
    """Return why columns cannot be features, by column."""
    reasons = {column.name: unusable_reason(column.base, column.category) for column in used if not column.kind}
    for column in used:
        if column.kind == "document" and column.name not in documents:
            reasons[column.name] = (
                "no paths of it are chosen; choose them, as in preprocess => "
                f"{literal(json.dumps({'paths': {column.name: {'a.b': 'number'}}}, ensure_ascii=False))}"
            )
        elif column.name in unique:
            reasons[column.name] = "each of the first rows has a different value; there is nothing to learn from it"
    return reasons


def _exclude_unique(plpy: Plpy, table: Table, candidates: Sequence[TableColumn]) -> list[str]:
    """Return the uuid columns that only identify rows, which are excluded, and notify the client of them."""
    unique = _unique_uuids(plpy, table, candidates)
    if unique:
        plpy.notice(f"left out of the features, as each of the first rows has a different uuid: {', '.join(unique)}")
    return unique


def _unique_uuids(plpy: Plpy, table: Table, candidates: Sequence[TableColumn]) -> list[str]:
    """Return the uuid columns whose values all differ in the first rows. A single value does not differ."""
    uuids = [column for column in candidates if column.base == "uuid"]
    if not uuids:
        return []
    counts = ", ".join(
        f"pg_catalog.count(c{place}) as known{place}, pg_catalog.count(distinct c{place}) as values{place}"
        for place in range(len(uuids))
    )
    columns = ", ".join(f"{plpy.quote_ident(column.name)} as c{place}" for place, column in enumerate(uuids))
    statement = f"select {counts} from (select {columns} from {table.source} limit {_ROWS}) as first_rows"
    row = next(iter(plpy.execute(statement)))
    return [column.name for place, column in enumerate(uuids) if 1 < row[f"known{place}"] == row[f"values{place}"]]


def _exclude_keys(plpy: Plpy, table: Table, targets: Sequence[str], exclude: Sequence[str]) -> list[str]:
    """Return the key columns, which are excluded, and notify the client of them."""
    keys = [column.name for column in _all_but(table, (*targets, *exclude)) if column.key]
    if keys:
        plpy.notice(
            f"left out of the features, as keys only identify rows: {', '.join(keys)} "
            "(name them in features => array[...] to learn from them)"
        )
    return keys
