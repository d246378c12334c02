"""Copies a relation in the caller's session into a snapshot table, which trainers read instead of the relation.

Definer functions (sql/55_snapshots.sql) create and seal the table. Between the two calls the caller's own session
inserts the rows, so views, policies, casts and foreign servers run with the caller's rights only.
"""

# ruff: noqa: S608 - every name that goes into a statement is quoted by quote_ident or by format('%I')

import json
import time
from collections.abc import Mapping, Sequence
from typing import Protocol, cast

from ..request.copyable_relation import FOREIGN_TABLE, VIEW
from .refusals import (
    MAY_WRITE,
    MISSING_TABLE,
    READ_ONLY,
    TOO_MANY_COLUMNS,
    TOO_MUCH,
    RefusalError,
    database_error_fields,
)
from .spi import Json, Plpy, Row, callers_path, fetch
from .training_table import VECTORS, Table, vector_array

_ESTIMATES_ERR_BY = 2.0  # the planner's estimate must exceed the limit by this factor to refuse a table
_ROW_HEADER_BYTES = 28  # tuple header and line pointer of a row on disk
_MOST_COLUMNS = 1599  # PostgreSQL's 1600, less the column that records the order of the rows


def require_writable(plpy: Plpy) -> None:
    """Refuse a transaction that is read-only and therefore cannot write a job or a snapshot."""
    transactions = fetch(plpy, TRANSACTION)
    if not transactions or not transactions[0]["read_only"]:
        return
    hint = "This server is a standby: connect to the primary server." if transactions[0]["standby"] else MAY_WRITE
    raise RefusalError(READ_ONLY, "a job cannot be enqueued in a read-only transaction", hint=hint)


class _Inserted(Protocol):
    """The result of an INSERT in PL/Python."""

    def nrows(self) -> int:
        """Return the number of inserted rows."""


def make_snapshot(
    plpy: Plpy,
    table: Table,
    part_tables: Mapping[str, Table],
    used: Sequence[str],
    job: int,
    path: str | None,
    *,
    purpose: str = "trained on",
) -> None:
    """Copy these columns of the relation and its key into the job's snapshot, and then the rows of tables of parts.

    A NOTICE tells the client the snapshot's size, and the `purpose` of the rows. `path` is the caller's search_path,
    which functions of the relation may need.
    """
    start_s = time.monotonic()
    snapshot_columns = _make(plpy, table, used, job)
    names = [plpy.quote_ident(row["name"]) for row in snapshot_columns]
    used_names = [plpy.quote_ident(name) for name in used]
    bases = {column.name: column.base for column in table.columns}
    values = [
        _converted(name, bases[row["name"]]) if row["converted"] else name
        for name, row in zip(names, snapshot_columns, strict=True)
    ]
    target = snapshot_columns[0]["relation"]
    with callers_path(plpy, path):
        _copy_rows(plpy, table, target, dict(zip(names, values, strict=True)))
        own = {name: value for name, value in zip(names, values, strict=True) if name in used_names}
        counts = {part: _copy_rows(plpy, part_table, target, own) for part, part_table in part_tables.items()}
    # The insert has locked the relations, so their names cannot change again before the transaction ends.
    for copied in (table, *part_tables.values()):
        named = copied.origin or copied.source
        if copied.query is None and fetch(plpy, NAMED_NOW, named)[0]["oid"] != copied.oid:
            message = f"{copied} was dropped and created again while it was copied"
            raise RefusalError(MISSING_TABLE, message, hint="Call tensile_train again.")
    size = fetch(plpy, SEAL, job, counts.get("valid", 0), counts.get("test", 0))[0]
    plpy.notice(
        f"{table} is {purpose} as it is now: a snapshot of {size['rows']} rows, {size['bytes']} bytes, "
        f"was written in {time.monotonic() - start_s:.2f} s"
    )


def _copy_rows(plpy: Plpy, table: Table, target: str, values: Mapping[str, str]) -> int:
    """Copy the rows of one table, and return their number. `values` has the SQL expression of each column."""
    rows = f"select {', '.join(values.values())} from {table.source}"
    if table.query is None and not any(reason.code in (VIEW, FOREIGN_TABLE) for reason in table.reasons):
        _refuse_huge(plpy, table, rows)
    return _insert(plpy, table, f"insert into {target} ({', '.join(values)}) {rows}")


def _converted(name: str, base: str) -> str:
    """Return the SQL expression that converts a column to the base type that the snapshot has for it."""
    if base in VECTORS:
        return vector_array(name)
    if base == "_enum":
        return f"{name}::pg_catalog.text[]"
    if base.startswith("_"):
        return f"{name}::pg_catalog.{base}"
    return f"tensile.key_text({name})"


def _make(plpy: Plpy, table: Table, used: Sequence[str], job: int) -> Sequence[Row]:
    """Create the empty snapshot table, and return its columns."""
    columns = [column for column in table.columns if column.name in used]
    extra = [column for column in table.columns if column.primary and column.name not in used]
    if len(columns) + len(extra) > _MOST_COLUMNS:
        raise RefusalError(
            TOO_MANY_COLUMNS,
            f"a snapshot of {table} would have {len(columns) + len(extra)} columns, the most are {_MOST_COLUMNS}",
            hint="Name fewer columns in features => array[...], or store numbers of one kind in one array column.",
        )
    key = [column.name for column in table.columns if column.primary] if table.chosen_key else None
    if table.query is None and not table.origin:
        return list(plpy.execute(plpy.prepare(MAKE, ["int8", "text[]", "text[]"]), [job, list(used), key]))
    columns += extra
    described = [
        [column.name for column in columns],
        [column.type_oid or None for column in columns],  # a column of the relation has its type there
        [column.type_modifier for column in columns],
    ]
    plan = plpy.prepare(MAKE_OF_QUERY, ["int8", "text[]", "oid[]", "int4[]", "text[]"])
    return list(plpy.execute(plan, [job, *described, key]))


def _insert(plpy: Plpy, table: Table, statement: str) -> int:
    """Copy the rows, and return their number. Refuses a row that does not fit into a page."""
    try:
        return cast(_Inserted, plpy.execute(statement)).nrows()
    except plpy.SPIError as error:
        fields = database_error_fields(error)
        if fields["sqlstate"] != TOO_MUCH or not fields["message"].startswith("row is too big"):
            raise
        raise RefusalError(
            TOO_MUCH,
            f"a row of {table} is too large for a snapshot",
            detail=f"PostgreSQL says: {fields['message']}.",
            hint="Name fewer columns in features => array[...], or store numbers of one kind in one array column.",
        ) from None


def _refuse_huge(plpy: Plpy, table: Table, rows: str) -> None:
    """Refuse a stored table that is much too large, before it is copied.

    The decision uses the planner's estimate. The seal measures the exact size later.
    """
    plan = _plan(next(iter(plpy.execute(f"explain (format json) {rows}")))["QUERY PLAN"])
    estimated_bytes = int(plan["Plan Rows"] * (plan["Plan Width"] + _ROW_HEADER_BYTES))
    limit_rows = plpy.execute(LIMIT)
    limit_bytes = int(next(iter(limit_rows))["bytes"])
    if estimated_bytes > _ESTIMATES_ERR_BY * limit_bytes:
        raise RefusalError(
            TOO_MUCH,
            f"a snapshot of {table} would have about {estimated_bytes} bytes, the most for one are {limit_bytes}",
            detail=f"About {plan['Plan Rows']} rows of {plan['Plan Width']} bytes, as the planner estimates.",
            hint="Use fewer rows or columns, or ask an administrator: "
            "select tensile_set_setting('snapshot_max_bytes', ...); After large changes, run analyze first.",
        )


def _plan(explained: str | list[Json]) -> Json:
    decoded = json.loads(explained) if isinstance(explained, str) else explained
    plan: Json = decoded[0]["Plan"]
    return plan


TRANSACTION = """
select current_setting('transaction_read_only') = 'on' as read_only, pg_is_in_recovery() as standby"""
LIMIT = "select tensile.setting('snapshot_max_bytes')::pg_catalog.int8 as bytes"
MAKE = "select relation, name, converted from tensile.make_snapshot($1, $2, null, null, $3)"
MAKE_OF_QUERY = "select relation, name, converted from tensile.make_snapshot($1, $2, $3, $4, $5)"
NAMED_NOW = "select pg_catalog.to_regclass($1::text)::pg_catalog.oid::pg_catalog.int8 as oid"
SEAL = "select rows, bytes from tensile.seal_snapshot($1::int8, $2::int8, $3::int8)"
