"""Evaluates a version on rows that the caller may read, or returns the metrics that its training measured."""

# ruff: noqa: S608 - every name that goes into a statement is quoted by quote_ident or by regclass

import itertools
import json
from collections.abc import Iterator

from ..request.request_fields import read_integer, read_model_name, read_text
from ..request.task_rules import named_targets
from . import service_connection
from .feature_columns import all_known
from .predictions import storable
from .refusals import DATA, MISSING_COLUMN, NOT_READY, TOO_MUCH, RefusalError
from .relation_columns import describe_version, named_columns
from .row_features import with_features
from .series_forecasts import evaluate_series
from .spi import Cursor, Json, Plpy, Row, callers_path, fetch, literal
from .training_table import no_table
from .version_lookup import find_version

MOST_ROW_BYTES = 8 << 20  # largest row, equal to tensile.check_row_size(); as JSON a row usually has twice the size
_SMALL_ROW_BYTES = 32768  # PostgreSQL compresses at most 255 times, so such a row has at most MOST_ROW_BYTES
_FIRST_ROWS = 10  # rows of the first fetch, before the size of the rows is known
_MOST_FETCHED = 1000  # most rows of one fetch


def evaluate(plpy: Plpy, request: Json) -> Json:
    """Return the metrics of a version.

    With a relation, the rows are read as the caller and the service evaluates the version on them. Without a
    relation, the metrics of the rows that were held out of the training are returned.
    """
    name = read_model_name(request)
    version = find_version(plpy, name, read_integer(request, "version"), forecasts=True)
    oid = read_integer(request, "relation")
    if oid is None:
        return {"metrics": _held_out(version, name)}
    if version["task"] == "forecast":
        return evaluate_series(plpy, name, version, request)
    return dict(storable(evaluate_relation(plpy, name, version, oid, read_text(request, "search_path"), {})))


def evaluate_relation(plpy: Plpy, model: str, version: Row, oid: int, path: str | None, figure: Json) -> Json:
    """Return the service's answer for the rows of a relation, which are read as the caller and sent in parts.

    `figure` are the fields of the request that say what to compute; without any, it is the metrics.
    """
    source, known = _source(plpy, oid, model, version["target"])
    evaluation = next(_numbers)
    parts = _with_features(plpy, version, _parts(plpy, source, known, path))
    rows = next(parts, None)
    if rows is None:
        raise RefusalError(
            DATA,
            f'relation {source} has no row to evaluate on: none whose target "{version["target"]}" is known',
            hint="Name a relation that has such rows with relation => '...', or leave relation out for the metrics "
            "of the rows that were held out of the training.",
        )
    for number in itertools.count():
        following = next(parts, None)
        part_request = {
            "verb": "evaluate",
            "version": version["version_id"],
            "evaluation": evaluation,
            "part": number,
            "last": following is None,
            **figure,
        }
        try:
            answer = service_connection.ask_rows(plpy, part_request, rows)
        except service_connection.ServiceRefusalError as refusal:
            describe_version(plpy, model, version, source, named_columns(plpy, oid))  # names a column that is missing
            raise refusal if refusal.row is None else refusal.of_row(refusal.row + 1) from None
        if following is None:
            break
        rows = following
    return dict(answer)


def _held_out(version: Row, model: str) -> Json:
    """Return the metrics on the version's own held-out rows."""
    metrics: Json = json.loads(version["metrics"] or "{}")
    if not metrics:
        raise RefusalError(
            NOT_READY,
            f'version {version["number"]} of model "{model}" has no metrics: no rows were held out of its training',
            hint="Name a relation to evaluate on: "
            f"select * from tensile_evaluate({literal(model)}, relation => 'table').",
        )
    return metrics


def _source(plpy: Plpy, oid: int, model: str, target: str) -> tuple[str, str]:
    """Return the relation's name, quoted, and the condition that a row's target is known."""
    relations = fetch(plpy, RELATION_NAME, oid)
    if not relations:
        raise no_table(oid)
    source, names = relations[0]["name"], relations[0]["columns"]
    targets = named_targets(target, names)
    absent = [name for name in targets if name not in names]
    if absent:
        raise RefusalError(
            MISSING_COLUMN,
            f'{source} has no column "{absent[0]}", which model "{model}" predicts',
            hint=f"Evaluate on a relation that has it. The columns of {source} are {', '.join(names) or 'none'}.",
        )
    return source, all_known(plpy, targets, "t.")


def _with_features(plpy: Plpy, version: Row, parts: Iterator[list[bytes]]) -> Iterator[list[bytes]]:
    """Yield the parts with the features that the version computes."""
    first = 1
    for part in parts:
        yield [row for row in with_features(plpy, version, part, first=first) if row is not None]
        first += len(part)


def _parts(plpy: Plpy, source: str, known: str, path: str | None) -> Iterator[list[bytes]]:
    """Yield the rows whose target is known, each as JSON, in parts that fit into one request."""
    statement = ROWS.format(source=source, known=known)
    part: list[bytes] = []
    size_bytes = rows = 0
    next_rows = _FIRST_ROWS
    with callers_path(plpy, path):
        cursor = plpy.cursor(statement)
    while records := _fetch_rows(plpy, cursor, next_rows, path):
        largest_bytes = 1
        for record in records:
            rows += 1
            row = _encode_row(record["row"], record["size_bytes"], source, rows)
            largest_bytes = max(largest_bytes, len(row))
            if part and size_bytes + len(row) > service_connection.PART_BYTES:
                yield part
                part, size_bytes = [], 0
            part.append(row)
            size_bytes += len(row)
        next_rows = max(1, min(_MOST_FETCHED, 10 * next_rows, service_connection.PART_BYTES // largest_bytes))
    if part:
        yield part


def _fetch_rows(plpy: Plpy, cursor: Cursor, rows: int, path: str | None) -> list[Row]:
    """Return the next rows.

    If the relation is a view, its functions run here with the caller's search_path.
    """
    with callers_path(plpy, path):
        return list(cursor.fetch(rows))


def _encode_row(row: str | None, size_bytes: int | None, source: str, number: int) -> bytes:
    """Return the row as JSON. Refuses a row that is too large."""
    encoded = b"" if row is None else row.encode()
    if row is None or len(encoded) > service_connection.MOST_ROW_BYTES:
        size, most = (
            (size_bytes, MOST_ROW_BYTES) if row is None else (len(encoded), service_connection.MOST_ROW_BYTES)
        )
        raise RefusalError(
            TOO_MUCH,
            f"row {number} of {source} has {size} bytes{'' if row is None else ' as JSON'}, "
            f"more than the {most} that a row may have",
            hint="Name a view that has the model's columns only with relation => '...', or a view whose arrays have "
            "fewer values.",
        )
    return encoded


_numbers = itertools.count(1)

# The statement runs with the caller's search_path, so every name is qualified. A row is written `t.*`, since the
# relation may have a column named t. A row that may be compressed is measured uncompressed. Only a row that is small
# enough is converted to JSON.
ROWS = f"""
select case when s.bytes operator(pg_catalog.<=) {MOST_ROW_BYTES} then tensile.row_json(t.*) end as row,
       case when s.bytes operator(pg_catalog.>) {MOST_ROW_BYTES} then s.bytes end as size_bytes
  from {{source}} as t
  cross join lateral (
    select case when pg_catalog.pg_column_size(t.*) operator(pg_catalog.<) {_SMALL_ROW_BYTES} then 0
                else tensile.row_bytes(t.*) end as bytes offset 0) as s
 where {{known}}"""
RELATION_NAME = """
select pg_catalog.format('%I.%I', n.nspname, c.relname) as name,
       array(select a.attname::pg_catalog.text from pg_catalog.pg_attribute as a
              where a.attrelid operator(pg_catalog.=) c.oid and a.attnum operator(pg_catalog.>) 0::pg_catalog.int2
                and not a.attisdropped
              order by a.attnum using operator(pg_catalog.<)) as columns
  from pg_catalog.pg_class as c
  join pg_catalog.pg_namespace as n on n.oid operator(pg_catalog.=) c.relnamespace
 where c.oid operator(pg_catalog.=) $1::pg_catalog.oid"""
