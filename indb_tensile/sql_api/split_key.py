"""Applies the key that a split names: columns by whose values rows are divided, in place of the primary key."""

from collections.abc import Sequence

from ..errors import RequestError
from ..request.misplaced_parameters import refuse_misplaced
from ..request.near_names import did_you_mean
from ..request.split_rules import check_split
from .refusals import MISSING_COLUMN, RefusalError
from .spi import Json, Plpy
from .training_table import Table, find_table


def with_split_key(plpy: Plpy, request: Json, before: Json, table: Table) -> Table:
    """Return the table with the key of the split, or the same table if the split names no key.

    The columns of the key are no features unless the request names them. Refuses a key of unknown columns.
    """
    inherited = request.get("split") is None
    refuse_misplaced("split", request.get("split"))
    split = check_split(before.get("split", {}) if inherited else request["split"])
    key = split.get("key")
    if key is None:
        return table
    missing = [name for name in key if name not in table.column_names]
    if missing:
        where = "the split of the model's last run, as no split is given" if inherited else "split"
        raise RefusalError(
            MISSING_COLUMN,
            f'split: the key has column "{missing[0]}", which {table.title} does not have',
            detail=f"It is named in {where}.",
            hint=f"{did_you_mean(missing[0], table.column_names)}The columns are {table.names}.",
        )
    _require_hashable(table, key)
    if table.query is None:
        return find_table(plpy, {"relation": table.oid}, key)
    columns = tuple(
        column._replace(primary=True, key=True) if column.name in key else column for column in table.columns
    )
    return table._replace(columns=columns, chosen_key=True)


def _require_hashable(table: Table, key: Sequence[str]) -> None:
    """Refuse a document as part of a key, because equal documents may have different texts."""
    for column in table.columns:
        if column.name in key and column.base in ("json", "jsonb", "xml"):
            raise RequestError(
                f'split: column "{column.name}" of {table} has type {column.type}, which cannot be part of a key',
                hint="Name columns of numbers, texts, dates or uuids that identify a row.",
            )
