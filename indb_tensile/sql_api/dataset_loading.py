"""Creates a table of the caller with a sample data set, which the service sends page by page."""

# ruff: noqa: S608 - every name that goes into a statement is quoted by quote_ident, every value is a parameter

import re

from ..errors import RequestError
from ..request.json_text import json_text
from ..request.request_fields import read_text
from . import service_connection
from .refusals import DENIED, DUPLICATE_TABLE, NO_SCHEMA, PROTOCOL, RefusalError, database_error_fields
from .spi import Json, Plpy, fetch, literal, qualified
from .table_grants import let_reader_read

_TYPES = r"(smallint|int|integer|bigint|real|double precision|boolean|text|date|timestamptz)(\[\]){0,3}"


def load_dataset(plpy: Plpy, request: Json) -> Json:
    """Create a table and fill it with a data set.

    The table is created in the caller's current `schema`, unless the table's name includes a schema.
    """
    name = read_text(request, "dataset")
    if name is None:
        raise RequestError("no data set is named", hint="Name one: select tensile_load_dataset('digits').")
    schema, table_name = _table_name(plpy, read_text(request, "table") or name, read_text(request, "schema"))
    _require_free_name(plpy, schema, table_name, name)
    page = service_connection.ask(plpy, {"verb": "dataset", "name": name, "offset": 0})
    table = _create_table(plpy, schema, table_name, page)
    fill = f"insert into {table} select * from pg_catalog.jsonb_populate_recordset(null::{table}, $1)"
    names = [column for column, _ in page["columns"]]
    rows = 0
    while page["rows"]:  # a page past the end is empty
        records = [dict(zip(names, row, strict=True)) for row in page["rows"]]
        plpy.execute(plpy.prepare(fill, ["jsonb"]), [json_text(records)])
        rows += len(records)
        page = service_connection.ask(plpy, {"verb": "dataset", "name": name, "offset": rows})
    let_reader_read(plpy, table, schema)
    return {"rows": rows}


def _table_name(plpy: Plpy, name: str, current: str | None) -> tuple[str, str]:
    """Return the schema and the name of the new table.

    A name with a dot or quotes is parsed as SQL parses it; any other name is used unchanged.
    """
    parts = [name]
    if "." in name or '"' in name:
        try:
            parts = list(fetch(plpy, PARTS, name)[0]["parts"])
        except plpy.SPIError as error:
            database_error = database_error_fields(error)
            if not database_error["sqlstate"].startswith("22"):
                raise
            hint = "Give a name, or a schema and a name: 'digits', 'lab.digits'."
            raise RequestError(f'"{name}" is not a table name', hint=hint) from None
    if len(parts) > 2:
        raise RequestError(f'"{name}" has {len(parts)} parts', hint="Give a schema and a name: 'lab.digits'.")
    schema = parts[0] if len(parts) == 2 else current
    if schema is None:
        message = "no schema is selected to create the table in"
        raise RefusalError(NO_SCHEMA, message, hint="Run: set search_path = public;")
    schemas = fetch(plpy, SCHEMA, schema)
    if not schemas:
        creation = fetch(plpy, MAKER, schema)[0]
        hint = (
            f"Run: {creation['statement']};"
            if creation["may"]
            else f"Ask an administrator for: {creation['for_caller']};"
        )
        raise RefusalError(NO_SCHEMA, f'schema "{schema}" does not exist', hint=hint)
    if not schemas[0]["creates"]:
        grant = (
            f"grant usage, create on schema {plpy.quote_ident(schema)} to {plpy.quote_ident(schemas[0]['caller'])};"
        )
        message = f'permission denied to create a table in schema "{schema}"'
        raise RefusalError(DENIED, message, hint=f"Ask its owner for: {grant}")
    return schema, parts[-1]


def _require_free_name(plpy: Plpy, schema: str, name: str, dataset: str) -> None:
    """Refuse the name of a relation that exists."""
    table = qualified(plpy, schema, name)
    if fetch(plpy, EXISTING, table)[0]["exists"]:
        raise RefusalError(
            DUPLICATE_TABLE,
            f'relation "{schema}.{name}" already exists',
            hint=f"Name another table: select tensile_load_dataset({literal(dataset)}, 'other_name'). Or drop it "
            f"first: drop table {table};",
        )


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


PARTS = "select pg_catalog.parse_ident($1::text) as parts"
MAKER = """
select has_database_privilege(current_database(), 'create') as may, format('create schema %I', $1::text) as statement,
       format('create schema %I authorization %I', $1::text, current_user) as for_caller"""
EXISTING = "select pg_catalog.to_regclass($1::text) is not null as exists"
SCHEMA = """
select current_user as caller,
       has_schema_privilege(n.oid, 'usage') and has_schema_privilege(n.oid, 'create') as creates
  from pg_catalog.pg_namespace as n where n.nspname = $1::text"""
