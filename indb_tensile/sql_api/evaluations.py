"""A version is scored on rows that the caller may read, or told by what its training measured."""

# ruff: noqa: S608 - every name that goes into a statement is quoted by quote_ident or by regclass

import json

from . import service
from .errors import DATA, MISSING_COLUMN, TOO_MUCH, RefusalError
from .models import find_version
from .predictions import storable
from .relation import no_table
from .request import read_integer, read_model_name, read_text
from .spi import Json, Plpy, callers_path, fetch

_MOST_ROWS = 100_000


def evaluate(plpy: Plpy, request: Json) -> Json:
    """Score a version on a relation, read as the caller; without one, give the figures of its own held-out rows."""
    name = read_model_name(request)
    version = find_version(plpy, name, read_integer(request, "version"))
    oid = read_integer(request, "relation")
    if oid is None:
        return {"metrics": json.loads(version["metrics"])}
    with callers_path(plpy, read_text(request, "search_path")):
        rows = _labelled_rows(plpy, oid, name, version["target"])
    # The rows are JSON already: written into the request as they are, they need not be read first.
    asked = f'{{"verb": "evaluate", "version": {version["version_id"]}, "rows": [{", ".join(rows)}]}}'
    return dict(storable(service.ask(plpy, asked)))


def _labelled_rows(plpy: Plpy, oid: int, model: str, target: str) -> list[str]:
    """The rows whose target is known, each as JSON. Runs under the caller's path, so it qualifies every name."""
    found = fetch(plpy, RELATION_NAME, oid)
    if not found:
        raise no_table(oid)
    source, column, names = found[0]["name"], plpy.quote_ident(target), found[0]["columns"]
    if target not in names:
        raise RefusalError(
            MISSING_COLUMN,
            f'{source} has no column "{target}", which model "{model}" predicts',
            hint=f"Evaluate on a relation that has it. The columns of {source} are {', '.join(names) or 'none'}.",
        )
    limit = _MOST_ROWS + 1
    statement = ROWS.format(source=source, column=column, limit=limit)
    rows = [row["row"] for row in plpy.execute(statement)]
    if not rows:
        raise RefusalError(DATA, f'{source} has no row whose target "{target}" is known')
    if len(rows) == limit:
        raise RefusalError(
            TOO_MUCH,
            f"{source} has more than {_MOST_ROWS} rows, too many to evaluate in one answer",
            hint=f"Evaluate a sample: create temporary table part as select * from {source} "
            f"tablesample system (10) limit {_MOST_ROWS};",
        )
    return rows


# A row by `t.*`: the relation may have a column named t.
ROWS = "select pg_catalog.to_jsonb(t.*) as row from {source} as t where {column} is not null limit {limit}"
RELATION_NAME = """
select c.oid::pg_catalog.regclass::pg_catalog.text as name,
       array(select a.attname::pg_catalog.text from pg_catalog.pg_attribute as a
              where a.attrelid operator(pg_catalog.=) c.oid and a.attnum operator(pg_catalog.>) 0::pg_catalog.int2
                and not a.attisdropped
              order by a.attnum using operator(pg_catalog.<)) as columns
  from pg_catalog.pg_class as c where c.oid operator(pg_catalog.=) $1::pg_catalog.oid"""
