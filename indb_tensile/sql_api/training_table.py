"""Describes the table to train on and the columns that a model can learn from."""

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..errors import RequestError
from ..request.column_types import KIND_OF_TYPE, SUPPORTED_TYPES, unusable_reason
from ..request.copyable_relation import COLUMNS, FAMILY, NO_ROWS, Reason, counting, reasons
from ..request.near_names import did_you_mean
from ..request.request_fields import read_integer
from .refusals import MISSING_COLUMN, MISSING_TABLE, WRONG_KIND, RefusalError
from .spi import Json, Plpy, Row, fetch, literal, qualified
from .table_grants import check_caller, check_reader


class TableColumn(NamedTuple):
    """One column of a table."""

    name: str
    type: str
    kind: str  # as in request/column_types.py; empty for a type that models cannot learn from
    key: bool  # part of the primary key, or an identity column
    primary: bool = False  # part of the primary key
    base: str = ""  # the base type (request/base_types.py); empty for one without a name
    category: str = ""  # PostgreSQL's code of the type's category
    number: int = 0  # PostgreSQL's number of the column in its table
    type_oid: int = 0  # of a query's column or a computed one only: its type as PostgreSQL's catalog names it
    type_modifier: int = -1  # of a query's column only


class Table(NamedTuple):
    """A relation that the caller may read, or a query.

    `source` is the item of a FROM clause that gives the rows. `reasons` says why the trainers' role cannot copy the
    relation as it stands. `query` is the text of a query; a query has no oid and no schema (query_source.py).
    """

    oid: int
    schema: str
    name: str
    columns: tuple[TableColumn, ...]
    source: str
    reasons: tuple[Reason, ...] = ()
    query: str | None = None
    chosen_key: bool = False  # whether the columns with `primary` are not those of the relation's own primary key
    origin: str = ""  # of a table with computed features: the item that gives its rows without them

    def __str__(self) -> str:
        return f'table "{self.schema}.{self.name}"' if self.query is None else "the query"

    @property
    def title(self) -> str:
        """Return the words for the relation in PostgreSQL's own error about a missing column."""
        return f'relation "{self.schema}.{self.name}"' if self.query is None else "the query"

    @property
    def column_names(self) -> list[str]:
        """Return the names of all columns."""
        return [column.name for column in self.columns]

    @property
    def names(self) -> str:
        """Return the columns' names for a hint."""
        return ", ".join(self.column_names) or "none"

    def column(self, name: str, role: str) -> TableColumn:
        """Return the column of this name. `role` is the argument that names it, for the error message."""
        for column in self.columns:
            if column.name == name:
                return column
        message = f'column "{name}" of {self.title} does not exist'
        detail = "" if role == "target" else f"It is named in {role}."
        listed = [part.strip() for part in name.split(",")]
        hint = f"{did_you_mean(name, self.column_names)}The columns are {self.names}."
        if role == "target" and len(listed) > 1 and set(listed) <= set(self.column_names):
            hint = (
                f"Name several targets as a JSON list: target => {literal(json.dumps(listed, ensure_ascii=False))}."
            )
        raise RefusalError(MISSING_COLUMN, message, detail=detail, hint=hint)


VECTORS = ("vector", "halfvec")


def vector_array(expression: str) -> str:
    """Return the SQL expression of a vector's elements as real[], by its text, for which no cast need exist."""
    return f"pg_catalog.translate(tensile.key_text({expression}), '[]', '{{}}')::pg_catalog.float4[]"


def find_table(plpy: Plpy, request: Json, key: Sequence[str] | None = None) -> Table:
    """Return the relation of the request. Refuses a relation that the caller may not read.

    The trainers' role need not be able to read the relation. `key` names the columns that identify rows; without it,
    these are the primary key, or for a view that of its only table (VIEW_KEY).
    """
    oid = read_integer(request, "relation")
    if oid is None:
        raise RequestError("no table is given", hint="Name one: select tensile_train('model', 'table').")
    relations = fetch(plpy, RELATION, oid)
    if not relations:
        raise no_table(oid)
    facts = relations[0]
    described = fetch(plpy, COLUMNS, oid)
    if key is None and facts["kind"] in ("v", "m"):
        key = [row["name"] for row in fetch(plpy, VIEW_KEY, oid)] or None
    if key is not None:
        described = [
            {**row, "primary_key": row["name"] in key, "key": row["key"] or row["name"] in key} for row in described
        ]
    table_reasons = reasons(fetch(plpy, FAMILY, oid), described)
    table = Table(
        oid=oid,
        schema=facts["schema"],
        name=facts["name"],
        columns=tuple(
            TableColumn(
                name=row["name"],
                type=row["type"],
                kind=kind_of(row),
                base=row["base"] or "",
                category=row["category"],
                key=row["key"],
                primary=row["primary_key"],
                number=row["number"],
            )
            for row in described
        ),
        source=qualified(plpy, facts["schema"], facts["name"]),
        reasons=table_reasons,
        chosen_key=key is not None,
    )
    if table_reasons and table_reasons[0].code == NO_ROWS:
        hint = "Name the table that holds the rows to train on."
        raise RefusalError(WRONG_KIND, table_reasons[0].text, hint=hint)
    check_caller(plpy, facts)
    return table


def reasons_against(table: Table, used: Sequence[str]) -> tuple[Reason, ...]:
    """Return why the trainers' role cannot copy these columns of the relation and its key.

    If there is a reason, the training uses a snapshot. Missing grants are not among the reasons: `require_grants`
    checks them.
    """
    return counting(table.reasons, used)


def require_grants(plpy: Plpy, table: Table, used: Sequence[str]) -> None:
    """Refuse a relation if the trainers' role lacks a grant for these columns or for the key."""
    key = [column.name for column in table.columns if column.primary]
    check_reader(plpy, table.oid, str(table), list(dict.fromkeys((*used, *key))))


def no_table(oid: int) -> RefusalError:
    """Return the error for an oid that belongs to no relation."""
    return RefusalError(MISSING_TABLE, f"there is no table with oid {oid}", hint="It may have been dropped.")


def learnable_target(table: Table, column: TableColumn) -> TableColumn:
    """Return the column. Refuses a column whose type a model cannot learn from."""
    if not column.kind:
        message = f'target "{column.name}" of {table} has type {column.type}, which cannot be learned from'
        raise RequestError(message, detail=unusable_detail(column), hint=_SUPPORTED)
    return column


def refuse_unusable(table: Table, reasons: Mapping[str, str], excluded: Sequence[str] = ()) -> None:
    """Refuse all columns together that cannot be features, each with its reason.

    The HINT also lists the columns that the caller has `excluded`, so it can be copied.
    """
    if not reasons:
        return
    unusable = [column for column in table.columns if column.name in reasons]
    names = ", ".join(f'"{column.name}"' for column in unusable)
    listed = ", ".join(map(literal, dict.fromkeys((*excluded, *(column.name for column in unusable)))))
    columns = "column" if len(unusable) == 1 else f"{len(unusable)} columns"
    raise RequestError(
        f"{columns} of {table} cannot be learned from: {names}",
        detail=" ".join(f'"{column.name}" ({column.type}): {reasons[column.name]}.' for column in unusable),
        hint=f"Leave {'it' if len(unusable) == 1 else 'them'} out with exclude => array[{listed}], or cast "
        f"{'it' if len(unusable) == 1 else 'them'} in a view or in tensile_train_query. {_SUPPORTED}",
    )


def unusable_detail(column: TableColumn) -> str:
    """Return why a column without a kind cannot be learned from, as a sentence."""
    reason = unusable_reason(column.base, column.category)
    return f"{reason[0].upper()}{reason[1:]}."


def kind_of(column: Row) -> str:
    """Return the kind of a described column, or an empty text for a type that models cannot learn from."""
    return "text" if column["enumerated"] else KIND_OF_TYPE.get(column["base"] or "", "")


_SUPPORTED = f"Supported are {SUPPORTED_TYPES}."

RELATION = """
select c.relname as name, n.nspname as schema, c.relkind::text as kind, current_user as caller,
       has_schema_privilege(n.oid, 'usage') as caller_enters, has_table_privilege(c.oid, 'select') as caller_reads
  from pg_catalog.pg_class as c
  join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
 where c.oid = $1::oid"""
# The columns of a view that are the primary key of the only table that it reads, or no row. The view may read the
# table through other views. Each of them must read one relation, and must have columns with the names and types of
# the key's columns.
VIEW_KEY = """
with recursive source (view, oid, depth) as (
    select $1::oid, $1::oid, 0
    union all
    select s.oid, (select min(r.oid) from unnest(d.reads) as r (oid)), s.depth + 1
      from source as s
      join pg_catalog.pg_class as v on v.oid = s.oid and v.relkind in ('v', 'm')
      cross join lateral (
        select array(select distinct d.refobjid
                       from pg_catalog.pg_rewrite as w
                       join pg_catalog.pg_depend as d
                         on d.classid = 'pg_catalog.pg_rewrite'::regclass and d.objid = w.oid
                      where w.ev_class = s.oid and d.refclassid = 'pg_catalog.pg_class'::regclass
                        and d.refobjid <> s.oid) as reads) as d
     where cardinality(d.reads) = 1 and s.depth < 32
),
keyed (attname, atttypid, place) as (
    select a.attname, a.atttypid, array_position(i.indkey::int2[], a.attnum)
      from source as s
      join pg_catalog.pg_class as t on t.oid = s.oid and t.relkind in ('r', 'p')
      join pg_catalog.pg_index as i on i.indrelid = t.oid and i.indisprimary
      join pg_catalog.pg_attribute as a on a.attrelid = t.oid and a.attnum = any (i.indkey::int2[])
)
select k.attname as name
  from keyed as k
 where not exists (
   select
     from keyed as n
    cross join source as s
     join pg_catalog.pg_class as v on v.oid = s.oid and v.relkind in ('v', 'm')
    where not exists (
      select
        from pg_catalog.pg_attribute as a
       where a.attrelid = s.oid and a.attname = n.attname and a.atttypid = n.atttypid and a.attnum > 0
         and not a.attisdropped)
       or not exists (
      select
        from source as b
        join pg_catalog.pg_rewrite as w on w.ev_class = s.oid
        join pg_catalog.pg_depend as d on d.classid = 'pg_catalog.pg_rewrite'::regclass and d.objid = w.oid
        join pg_catalog.pg_attribute as a
          on a.attrelid = d.refobjid and a.attnum = d.refobjsubid and a.attname = n.attname
       where b.view = s.oid and b.depth = s.depth + 1 and d.refobjid = b.oid
         and d.refclassid = 'pg_catalog.pg_class'::regclass))
 order by k.place"""
