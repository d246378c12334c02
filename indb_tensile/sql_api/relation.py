"""The table to train on, and the columns that a model can learn from."""

from dataclasses import dataclass

from .errors import INVALID, MISSING_COLUMN, MISSING_TABLE, WRONG_KIND, RefusalError
from .grants import check_grants
from .request import read_integer
from .spi import Json, Plpy, Row, fetch, literal, qualified


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of a table."""

    name: str
    type: str
    kind: str  # integer, float, boolean, text, time or array; empty for a type that cannot be learned from
    key: bool  # part of the primary key, or an identity column


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table that caller and worker may read."""

    oid: int
    schema: str
    name: str
    columns: tuple[Column, ...]

    def __str__(self) -> str:
        return f'table "{self.schema}.{self.name}"'

    @property
    def names(self) -> str:
        """Its columns' names, for hints."""
        return ", ".join(column.name for column in self.columns) or "none"

    def column(self, name: str, role: str) -> Column:
        """The column of that name; `role` is the argument that names it."""
        for column in self.columns:
            if column.name == name:
                return column
        message = f'column "{name}" of relation "{self.schema}.{self.name}" does not exist'
        detail = "" if role == "target" else f"It is named in {role}."
        raise RefusalError(MISSING_COLUMN, message, detail=detail, hint=f"The columns are {self.names}.")


def find_table(plpy: Plpy, request: Json) -> Table:
    """The table that the request names, once caller and worker may both read it."""
    oid = read_integer(request, "relation")
    if oid is None:
        raise RefusalError(INVALID, "no table is given", hint="Name one: select tensile_train('model', 'table').")
    found = fetch(plpy, RELATION, oid)
    if not found:
        raise no_table(oid)
    facts = found[0]
    _check_kind(plpy, facts)
    check_grants(plpy, facts)
    columns = tuple(
        Column(name=row["name"], type=row["type"], kind=_kind(row), key=row["key"])
        for row in fetch(plpy, COLUMNS, oid)
    )
    return Table(oid=oid, schema=facts["schema"], name=facts["name"], columns=columns)


def no_table(oid: int) -> RefusalError:
    """The refusal of an oid that is no relation's."""
    return RefusalError(MISSING_TABLE, f"there is no table with oid {oid}", hint="It may have been dropped.")


def learnable(table: Table, column: Column, role: str) -> Column:
    """The column, unless its type cannot be learned from; `role` is target or feature."""
    if not column.kind:
        way = f"Leave it out with exclude => array[{literal(column.name)}]. " if role == "feature" else ""
        message = f'{role} "{column.name}" of {table} has type {column.type}, which cannot be learned from'
        raise RefusalError(INVALID, message, hint=way + _SUPPORTED)
    return column


def _check_kind(plpy: Plpy, facts: Row) -> None:
    kind = _RELATION_KINDS.get(facts["kind"], "")
    if facts["persistence"] == "t":
        kind = kind or "a temporary table, which other sessions cannot read"
    if kind:
        hint = "Name the table that holds the rows to train on."
        if facts["kind"] in _KINDS_WITH_ROWS:
            copy = plpy.quote_ident(f"{facts['name']}_rows")
            source = qualified(plpy, facts["schema"], facts["name"])
            hint = f"Train on a copy: create table {copy} as select * from {source};"  # noqa: S608 - a hint
        raise RefusalError(
            WRONG_KIND,
            f'"{facts["schema"]}.{facts["name"]}" is {kind}',
            detail="Models are trained on ordinary tables, which the worker reads with its own grants.",
            hint=hint,
        )


def _kind(column: Row) -> str:
    return "text" if column["enumerated"] else _KINDS.get(column["base"] or "", "")


_RELATION_KINDS = {
    "v": "a view",
    "m": "a materialized view",
    "f": "a foreign table",
    "p": "a partitioned table",
    "S": "a sequence",
    "i": "an index",
    "I": "an index",
    "c": "a composite type",
    "t": "a TOAST table",
}
_KINDS_WITH_ROWS = "rpvmf"

# Kinds of column by type name within pg_catalog.
_KINDS = {
    **dict.fromkeys(("int2", "int4", "int8"), "integer"),
    **dict.fromkeys(("float4", "float8", "numeric"), "float"),
    "bool": "boolean",
    **dict.fromkeys(("text", "varchar", "bpchar", "char", "name"), "text"),
    **dict.fromkeys(("date", "timestamp", "timestamptz"), "time"),
    **dict.fromkeys(("_float4", "_float8", "_numeric", "_int2", "_int4", "_int8"), "array"),
}
_SUPPORTED = (
    "Supported are smallint, integer, bigint, real, double precision, numeric, boolean, text, varchar, char, enums, "
    "date, timestamp, timestamptz, and arrays of real, double precision, numeric and integers."
)

RELATION = """
select c.relname as name, n.nspname as schema, c.relkind as kind, c.relpersistence as persistence,
       c.relrowsecurity as secured, current_user as caller,
       has_schema_privilege(n.oid, 'usage') as caller_enters, has_table_privilege(c.oid, 'select') as caller_reads,
       has_schema_privilege('tensile_worker', n.oid, 'usage') as worker_enters,
       has_table_privilege('tensile_worker', c.oid, 'select') as worker_reads
  from pg_catalog.pg_class as c
  join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
 where c.oid = $1::oid"""
COLUMNS = """
with recursive base (attnum, type) as (  -- of a domain, be it over others, the type below them all
    select a.attnum, a.atttypid
      from pg_catalog.pg_attribute as a
     where a.attrelid = $1::oid and a.attnum > 0 and not a.attisdropped
    union all
    select d.attnum, t.typbasetype
      from base as d
      join pg_catalog.pg_type as t on t.oid = d.type
     where t.typtype = 'd'
)
select a.attname as name, format_type(a.atttypid, a.atttypmod) as type, b.typtype = 'e' as enumerated,
       case when b.typnamespace = 'pg_catalog'::regnamespace then b.typname end as base,
       a.attidentity <> '' or coalesce(a.attnum = any (i.indkey::int2[]), false) as key
  from pg_catalog.pg_attribute as a
  join base as d on d.attnum = a.attnum
  join pg_catalog.pg_type as b on b.oid = d.type and b.typtype <> 'd'
  left join pg_catalog.pg_index as i on i.indrelid = a.attrelid and i.indisprimary
 where a.attrelid = $1::oid
 order by a.attnum"""
