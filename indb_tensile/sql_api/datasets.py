"""A sample data set becomes a table of the caller's, page by page."""

# ruff: noqa: S608 - every name that goes into a statement is quoted by quote_ident, every value is a parameter

import json
import re

from . import service
from .errors import INVALID, NO_SCHEMA, PROTOCOL, RefusalError
from .grants import let_reader_read
from .request import read_text
from .spi import Json, Plpy, qualified

_TYPES = r"(smallint|int|integer|bigint|real|double precision|boolean|text|date|timestamptz)(\[\]){0,3}"


def load_dataset(plpy: Plpy, request: Json) -> Json:
    """Create a table in `schema`, the caller's current one, and fill it with a sample data set."""
    name = read_text(request, "dataset")
    if name is None:
        raise RefusalError(INVALID, "no data set is named", hint="Name one: select tensile_load_dataset('digits').")
    page = service.ask(plpy, {"verb": "dataset", "name": name, "offset": 0})
    schema = read_text(request, "schema")
    if schema is None:
        message = "no schema is selected to create the table in"
        raise RefusalError(NO_SCHEMA, message, hint="Run: set search_path = public;")
    table = _create_table(plpy, schema, read_text(request, "table") or name, page)
    fill = f"insert into {table} select * from pg_catalog.jsonb_populate_recordset(null::{table}, $1)"
    names = [column for column, _ in page["columns"]]
    rows = 0
    while page["rows"]:  # a page past the end is empty
        records = [dict(zip(names, row, strict=True)) for row in page["rows"]]
        plpy.execute(plpy.prepare(fill, ["jsonb"]), [json.dumps(records)])
        rows += len(records)
        page = service.ask(plpy, {"verb": "dataset", "name": name, "offset": rows})
    let_reader_read(plpy, table, schema)
    return {"rows": rows}


def _create_table(plpy: Plpy, schema: str, name: str, page: Json) -> str:
    columns = []
    for column, type_name in page["columns"]:
        if not re.fullmatch(_TYPES, type_name):
            raise RefusalError(PROTOCOL, f'the service gave column "{column}" the type "{type_name}"')
        columns.append(f"{plpy.quote_ident(column)} {type_name}")
    columns.append(f"primary key ({plpy.quote_ident(page['primary_key'])})")
    table = qualified(plpy, schema, name)
    plpy.execute(f"create table {table} ({', '.join(columns)})")
    return table
