"""Describes a query that a model is trained on, and refuses a text that is not one query.

The query runs in the caller's session, with the caller's rights and search_path. A training never runs it elsewhere:
its rows are copied into a snapshot (snapshot_copy.py).
"""

# ruff: noqa: S608 - the text of the query belongs to the caller, who runs it

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, Protocol, cast

from ..errors import RequestError
from ..request.base_types import BASE_TYPE
from ..request.json_text import json_text
from ..request.request_fields import read_integer, read_text
from .refusals import DUPLICATE_COLUMN, SYNTAX, TOO_MUCH, RefusalError, database_error_fields
from .spi import Json, Plpy, callers_path, fetch
from .training_table import Table, TableColumn, kind_of

MOST_CHARACTERS = 100_000  # the specification of a job, which contains the query, has at most 262144 bytes
NAME = "query"  # the name of the relation in the specification of a job; it has no schema and oid 0


class _Description(Protocol):
    """The columns of a result, as PL/Python describes them."""

    def colnames(self) -> list[str]:
        """Return the names."""

    def coltypes(self) -> list[int]:
        """Return the oids of the types."""

    def coltypmods(self) -> list[int]:
        """Return the modifiers of the types."""


def describe_query(plpy: Plpy, request: Json) -> Table:
    """Return the query of the request with its columns, without running the query."""
    if read_integer(request, "relation") is not None:
        raise RequestError("a relation and a query are given", hint="Give one of them.")
    query = _read_query(request)
    source = f"(\n{query}\n) as {NAME}"  # the line break ends a comment
    with callers_path(plpy, read_text(request, "search_path")):
        _require_one_query(plpy, query, source)
        description = cast(_Description, plpy.execute(f"select * from {source} limit 0"))
    names = description.colnames()
    _refuse_equal_names(names)
    described = [
        {"name": name, "type": type_oid, "modifier": modifier}
        for name, type_oid, modifier in zip(names, description.coltypes(), description.coltypmods(), strict=True)
    ]
    columns = tuple(
        TableColumn(
            name=row["name"],
            type=row["type"],
            kind=kind_of(row),
            base=row["base"] or "",
            category=row["category"],
            key=False,
            type_oid=row["declared"],
            type_modifier=row["modifier"],
        )
        for row in fetch(plpy, DESCRIBE, json_text(described))
    )
    return Table(oid=0, schema="", name=NAME, columns=columns, source=source, query=query)


def _read_query(request: Json) -> str:
    query = re.sub(r"[\s;]+\Z", "", read_text(request, "query") or "")
    if not query:
        raise RequestError("no query is given", hint="Give one: select tensile_train_query('model', 'select ...').")
    if len(query) > MOST_CHARACTERS:
        raise RefusalError(
            TOO_MUCH,
            f"the query has {len(query)} characters, more than {MOST_CHARACTERS}",
            hint="Make a view of it, and train on the view.",
        )
    return query


def _require_one_query(plpy: Plpy, query: str, source: str) -> None:
    """Refuse a text that is not one query, or a query that changes data when it runs.

    PostgreSQL opens a cursor only for a single statement that returns rows, and does not run it before the first
    fetch. The same text must also be valid in parentheses.
    """
    try:
        plpy.cursor(query).close()
    except plpy.SPIError as error:
        raise _refusal(error, "the query is not one statement that returns rows", (_NO_CURSOR,)) from None
    try:
        plpy.cursor(f"select * from {source}").close()
    except plpy.SPIError as error:
        message = "the query cannot stand in parentheses"
        raise _refusal(error, message, (SYNTAX, _NOT_IN_PARENTHESES)) from None


def _refusal(error: Any, message: str, codes: Sequence[str]) -> Exception:
    """Return our error for these SQLSTATEs, else PostgreSQL's own, which names the fault in the query's text."""
    fields = database_error_fields(error)
    if fields["sqlstate"] not in codes:
        return cast(Exception, error)
    return RefusalError(SYNTAX, message, detail=f"PostgreSQL says: {fields['message']}.", hint=_ONE_QUERY)


def _refuse_equal_names(names: Sequence[str]) -> None:
    repeated = [name for name, times in Counter(names).items() if times > 1]
    if repeated:
        listed = ", ".join(f'"{name}"' for name in repeated)
        raise RefusalError(
            DUPLICATE_COLUMN,
            f"the query has several columns named {listed}",
            hint="Give each column a name of its own, such as: select a.x, b.x as other_x.",
        )


_NO_CURSOR = "42P11"  # PostgreSQL opens no cursor for several statements, or for one without rows
_NOT_IN_PARENTHESES = "0A000"  # WITH that changes data, below the top level
_ONE_QUERY = (
    "Give one SELECT, VALUES, TABLE or WITH that changes no data. Run statements that change data before, in the "
    "same transaction."
)

DESCRIBE = f"""
with recursive base (place, name, declared, modifier, type) as (
    select g.place, g.described ->> 'name', (g.described ->> 'type')::oid, (g.described ->> 'modifier')::int4,
           (g.described ->> 'type')::oid
      from jsonb_array_elements($1::jsonb) with ordinality as g (described, place)
    union all
    select b.place, b.name, b.declared, b.modifier, t.typbasetype
      from base as b join pg_catalog.pg_type as t on t.oid = b.type
     where t.typtype = 'd'
)
select d.name as name, format_type(d.declared, d.modifier) as type, d.declared::int8 as declared,
       d.modifier as modifier, b.typtype = 'e' as enumerated, {BASE_TYPE} as base, b.typcategory::text as category
  from base as d join pg_catalog.pg_type as b on b.oid = d.type and b.typtype <> 'd'
 order by d.place"""
