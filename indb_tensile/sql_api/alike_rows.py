"""Refuses a table whose rows are all alike in their features, as the job would after it has read them."""

# ruff: noqa: S608 - every name that goes into a statement is quoted by quote_ident

from collections.abc import Mapping, Sequence
from typing import Any

from .refusals import DATA, RefusalError
from .spi import Json, Plpy
from .training_table import Table

_TASKS = ("classification", "regression", "multilabel")


def refuse_alike_rows(
    plpy: Plpy, table: Table, spec: Json, values: Mapping[str, Sequence[Any]], *, is_complete: bool
) -> None:
    """Refuse a table in which every feature has one value, or is NULL, in all rows.

    `values` are those of the first rows, by feature; of all rows if `is_complete`. If the first rows have only NULL,
    the others are looked at too, until one has a value. Encoders of another version, with `init_from`, take any rows.
    """
    if spec["task"] not in _TASKS or "init_from" in spec or any(len(set(own)) > 1 for own in values.values()):
        return
    rows = max(map(len, values.values()), default=0)
    if rows and is_complete:
        raise _refusal(table, values, "has one value in all rows")
    if rows and all(own[0] is None for own in values.values()) and not _has_value(plpy, table, list(values)):
        raise _refusal(table, values, "is NULL in all rows")


def _refusal(table: Table, features: Mapping[str, Any], fault: str) -> RefusalError:
    # The client copies frames into temporary tables, whose names say nothing to its caller.
    of_table = "" if table.schema.startswith("pg_temp") else f" of {table}"
    return RefusalError(
        DATA,
        f"every feature{of_table} {fault}: there is nothing to learn from",
        detail=f"The features are: {', '.join(features)}.",
        hint="Add rows that differ, or name other columns with features => array[...].",
    )


def _has_value(plpy: Plpy, table: Table, features: Sequence[str]) -> bool:
    """Return whether a row has a value of one of the features. Reads all rows only if none has."""
    known = " or ".join(f"{plpy.quote_ident(name)} is not null" for name in features)
    return any(True for _ in plpy.execute(f"select 1 from {table.source} where {known} limit 1"))
