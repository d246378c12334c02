"""Copies a relation in the caller's session into a snapshot table, which trainers read instead of the relation.

Definer functions (sql/55_snapshots.sql) create and seal the table. Between the two calls the caller's own session
inserts the rows, so views, policies, casts and foreign servers run with the caller's rights only.
"""

# ruff: noqa: S608 - every name that goes into a statement is quoted by quote_ident or by format('%I')

import json
import time
from collections.abc import Sequence

from ..request.copyable_relation import FOREIGN_TABLE, VIEW
from .refusals import (
    MISSING_TABLE,
    READ_ONLY,
    TOO_MANY_COLUMNS,
    TOO_MUCH,
    RefusalError,
    database_error_fields,
)
from .spi import Json, Plpy, Row, callers_path, fetch
from .training_table import Table

_ESTIMATES_ERR_BY = 2.0  # the planner's estimate must exceed the limit by this factor to refuse a table
_ROW_HEADER_BYTES = 28  # tuple header and line pointer of a row on disk
_MOST_COLUMNS = 1599  # PostgreSQL's 1600, less the column that records the order of the rows


def require_writable(plpy: Plpy) -> None:
    """Refuse a transaction that is read-only and therefore cannot write a job or a snapshot."""
    transactions = fetch(plpy, TRANSACTION)
    if not transactions or not transactions[0]["read_only"]:
        return
    if transactions[0]["standby"]:
        hint = "This server is a standby: connect to the primary server."
    else:
        hint = "Run: set transaction read write; before the transaction's first query, or begin another transaction."
    raise RefusalError(READ_ONLY, "a training cannot be enqueued in a read-only transaction", hint=hint)


def make_snapshot(plpy: Plpy, table: Table, used: Sequence[str], job: int, path: str | None) -> None:
    """Copy these columns of the relation and its key into the job's snapshot.

    A NOTICE tells the client the snapshot's size. `path` is the caller's search_path, which functions of the relation
    may need.
    """
    start_s = time.monotonic()
    snapshot_columns = _make(plpy, table, used, job)
    names = [plpy.quote_ident(row["name"]) for row in snapshot_columns]
    values = [
        f"tensile.key_text({name})" if row["converted"] else name
        for name, row in zip(names, snapshot_columns, strict=True)
    ]
    rows = f"select {', '.join(values)} from {table.source}"
    with callers_path(plpy, path):
        if table.query is None and not any(reason.code in (VIEW, FOREIGN_TABLE) for reason in table.reasons):
            _refuse_huge(plpy, table, rows)
        _insert(plpy, table, f"insert into {snapshot_columns[0]['relation']} ({', '.join(names)}) {rows}")
    # The insert has locked the relation, so its name cannot change again before the transaction ends.
    if table.query is None and fetch(plpy, NAMED_NOW, table.source)[0]["oid"] != table.oid:
        message = f"{table} was dropped and created again while it was copied"
        raise RefusalError(MISSING_TABLE, message, hint="Call tensile_train again.")
    size = fetch(plpy, SEAL, job)[0]
    plpy.notice(
        f"{table} is trained on as it is now: a snapshot of {size['rows']} rows, {size['bytes']} bytes, "
        f"was written in {time.monotonic() - start_s:.2f} s"
    )


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
    if table.query is None:
        return list(plpy.execute(plpy.prepare(MAKE, ["int8", "text[]"]), [job, list(used)]))
    described = [[getattr(column, part) for column in columns] for part in ("name", "type_oid", "type_modifier")]
    return list(plpy.execute(plpy.prepare(MAKE_OF_QUERY, ["int8", "text[]", "oid[]", "int4[]"]), [job, *described]))


def _insert(plpy: Plpy, table: Table, statement: str) -> None:
    """Copy the rows. Refuses a row that does not fit into a page."""
    try:
        plpy.execute(statement)
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
            hint="Train on fewer rows or columns, or ask an administrator: "
            "select tensile_set_setting('snapshot_max_bytes', ...); After large changes, run analyze first.",
        )


def _plan(explained: str | list[Json]) -> Json:
    decoded = json.loads(explained) if isinstance(explained, str) else explained
    plan: Json = decoded[0]["Plan"]
    return plan


TRANSACTION = """
select current_setting('transaction_read_only') = 'on' as read_only, pg_is_in_recovery() as standby"""
LIMIT = "select tensile.setting('snapshot_max_bytes')::pg_catalog.int8 as bytes"
MAKE = "select relation, name, converted from tensile.make_snapshot($1, $2)"
MAKE_OF_QUERY = "select relation, name, converted from tensile.make_snapshot($1, $2, $3, $4)"
NAMED_NOW = "select pg_catalog.to_regclass($1::text)::pg_catalog.oid::pg_catalog.int8 as oid"
SEAL = "select rows, bytes from tensile.seal_snapshot($1::int8)"
