"""One table, read once, in one snapshot: COPY in binary format into one buffer, decoded with numpy.

The rows come in physical order, so the same table gives the same batches. `order by ctid` would say so too, but
PostgreSQL sorts for it (to disk, for a large table): a sequential scan that neither joins another scan midway
nor runs in parallel is in that order already, and every other path is switched off for the transaction.
"""

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, LiteralString, cast

import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus

from indb_tensile.errors import DatabaseError, DataError, InvariantError, MissingError, PrivilegeError, RequestError
from indb_tensile.job import Relation
from indb_tensile.learning.columns import Column, Kind, Table, Wire
from indb_tensile.learning.copybinary import decode
from indb_tensile.learning.splits import row_hashes

Connection = psycopg.Connection[Any]
Choose = Callable[[tuple[Column, ...]], Sequence[str]]

_WIRES = {
    "int2": Wire(kind=Kind.INTEGER, item=">i2"),
    "int4": Wire(kind=Kind.INTEGER, item=">i4"),
    "int8": Wire(kind=Kind.INTEGER, item=">i8"),
    "float4": Wire(kind=Kind.FLOAT, item=">f4"),
    "float8": Wire(kind=Kind.FLOAT, item=">f8"),
    "numeric": Wire(kind=Kind.FLOAT, item=">f8", cast="float8"),
    "bool": Wire(kind=Kind.BOOLEAN, item=">u1"),
    "text": Wire(kind=Kind.TEXT, item="", cast="text"),
    "varchar": Wire(kind=Kind.TEXT, item="", cast="text"),
    "bpchar": Wire(kind=Kind.TEXT, item="", cast="text"),
    "char": Wire(kind=Kind.TEXT, item="", cast="text"),
    "name": Wire(kind=Kind.TEXT, item="", cast="text"),
    "date": Wire(kind=Kind.TIME, item=">i4"),
    "timestamp": Wire(kind=Kind.TIME, item=">i8"),
    "timestamptz": Wire(kind=Kind.TIME, item=">i8"),
    "_float4": Wire(kind=Kind.ARRAY, item=">f4"),
    "_float8": Wire(kind=Kind.ARRAY, item=">f8"),
    "_numeric": Wire(kind=Kind.ARRAY, item=">f8", cast="float8[]"),
    "_int2": Wire(kind=Kind.ARRAY, item=">f4", cast="float4[]"),
    "_int4": Wire(kind=Kind.ARRAY, item=">f8", cast="float8[]"),
    "_int8": Wire(kind=Kind.ARRAY, item=">f8", cast="float8[]"),
}
_ENUM = Wire(kind=Kind.TEXT, item="", cast="text")
SUPPORTED_TYPES = (
    "smallint, integer, bigint, real, double precision, numeric, boolean, text, varchar, char, enums, date, "
    "timestamp, timestamptz, and arrays of real, double precision, numeric and integers"
)

_BLOCK = re.compile(r"^-- (\w+) --$", re.MULTILINE)
_KINDS = {"v": "a view", "m": "a materialized view", "f": "a foreign table", "S": "a sequence", "i": "an index"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Where the relation is now (it may have been renamed since), and whether rows of it are protected."""

    oid: int
    schema: str
    name: str
    protected: bool

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"

    @property
    def quoted(self) -> sql.Identifier:
        return sql.Identifier(self.schema, self.name)


def read(
    connection: Connection,
    relation: Relation,
    choose: Choose,
    *,
    owner_oid: int | None = None,
    key: Sequence[str] | None = None,
) -> Table:
    """The columns that `choose` takes of the described ones, in one snapshot that ends with this call.

    The connection must be idle. With `owner_oid`, that role must be able to read the columns too. `key` names the
    columns that tell rows apart, for a copy without a primary key of its own; None means the relation's primary key.
    Raises MissingError, PrivilegeError, DataError and RequestError for what the user can mend, DatabaseError else.
    """
    with _snapshot(connection, relation):
        place = _located(connection, relation)
        described = _described(connection, place.oid)
        if key is not None:
            described = tuple(replace(column, primary_key=column.name in key) for column in described)
        chosen = tuple(dict.fromkeys(choose(described)))
        key = tuple(column.name for column in described if column.primary_key)
        if owner_oid is not None:
            _require_grants(connection, place, owner_oid, chosen)
        _require_grants(connection, place, None, (*chosen, *key))
        wires = _wires(described, chosen, key)
        data = _copied(connection, place, wires)
        _require_same(connection, place)
    return _table(data, described, wires, chosen, key)


def describe(connection: Connection, relation: Relation) -> tuple[Column, ...]:
    """Every column of the relation, in its order. The connection must be idle.

    Raises MissingError where the relation is gone or another table has its name now, RequestError where it is
    not a table that can be read.
    """
    with _snapshot(connection, relation):
        return _described(connection, _located(connection, relation).oid)


@contextmanager
def _snapshot(connection: Connection, relation: Relation) -> Iterator[None]:
    status = connection.info.transaction_status
    if status is not TransactionStatus.IDLE:
        raise InvariantError(f"the connection that should read {relation.name} is in a transaction ({status.name})")
    with _translated(relation), connection.transaction():
        connection.execute(_statement("begin_snapshot"))
        connection.execute(_statement("physical_order"))
        yield


@contextmanager
def _translated(relation: Relation) -> Iterator[None]:
    """PostgreSQL's own errors, as the project's."""
    table = f"{relation.schema}.{relation.name}"
    try:
        yield
    except psycopg.errors.InsufficientPrivilege as error:
        raise PrivilegeError(f"table {table} cannot be read: {_first_line(error)}", hint=_PROTECTED_HINT) from error
    except psycopg.errors.UndefinedTable as error:
        raise MissingError(f"table {table} was dropped while it was read", hint=_AGAIN_HINT) from error
    except psycopg.errors.NumericValueOutOfRange as error:
        # PostgreSQL shows the number, of hundreds of digits, and no column.
        message = f"table {table} cannot be read: a numeric value is out of range for double precision"
        hint = "Keep numeric columns below 1.8e308, or leave such a column out with exclude."
        raise DataError(message, detail=f"{_first_line(error)[:40]}...", hint=hint) from error
    except psycopg.DataError as error:
        raise DataError(f"table {table} cannot be read: {_first_line(error)}") from error
    except psycopg.Error as error:
        raise DatabaseError(f"reading table {table} failed: {_first_line(error)}") from error


_AGAIN_HINT = "Call tensile_train again to train on the table that has this name now."
_PROTECTED_HINT = "Train on a table of your own: create table ... as select ... from it, as a role that may read it."


def _first_line(error: psycopg.Error) -> str:
    return error.diag.message_primary or str(error).partition("\n")[0]


def _located(connection: Connection, relation: Relation) -> _Place:
    asked = {"oid": relation.oid, "schema": relation.schema, "name": relation.name}
    row = connection.execute(_statement("locate"), asked).fetchone()
    if row is None:
        raise InvariantError(f"locating table {relation.name} gave no row")
    exists, schema, name, kind, persistence, protected, named_now = row
    title = f"{relation.schema}.{relation.name}"
    if named_now is not None and named_now != relation.oid:
        detail = (
            f"The job was enqueued for the table with oid {relation.oid}; the name belongs to oid {named_now} now."
        )
        raise MissingError(f"table {title} was dropped and created again", detail=detail, hint=_AGAIN_HINT)
    if not exists:
        hint = "Create it, then call tensile_train again."
        raise MissingError(f"table {title} no longer exists", detail=f"Its oid was {relation.oid}.", hint=hint)
    _check_kind(f"{schema}.{name}", kind, persistence)
    place = _Place(oid=relation.oid, schema=schema, name=name, protected=protected)
    if place.protected:
        raise PrivilegeError(f"table {place} is protected by row-level security", hint=_PROTECTED_HINT)
    return place


def _check_kind(title: str, kind: str, persistence: str) -> None:
    if kind not in ("r", "p"):
        what = _KINDS.get(kind, "no table")
        hint = "Store its rows in a table with create table ... as select, and train on that."
        raise RequestError(f"{title} is {what}; training reads ordinary and partitioned tables", hint=hint)
    if persistence == "t":
        hint = "Other sessions cannot see temporary tables: create it without temporary."
        raise RequestError(f"{title} is a temporary table; training reads permanent tables", hint=hint)


def _require_grants(connection: Connection, place: _Place, role_oid: int | None, columns: Sequence[str]) -> None:
    """Raise PrivilegeError, with each missing grant as a statement, where the role may not read the columns."""
    asked = {"schema": place.schema, "oid": place.oid, "role": role_oid, "columns": list(columns)}
    row = connection.execute(_statement("may_read"), asked).fetchone()
    if row is None:
        raise MissingError(f"the owner of the job (role {role_oid}) no longer exists")
    role, may_use, may_select = row
    grantee, missing = sql.Identifier(role), []
    if not may_use:
        missing.append(sql.SQL("grant usage on schema {} to {};").format(sql.Identifier(place.schema), grantee))
    if not may_select:
        missing.append(sql.SQL("grant select on {} to {};").format(place.quoted, grantee))
    if missing:
        statements = " ".join(statement.as_string(connection) for statement in missing)
        raise PrivilegeError(f"role {role} may not read table {place}", hint=f"Run: {statements}")


def _require_same(connection: Connection, place: _Place) -> None:
    """Raise MissingError where the name passed to another table between its description and the copy's lock."""
    row = connection.execute(_statement("named_now"), {"schema": place.schema, "name": place.name}).fetchone()
    if row is None or row[0] != place.oid:
        raise MissingError(f"table {place} was dropped and created again while it was read", hint=_AGAIN_HINT)


def _described(connection: Connection, oid: int) -> tuple[Column, ...]:
    rows = connection.execute(_statement("describe"), {"oid": oid}).fetchall()
    return tuple(
        Column(
            name=name,
            type=shown,
            wire=_ENUM if enum else _WIRES.get(base or ""),
            not_null=not_null,
            primary_key=primary_key,
            identity=identity,
            generated=generated,
            dims=dims,
        )
        for name, shown, base, enum, not_null, primary_key, identity, generated, dims in rows
    )


def _wires(described: Sequence[Column], chosen: Sequence[str], key: Sequence[str]) -> dict[str, Wire]:
    """What travels: the chosen columns, then what else the key needs; of fixed width first, so that runs are long."""
    by_name = {column.name: column for column in described}
    unsupported = [by_name[name] for name in chosen if by_name[name].wire is None]
    if unsupported:
        shown = ", ".join(f'"{column.name}" ({column.type})' for column in unsupported)
        left_out = ", ".join(column.name for column in unsupported)
        raise RequestError(
            f"cannot learn from column {shown}",
            detail=f"Supported types: {SUPPORTED_TYPES}.",
            hint=f"Leave it out: exclude => '{{{left_out}}}'.",
        )
    names = tuple(dict.fromkeys((*chosen, *key)))
    wires = {name: by_name[name].wire or _ENUM for name in names}  # a key of any type is hashed as text
    return dict(sorted(wires.items(), key=lambda item: item[1].kind is Kind.TEXT))


def _copied(connection: Connection, place: _Place, wires: dict[str, Wire]) -> bytearray:
    columns = [
        sql.SQL("{}::" + wire.cast).format(sql.Identifier(name)) if wire.cast else sql.Identifier(name)
        for name, wire in wires.items()
    ]
    statement = sql.SQL(_statement("copy_rows")).format(columns=sql.SQL(", ").join(columns), relation=place.quoted)
    data = bytearray()
    with connection.cursor() as cursor, cursor.copy(statement) as copy:
        for part in copy:
            data += part
    return data


def _table(
    data: bytearray, described: tuple[Column, ...], wires: dict[str, Wire], chosen: Sequence[str], key: Sequence[str]
) -> Table:
    columns, rows = decode(data, tuple(wires.items()))
    identity = [columns[name] for name in (key or sorted(chosen))]
    types = {column.name: column.type for column in described}
    digest = hashlib.sha256(repr([(name, types[name]) for name in wires]).encode())
    digest.update(data)
    return Table(
        columns={name: columns[name] for name in chosen},
        described=described,
        rows=rows,
        row_hash=row_hashes(identity, rows),
        digest=digest.hexdigest(),
    )


def _statement(name: str) -> LiteralString:
    return _STATEMENTS[name]


def _blocks(text: str) -> dict[str, LiteralString]:
    """The named blocks of an SQL file."""
    parts = _BLOCK.split(text)
    return {name: cast(LiteralString, body.strip()) for name, body in zip(parts[1::2], parts[2::2], strict=True)}


_STATEMENTS = _blocks(Path(__file__).with_name("relation.sql").read_text())
