"""Generate statements against every object of the catalog from PostgreSQL's own system catalogs.

A new table, view, sequence or function is therefore attacked without a change here.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from tests.security.owned_objects import OwnedObjects

LOCK_MODES = (
    "access share",
    "row share",
    "row exclusive",
    "share update exclusive",
    "share",
    "share row exclusive",
    "exclusive",
    "access exclusive",
)
SCHEMAS = ("tensile", "tensile_data")
_TRIGGER = "pg_catalog.suppress_redundant_updates_trigger"  # a trigger function that every role may use


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """One statement. `kind` and `target` name it in reports: `select`, `tensile.jobs`."""

    kind: str
    target: str
    statement: str


def attacks(connection: psycopg.Connection[Any], objects: OwnedObjects) -> tuple[Attack, ...]:
    """Return every attack on the catalog of this superuser's connection."""
    return (
        *_on_relations(connection),
        *_on_functions(connection, objects),
        *_on_schemas(),
        *_on_roles(),
    )


def _on_relations(connection: psycopg.Connection[Any]) -> Iterator[Attack]:
    rows = connection.execute(
        """select c.oid::regclass::text, c.relkind::text,
                  array(select a.attname::text from pg_attribute as a
                         where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped order by a.attnum),
                  array(select format_type(a.atttypid, a.atttypmod) from pg_attribute as a
                         where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped order by a.attnum)
             from pg_class as c join pg_namespace as n on n.oid = c.relnamespace
            where n.nspname = any (%s) and c.relkind in ('r', 'p', 'v', 'm', 'S', 'f')
            order by 1""",
        (list(SCHEMAS),),
    ).fetchall()
    for name, kind, columns, types in rows:
        if kind == "S":
            yield from _on_sequence(name)
        else:
            yield from _reads(name, columns)
            yield from _writes(name, columns, types)
            yield from _definitions(name)
            yield from (
                Attack(kind=f"lock in {mode} mode", target=name, statement=f"lock table {name} in {mode} mode nowait")
                for mode in LOCK_MODES
            )


def _reads(name: str, columns: Sequence[str]) -> Iterator[Attack]:
    yield Attack(kind="select", target=name, statement=f"select * from {name}")
    yield Attack(kind="select for update", target=name, statement=f"select 1 from {name} for update nowait")
    yield Attack(kind="copy", target=name, statement=f"copy {name} to stdout (format binary)")
    for column in columns:
        yield Attack(kind="select column", target=f"{name}.{column}", statement=f'select "{column}" from {name}')


def _writes(name: str, columns: Sequence[str], types: Sequence[str]) -> Iterator[Attack]:
    yield Attack(kind="insert", target=name, statement=f"insert into {name} default values")
    yield Attack(kind="delete", target=name, statement=f"delete from {name}")
    yield Attack(kind="truncate", target=name, statement=f"truncate {name} cascade")
    for column, type_name in zip(columns, types, strict=True):
        value, target = _value(type_name), f"{name}.{column}"
        yield Attack(
            kind="insert column", target=target, statement=f'insert into {name} ("{column}") values ({value})'
        )
        yield Attack(kind="update column", target=target, statement=f'update {name} set "{column}" = {value}')


def _definitions(name: str) -> Iterator[Attack]:
    short = name.replace(".", "_").replace('"', "")
    for kind, statement in (
        ("alter", f"alter table {name} add column mine integer"),
        ("drop", f"drop table {name} cascade"),
        ("drop", f"drop view {name} cascade"),
        ("index", f"create index on {name} ((1))"),
        ("statistics", f"create statistics mine on (1), (2) from {name}"),
        (
            "trigger",
            f"create trigger mine after insert on {name} for each row execute function {_TRIGGER}()",
        ),
        ("rule", f"create rule mine as on insert to {name} do nothing"),
        ("policy", f"create policy mine on {name} using (true)"),
        ("grant", f"grant all on {name} to public"),
        ("owner", f"alter table {name} owner to current_user"),
        ("comment", f"comment on table {name} is 'mine'"),
        ("row security", f"alter table {name} disable row level security"),
        ("inherit", f"create table public.{short}_mine () inherits ({name})"),
        ("references", f"create table public.{short}_mine (i bigint references {name})"),
    ):
        yield Attack(kind=kind, target=name, statement=statement)


def _on_sequence(name: str) -> Iterator[Attack]:
    for kind, statement in (
        ("nextval", f"select pg_catalog.nextval('{name}')"),
        ("setval", f"select pg_catalog.setval('{name}', 1)"),
        ("currval", f"select pg_catalog.pg_sequence_last_value('{name}')"),
        ("select", f"select * from {name}"),
        ("alter", f"alter sequence {name} restart"),
        ("drop", f"drop sequence {name} cascade"),
    ):
        yield Attack(kind=kind, target=name, statement=statement)


def _on_functions(connection: psycopg.Connection[Any], objects: OwnedObjects) -> Iterator[Attack]:
    rows = connection.execute(
        """select p.oid::regprocedure::text, n.nspname, p.proname::text, p.prokind::text,
                  array(select t::regtype::text
                          from unnest(p.proargtypes::oid[]) with ordinality as a (t, place)
                         where place <= greatest(0, p.pronargs) order by place)
             from pg_proc as p join pg_namespace as n on n.oid = p.pronamespace
            where n.nspname = any (%s) or n.nspname = 'public' and p.proname like 'tensile\\_%%'
            order by 1""",
        (list(SCHEMAS),),
    ).fetchall()
    for signature, schema, name, kind, types in rows:
        function = f'{schema}."{name}"'
        for variant in range(_VARIANTS):
            arguments = ", ".join(_argument(type_name, objects, variant) for type_name in types)
            call = f"call {function}({arguments})" if kind == "p" else f"select * from {function}({arguments})"
            yield Attack(kind="call", target=signature, statement=call)
        for verb in ("alter", "drop"):
            routine = f"{verb} routine {signature}" + (" owner to current_user" if verb == "alter" else " cascade")
            yield Attack(kind=verb, target=signature, statement=routine)


def _on_schemas() -> Iterator[Attack]:
    for kind, statement in (
        ("create table", "create table tensile.mine (i integer)"),
        ("create function", "create function tensile.mine() returns integer language sql return 1"),
        ("create type", "create type tensile.mine as enum ('a')"),
        ("drop", "drop schema tensile cascade"),
        ("grant", "grant all on schema tensile to public"),
        ("drop extension", "drop extension if exists plpython3u cascade"),
    ):
        yield Attack(kind=kind, target="schema tensile", statement=statement)


def _on_roles() -> Iterator[Attack]:
    for role in ("tensile_worker", "tensile_reader", "tensile_admin", "tensile_data", "alice", "postgres"):
        yield Attack(kind="set role", target=role, statement=f"set local role {role}")
        yield Attack(kind="grant", target=role, statement=f"grant {role} to public")
        yield Attack(kind="alter role", target=role, statement=f"alter role {role} set statement_timeout = 1")


_VARIANTS = 5


def _argument(type_name: str, objects: OwnedObjects, variant: int) -> str:
    """Return a value of the type: NULL for variant 0, then ids and names of objects, then hostile values."""
    if variant == 0:
        return f"null::{_concrete(type_name)}"
    numbers = (objects.running.job, objects.queued, objects.model_id, -(2**31))
    texts = (objects.model, objects.model, "tensile_worker", "'; drop table tensile.jobs; --\n\x1b[31m")
    match type_name:
        case "text" | "name" | "anycompatible":
            return f"{_quoted(texts[variant - 1])}::{_concrete(type_name)}"
        case "bigint" | "integer":
            return f"({numbers[variant - 1]})::{type_name}"
        case "bigint[]":
            return f"array[{numbers[variant - 1]}, {objects.queued}]::bigint[]"
        case "regclass":
            return "'tensile.models'::regclass"
        case "oid":
            return "(select oid from pg_catalog.pg_roles where rolname = 'alice')"
        case _:
            return f"{_value(type_name)}::{_concrete(type_name)}"


def _concrete(type_name: str) -> str:
    return {"anycompatible": "text", "anycompatiblearray": "text[]", "anyelement": "text", "trigger": "text"}.get(
        type_name, type_name
    )


def _value(type_name: str) -> str:
    """Return a value of a column's type that most rows do not have."""
    if type_name.endswith(("[]", "array")):
        return "'{}'"
    return _VALUES.get(type_name.split("(")[0], "'mine'")


_NUMBERS = ("bigint", "integer", "smallint", "double precision", "oid", "numeric", "xid8", "real")
_VALUES = dict.fromkeys(_NUMBERS, "'1'") | {
    "boolean": "true",
    "bytea": "''",
    "interval": "'1 second'",
    "json": "'{}'",
    "jsonb": "'{}'",
    "tensile.checkpoint_store": "'local'",
    "tensile.copy_way": "'out'",
    "tensile.job_phase": "'training'",
    "tensile.job_state": "'succeeded'",
    "tensile.task": "'regression'",
    "timestamp with time zone": "pg_catalog.now()",
    "uuid": "'00000000-0000-0000-0000-000000000000'",
}


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
