"""A version is scored on rows that the caller may read, or told by what its training measured."""

# ruff: noqa: S608 - every name that goes into a statement is quoted by quote_ident or by regclass

import itertools
import json
from collections.abc import Iterator

from . import service
from .errors import DATA, MISSING_COLUMN, TOO_MUCH, RefusalError
from .models import find_version
from .predictions import storable
from .relation import no_table
from .request import read_integer, read_model_name, read_text
from .spi import Cursor, Json, Plpy, Row, callers_path, fetch

MOST_ROW_BYTES = 8 << 20  # of a row, as tensile.check_row_size() has it: as JSON it is up to twice as much
_MOST_ROWS = 100_000
_SMALL_ROW_BYTES = 32768  # compressed by the 255 times that PostgreSQL reaches at most, MOST_ROW_BYTES are as much
_FIRST_ROWS = 10  # that are fetched at once, until it is known how large they are
_MOST_FETCHED = 1000


def evaluate(plpy: Plpy, request: Json) -> Json:
    """Score a version on a relation, read as the caller; without one, give the figures of its own held-out rows."""
    name = read_model_name(request)
    version = find_version(plpy, name, read_integer(request, "version"))
    oid = read_integer(request, "relation")
    if oid is None:
        return {"metrics": json.loads(version["metrics"])}
    source, column = _source(plpy, oid, name, version["target"])
    evaluation = next(_numbers)
    parts = _parts(plpy, source, column, read_text(request, "search_path"))
    rows = next(parts, None)
    if rows is None:
        raise RefusalError(DATA, f'{source} has no row whose target "{version["target"]}" is known')
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
    if number > _MOST_ROWS:
        raise RefusalError(
            TOO_MUCH,
            f"{source} has more than {_MOST_ROWS} rows, too many to evaluate in one answer",
            hint=f"Evaluate a sample: create temporary table part as select * from {source} "
            f"tablesample system (10) limit {_MOST_ROWS};",
        )
    if row is None:
        raise RefusalError(
            TOO_MUCH,
            f"row {number} of {source} has {size_bytes} bytes, more than the {MOST_ROW_BYTES} that a row may have",
            hint="Evaluate on a view that has the model's columns only, or on arrays of fewer values.",
        )
    return row.encode()


_numbers = itertools.count(1)

# It runs under the caller's path, so it qualifies every name. A row is `t.*`, since the relation may have a column
# named t. Of a row that may be compressed the binary form is measured; JSON is made of a row that is small enough.
_SIZE = (
    f"case when pg_catalog.pg_column_size(t.*) operator(pg_catalog.<) {_SMALL_ROW_BYTES} then 0 "
    "else pg_catalog.octet_length(pg_catalog.record_send(t.*)) end"
)
ROWS = (
    f"select case when {_SIZE} operator(pg_catalog.<=) {MOST_ROW_BYTES} then pg_catalog.to_jsonb(t.*) end as row, "
    f"case when {_SIZE} operator(pg_catalog.>) {MOST_ROW_BYTES} then {_SIZE} end as size_bytes "
    f"from {{source}} as t where {{column}} is not null limit {_MOST_ROWS + 1}"
)
RELATION_NAME = """
select pg_catalog.format('%I.%I', n.nspname, c.relname) as name,
       array(select a.attname::pg_catalog.text from pg_catalog.pg_attribute as a
              where a.attrelid operator(pg_catalog.=) c.oid and a.attnum operator(pg_catalog.>) 0::pg_catalog.int2
                and not a.attisdropped
              order by a.attnum using operator(pg_catalog.<)) as columns
  from pg_catalog.pg_class as c
  join pg_catalog.pg_namespace as n on n.oid operator(pg_catalog.=) c.relnamespace
 where c.oid operator(pg_catalog.=) $1::pg_catalog.oid"""
