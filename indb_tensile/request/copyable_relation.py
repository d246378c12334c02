"""Decides whether the role `tensile_reader` can copy a relation, and gives every reason why it cannot.

The reader copies each table that holds rows with `copy table (columns) to stdout (format binary)`. This is the only
statement that neither plans nor casts, so no function of the table's owner runs with the reader's rights. A relation
that needs a query cannot be read in this way. The bridge runs the statements below in the caller's session, the
trainer runs them again as the reader.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from .base_types import BASE_TYPE

# The codes of the reasons.
NO_ROWS = "no rows"  # a sequence, an index, a composite type or a TOAST table: no role can read rows from it
VIEW = "view"
MATERIALIZED_VIEW = "materialized view"
FOREIGN_TABLE = "foreign table"  # the relation, or one of its partitions or children
TEMPORARY = "temporary table"  # the relation, or one of its partitions or children
ROW_SECURITY = "row-level security"  # the relation, an ancestor or a descendant has row-level security
GENERATED = "generated column"  # the relation or a descendant has a generated column
SEND_FUNCTION = "send function"  # the type's is neither in pg_catalog nor in an extension that a superuser owns
KEY_TYPE = "key type"  # a type in the primary key whose text Python cannot write as PostgreSQL does


class Reason(NamedTuple):
    """One reason why the reader cannot copy a relation.

    `schema` and `name` identify the relation that is the cause, for example a partition. `column` is empty if no
    column is the cause. A reason with a column counts if the column is used; it always counts for a column of the
    primary key (`key`), because the key is always read.
    """

    code: str
    schema: str
    name: str
    column: str = ""
    type: str = ""
    key: bool = False

    @property
    def text(self) -> str:
        """Return the reason as a sentence without its full stop."""
        relation = f'"{self.schema}.{self.name}"'
        if self.column:
            column = f'column "{self.column}" of {relation}'
            return {
                GENERATED: f"{column} is generated",
                SEND_FUNCTION: f"{column} has type {self.type}, whose send function does not belong to a superuser",
                KEY_TYPE: f"{column} is part of the primary key and has type {self.type}",
            }[self.code]
        return {
            ROW_SECURITY: f"{relation} has row-level security",
            NO_ROWS: f"{relation} is {self.type}",
        }.get(self.code, f"{relation} is a {self.code}")


def reasons(relations: Iterable[Mapping[str, Any]], columns: Iterable[Mapping[str, Any]]) -> tuple[Reason, ...]:
    """Return every reason, from the rows of `FAMILY` and of `COLUMNS` of one relation."""
    family = list(relations)
    results = [reason for row in family for reason in _relation_reasons(row)]
    named = next(row for row in family if row["place"] == "self")
    results += [reason for row in columns for reason in _column_reasons(named, row)]
    return tuple(results)


def counting(candidates: Iterable[Reason], used: Sequence[str], *, keyed: bool = True) -> tuple[Reason, ...]:
    """Return the reasons that count if these columns are used. With `keyed`, those of the primary key count too."""
    return tuple(
        reason for reason in candidates if not reason.column or (keyed and reason.key) or reason.column in used
    )


def missing_grants(tables: Iterable[Mapping[str, Any]], role: str, quote: Callable[[str], str]) -> tuple[str, ...]:
    """Return the statements that let `role` read all of these tables.

    `tables` are rows of `GRANTS`. `quote` quotes a name.
    """
    rows = list(tables)
    schemas = dict.fromkeys(quote(row["schema"]) for row in rows if not row["enters"])
    unread = [f"{quote(row['schema'])}.{quote(row['name'])}" for row in rows if not row["reads"]]
    statements = [f"grant usage on schema {schema} to {quote(role)};" for schema in schemas]
    return (*statements, *([f"grant select on {', '.join(unread)} to {quote(role)};"] if unread else []))


def _relation_reasons(row: Mapping[str, Any]) -> Iterable[Reason]:
    where = {"schema": row["schema"], "name": row["name"]}
    if row["secured"]:
        yield Reason(code=ROW_SECURITY, **where)
    if row["place"] == "ancestor":
        return
    if row["kind"] in _WITHOUT_ROWS:
        yield Reason(code=NO_ROWS, type=_WITHOUT_ROWS[row["kind"]], **where)
    elif row["kind"] in _KINDS:
        yield Reason(code=_KINDS[row["kind"]], **where)
    if row["persistence"] == "t":
        yield Reason(code=TEMPORARY, **where)


def _column_reasons(named: Mapping[str, Any], row: Mapping[str, Any]) -> Iterable[Reason]:
    where = {"schema": named["schema"], "name": named["name"], "column": row["name"]}
    details = {"type": row["type"], "key": row["primary_key"]}
    if row["generated"]:
        yield Reason(code=GENERATED, **where, **details)
    if not row["sent_safely"]:
        yield Reason(code=SEND_FUNCTION, **where, **details)
    elif row["primary_key"] and not (row["enumerated"] or row["sent_as_text"] or row["base"] in _KEY_TYPES):
        yield Reason(code=KEY_TYPE, **where, **details)


_KINDS = {"v": VIEW, "m": MATERIALIZED_VIEW, "f": FOREIGN_TABLE}
_WITHOUT_ROWS = {
    "S": "a sequence",
    "i": "an index",
    "I": "an index",
    "c": "a composite type",
    "t": "a TOAST table",
}
# Types of pg_catalog whose values have the same hash in their binary form as in PostgreSQL's text or cast. A test
# checks that learning/decoding/copy_encodings.py has an encoding for each.
_KEY_TYPES = frozenset(
    (
        *("int2", "int4", "int8", "float4", "float8", "numeric", "bool", "date", "timestamp", "timestamptz"),
        *("text", "varchar", "bpchar", "char", "name"),
        *("_float4", "_float8", "_numeric", "_int2", "_int4", "_int8", "_bool"),
        *("_text", "_varchar", "_bpchar", "_name", "_uuid", "_enum"),
        *("uuid", "bytea", "inet", "cidr", "macaddr", "macaddr8", "interval", "time", "timetz", "bit", "varbit"),
        *("oid", "xid8", "pg_lsn", "jsonb"),
    )
)

# A table with its partitions or children of any level, each with its path in the tree. A partition that is being
# detached no longer belongs to the table.
_BELOW = """below (oid, path) as (
    select $1::oid, array[$1::oid]
    union all
    select i.inhrelid, b.path || i.inhrelid
      from below as b
      join pg_catalog.pg_inherits as i on i.inhparent = b.oid
     where not i.inhdetachpending
)"""

# The relation ("self"), its partitions and children ("descendant"), and the parents of these ("ancestor").
FAMILY = f"""
with recursive {_BELOW},
above (oid) as (
    select i.inhparent from below as b join pg_catalog.pg_inherits as i on i.inhrelid = b.oid
    union
    select i.inhparent from above as a join pg_catalog.pg_inherits as i on i.inhrelid = a.oid
),
family (oid, path) as (
    select b.oid, min(b.path) from below as b group by b.oid
    union all
    select a.oid, null from above as a where a.oid not in (select b.oid from below as b)
)
select c.oid as oid, n.nspname as schema, c.relname as name, c.relkind::text as kind,
       c.relpersistence::text as persistence, c.relrowsecurity as secured,
       case when f.oid = $1::oid then 'self' when f.path is null then 'ancestor' else 'descendant' end as place
  from family as f
  join pg_catalog.pg_class as c on c.oid = f.oid
  join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
 order by f.path nulls last, f.oid"""  # noqa: S608 - made of constants

# Every live column: its type, its type without domains, and whether its binary form may be read.
COLUMNS = f"""
with recursive base (attnum, type, array_dims) as (
    select a.attnum, a.atttypid, a.attndims
      from pg_catalog.pg_attribute as a
     where a.attrelid = $1::oid and a.attnum > 0 and not a.attisdropped
    union all
    select d.attnum, t.typbasetype, greatest(d.array_dims, t.typndims)
      from base as d
      join pg_catalog.pg_type as t on t.oid = d.type
     where t.typtype = 'd'
),
below (oid) as (
    select $1::oid
    union
    select i.inhrelid from below as b join pg_catalog.pg_inherits as i on i.inhparent = b.oid
)
select a.attname as name, a.attnum::int4 as number, pg_catalog.format_type(a.atttypid, a.atttypmod) as type,
       b.typtype = 'e' as enumerated,
       {BASE_TYPE} as base, b.typcategory::text as category,
       a.attidentity <> '' or coalesce(a.attnum = any (i.indkey::int2[]), false) as key,
       coalesce(a.attnum = any (i.indkey::int2[]), false) as primary_key, a.attidentity <> '' as identity,
       a.attnotnull as not_null, d.array_dims::int4 as dims,
       exists (select
                 from below as t
                 join pg_catalog.pg_attribute as g on g.attrelid = t.oid
                where g.attname = a.attname and g.attgenerated <> '') as generated,
       coalesce(s.pronamespace = 'pg_catalog'::regnamespace
                or exists (select
                             from pg_catalog.pg_depend as m
                             join pg_catalog.pg_extension as e on e.oid = m.refobjid
                             join pg_catalog.pg_roles as r on r.oid = e.extowner
                            where m.classid = 'pg_catalog.pg_proc'::regclass and m.objid = s.oid and m.deptype = 'e'
                              and m.refclassid = 'pg_catalog.pg_extension'::regclass and r.rolsuper),
                false) as sent_safely,
       coalesce(s.prosrc = 'textsend' and l.lanname = 'internal', false) as sent_as_text
  from pg_catalog.pg_attribute as a
  join base as d on d.attnum = a.attnum
  join pg_catalog.pg_type as b on b.oid = d.type and b.typtype <> 'd'
  left join pg_catalog.pg_proc as s on s.oid = b.typsend
  left join pg_catalog.pg_language as l on l.oid = s.prolang
  left join pg_catalog.pg_index as i on i.indrelid = a.attrelid and i.indisprimary
 where a.attrelid = $1::oid
 order by a.attnum"""  # noqa: S608 - made of constants


# The rights of a role on each table that is copied for this relation, for the columns that are read.
GRANTS = f"""
with recursive {_BELOW},
copied (oid, path) as (select b.oid, min(b.path) from below as b group by b.oid)
select n.nspname as schema, c.relname as name, has_schema_privilege($2::name, n.oid, 'usage') as enters,
       has_table_privilege($2::name, c.oid, 'select')
       or not exists (select
                        from pg_catalog.jsonb_array_elements_text($3::jsonb) as w (name)
                       where not has_column_privilege($2::name, c.oid, w.name, 'select')) as reads
  from copied as t
  join pg_catalog.pg_class as c on c.oid = t.oid and c.relkind = 'r'
  join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
 order by t.path"""  # noqa: S608 - made of constants
