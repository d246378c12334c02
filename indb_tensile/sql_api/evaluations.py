"""A version is scored on rows that the caller may read, or told by what its training measured."""

# ruff: noqa: S608 - every name that goes into a statement is quoted by quote_ident or by regclass

import itertools
import json
from collections.abc import Iterator

from . import service
from .errors import DATA, MISSING_COLUMN, NOT_READY, TOO_MUCH, RefusalError
from .models import find_version
from .predictions import storable
from .relation import no_table
from .request import read_integer, read_model_name, read_text
from .spi import Cursor, Json, Plpy, Row, callers_path, fetch, literal

MOST_ROW_BYTES = 8 << 20  # of a row, as tensile.check_row_size() has it: as JSON it is twice as much, as a rule
_SMALL_ROW_BYTES = 32768  # compressed by the 255 times that PostgreSQL reaches at most, MOST_ROW_BYTES are as much
_FIRST_ROWS = 10  # that are fetched at once, until it is known how large they are
_MOST_FETCHED = 1000


def evaluate(plpy: Plpy, request: Json) -> Json:
    """Score a version on a relation, read as the caller; without one, give the figures of its own held-out rows."""
    name = read_model_name(request)
    version = find_version(plpy, name, read_integer(request, "version"))
    oid = read_integer(request, "relation")
    if oid is None:
        return {"metrics": _held_out(version, name)}
    source, column = _source(plpy, oid, name, version["target"])
    evaluation = next(_numbers)
    parts = _parts(plpy, source, column, read_text(request, "search_path"))
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
        asked = {
            "verb": "evaluate",
            "version": version["version_id"],
            "evaluation": evaluation,
            "part": number,
            "last": following is None,
        }
        try:
            answer = service.ask_rows(plpy, asked, rows)
        except service.ServiceRefusalError as refusal:
            raise refusal if refusal.row is None else refusal.of_row(refusal.row + 1) from None
        if following is None:
            break
        rows = following
    return dict(storable(answer))


def _held_out(version: Row, model: str) -> Json:
    """The metrics of the version's own held-out rows."""
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
    """The relation's name and its target column's, quoted."""
    found = fetch(plpy, RELATION_NAME, oid)
    if not found:
        raise no_table(oid)
    source, names = found[0]["name"], found[0]["columns"]
    if target not in names:
        raise RefusalError(
            MISSING_COLUMN,
            f'{source} has no column "{target}", which model "{model}" predicts',
            hint=f"Evaluate on a relation that has it. The columns of {source} are {', '.join(names) or 'none'}.",
        )
    return source, plpy.quote_ident(target)


def _parts(plpy: Plpy, source: str, column: str, path: str | None) -> Iterator[list[bytes]]:
    """The rows whose target is known, each as JSON, in parts that a request has room for."""
    statement = ROWS.format(source=source, column=column)
    part: list[bytes] = []
    size_bytes = rows = 0
    wanted = _FIRST_ROWS
    with callers_path(plpy, path):
        cursor = plpy.cursor(statement)
    while fetched := _fetched(plpy, cursor, wanted, path):
        largest_bytes = 1
        for found in fetched:
            rows += 1
            row = _checked(found["row"], found["size_bytes"], source, rows)
            largest_bytes = max(largest_bytes, len(row))
            if part and size_bytes + len(row) > service.PART_BYTES:
                yield part
                part, size_bytes = [], 0
            part.append(row)
            size_bytes += len(row)
        wanted = max(1, min(_MOST_FETCHED, 10 * wanted, service.PART_BYTES // largest_bytes))
    if part:
        yield part


def _fetched(plpy: Plpy, cursor: Cursor, rows: int, path: str | None) -> list[Row]:
    """The next rows. Where the relation is a view, the caller's own functions run here."""
    with callers_path(plpy, path):
        return list(cursor.fetch(rows))


def _checked(row: str | None, size_bytes: int | None, source: str, number: int) -> bytes:
    encoded = b"" if row is None else row.encode()
    if row is None or len(encoded) > service.MOST_ROW_BYTES:
        size, most = (size_bytes, MOST_ROW_BYTES) if row is None else (len(encoded), service.MOST_ROW_BYTES)
        raise RefusalError(
            TOO_MUCH,
            f"row {number} of {source} has {size} bytes{'' if row is None else ' as JSON'}, "
            f"more than the {most} that a row may have",
            hint="Name a view that has the model's columns only with relation => '...', or a view whose arrays have "
            "fewer values.",
        )
    return encoded


_numbers = itertools.count(1)

# It runs under the caller's path, so it qualifies every name. A row is `t.*`, since the relation may have a column
# named t. A row that may be compressed is measured whole; JSON is made of a row that is small enough.
ROWS = f"""
select case when s.bytes operator(pg_catalog.<=) {MOST_ROW_BYTES} then tensile.row_json(t.*) end as row,
       case when s.bytes operator(pg_catalog.>) {MOST_ROW_BYTES} then s.bytes end as size_bytes
  from {{source}} as t
  cross join lateral (
    select case when pg_catalog.pg_column_size(t.*) operator(pg_catalog.<) {_SMALL_ROW_BYTES} then 0
                else tensile.row_bytes(t.*) end as bytes offset 0) as s
 where t.{{column}} is not null"""
RELATION_NAME = """
select pg_catalog.format('%I.%I', n.nspname, c.relname) as name,
       array(select a.attname::pg_catalog.text from pg_catalog.pg_attribute as a
              where a.attrelid operator(pg_catalog.=) c.oid and a.attnum operator(pg_catalog.>) 0::pg_catalog.int2
                and not a.attisdropped
              order by a.attnum using operator(pg_catalog.<)) as columns
  from pg_catalog.pg_class as c
  join pg_catalog.pg_namespace as n on n.oid operator(pg_catalog.=) c.relnamespace
 where c.oid operator(pg_catalog.=) $1::pg_catalog.oid"""
