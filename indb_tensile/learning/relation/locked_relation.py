"""Locks one table with its partitions and children, describes its columns, and refuses what cannot be copied.

The queries here are plain ones on PostgreSQL's own catalogs, and `lock table`. They evaluate no expression that the
table's owner wrote (relation_reader.py says why).
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeVar

import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus
from psycopg.rows import dict_row

from indb_tensile.errors import (
    DatabaseError,
    DataError,
    InvariantError,
    MissingError,
    PrivilegeError,
    RequestError,
    TableBusyError,
)
from indb_tensile.job import Relation
from indb_tensile.learning.decoding import copy_encodings
from indb_tensile.learning.decoding.invalid_text_error import InvalidNameError
from indb_tensile.learning.relation.relationsql import statement
from indb_tensile.learning.storage.columns import Column, CopyEncoding
from indb_tensile.learning.storage.row_storage import RowStorage
from indb_tensile.request import copyable_relation
from indb_tensile.request.copyable_relation import Reason

Connection = psycopg.Connection[Any]
Row = Mapping[str, Any]
Result = TypeVar("Result")

_ATTEMPTS = 3  # attempts to read a table that is changed while it is read


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLimits:
    """The limits of one read: bytes of memory for the columns, and seconds to wait for a lock.

    Columns that exceed the limit are stored where `overflow` says; without `overflow` they are refused. `snapshot` is
    one that another session has exported, under which to read; the read then has no time limit. The locked relations
    are read within a context of `sharing`, which gets the connection in its transaction.
    """

    size_bytes: int = sys.maxsize
    lock_s: float = 5.0
    overflow: Callable[[], RowStorage] | None = None
    snapshot: str | None = None
    sharing: Callable[[Connection], AbstractContextManager[None]] = field(default=lambda _: nullcontext())


class UnreadableError(RequestError):
    """The relation cannot be copied in its present form. `reasons` contains every reason."""

    def __init__(self, message: str, *, hint: str, reasons: tuple[Reason, ...]) -> None:
        others = "; ".join(reason.text for reason in reasons[1:])
        super().__init__(message, detail=f"Also: {others}." if others else "", hint=hint)
        self.reasons = reasons


class ProtectedError(UnreadableError, PrivilegeError):
    """The relation cannot be copied because of row-level security."""


class _ChangedError(Exception):
    """The relation was changed after this attempt to read it began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocatedRelation:
    """A relation under its present name, with its partitions, children and ancestors.

    `family` contains rows of `copyable_relation.FAMILY`. `lockable` contains the oids of the members that this
    session's role may lock with `lock table`.
    """

    oid: int
    schema: str
    name: str
    family: tuple[Row, ...]
    lockable: frozenset[int]

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"

    @property
    def members(self) -> tuple[Row, ...]:
        """Return the relation together with all its partitions and children."""
        return tuple(row for row in self.family if row["place"] != "ancestor")

    @property
    def tables(self) -> tuple[Row, ...]:
        """Return the members that hold rows, in the order in which they are read."""
        return tuple(row for row in self.members if row["kind"] == "r")

    @property
    def oids(self) -> list[int]:
        """Return the oids of `tables`."""
        return [row["oid"] for row in self.tables]


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedRelation:
    """A locked relation with its columns, their encodings, and the reasons against copying it.

    `key_wires` are the encodings of columns of the key that are not learned from.
    """

    located: LocatedRelation
    columns: tuple[Column, ...]
    wires: dict[str, CopyEncoding]
    key_wires: dict[str, CopyEncoding]
    reasons: tuple[Reason, ...]

    @property
    def key(self) -> tuple[str, ...]:
        """Return the columns of the primary key."""
        return tuple(column.name for column in self.columns if column.primary_key)


def with_locked_relation(
    connection: Connection,
    relation: Relation,
    limits: ReadLimits,
    action: Callable[[DescribedRelation], Result],
    key: Sequence[str] | None = None,
) -> Result:
    """Call `action` with the locked relation. Repeats the call if the relation is changed meanwhile."""
    return with_locked_relations(connection, (relation,), limits, lambda described: action(*described), key)


def with_locked_relations(
    connection: Connection,
    relations: Sequence[Relation],
    limits: ReadLimits,
    action: Callable[[tuple[DescribedRelation, ...]], Result],
    key: Sequence[str] | None = None,
) -> Result:
    """Call `action` with all relations, locked in one transaction, which reads them in one snapshot.

    Repeats the call if one of the relations is changed meanwhile. `key` are the columns that identify rows of the
    first relation, if these are not its primary key.
    """
    names = " or ".join(f"{relation.schema}.{relation.name}" for relation in relations)
    status = connection.info.transaction_status
    if status is not TransactionStatus.IDLE:
        raise InvariantError(f"the connection that should read {names} is in a transaction ({status.name})")
    with _translate_errors(connection, names):
        connection.execute(statement("set_session"))
        for _ in range(_ATTEMPTS):
            located = tuple(_locate(connection, relation) for relation in relations)
            try:
                with _translate_lock_errors(connection, located, limits), connection.transaction():
                    _lock(connection, located, limits)
                    keys = (key, *(None for _ in located[1:]))
                    with limits.sharing(connection):
                        return action(
                            tuple(_describe_locked(connection, *pair) for pair in zip(located, keys, strict=True))
                        )
            except _ChangedError:
                continue
    raise MissingError(
        f"table {names} was changed {_ATTEMPTS} times while it was read",
        hint="Call tensile_train again when its definition no longer changes.",
    )


@contextmanager
def _translate_errors(connection: Connection, table: str) -> Iterator[None]:
    """Convert PostgreSQL's errors to the project's, except the error of a lost connection, which allows a retry."""
    try:
        yield
    except psycopg.errors.InsufficientPrivilege as error:
        raise PrivilegeError(f"table {table} cannot be read: {_first_line(error)}", hint=_SNAPSHOT_HINT) from error
    except psycopg.errors.CharacterNotInRepertoire as error:
        raise InvalidNameError(table, _first_line(error)) from error
    except psycopg.DataError as error:
        raise DataError(f"table {table} cannot be read: {_first_line(error)}") from error
    except psycopg.errors.QueryCanceled as error:
        hint = "A statement on the catalog may take a minute and a table's copy four hours: see PostgreSQL's log."
        raise DatabaseError(f"reading table {table} failed: {_first_line(error)}", hint=hint) from error
    except psycopg.Error as error:
        if connection.broken and not isinstance(error, psycopg.errors.IdleInTransactionSessionTimeout):
            raise
        raise DatabaseError(f"reading table {table} failed: {_first_line(error)}") from error


_AGAIN_HINT = "Enqueue the job again, which then uses the table that has this name now."
# A call of the user's session copies the rows of such a relation, with its key.
_SNAPSHOT_HINT = "It has changed since the job was enqueued. Enqueue the job again: a snapshot then takes its rows."


def _first_line(error: psycopg.Error) -> str:
    return error.diag.message_primary or str(error).partition("\n")[0]


# Errors of a statement whose table or column was dropped, renamed or replaced since it was looked up.
_DROPPED_ERRORS = (
    psycopg.errors.UndefinedTable,
    psycopg.errors.UndefinedColumn,
    psycopg.errors.InvalidSchemaName,
    psycopg.errors.WrongObjectType,
)


@contextmanager
def _translate_lock_errors(
    connection: Connection, located: Sequence[LocatedRelation], limits: ReadLimits
) -> Iterator[None]:
    """Convert the errors of a lock timeout and of a dropped table, after the transaction is rolled back."""
    try:
        yield
    except _DROPPED_ERRORS:  # the next attempt looks the relation up again and reports the cause
        raise _ChangedError from None
    except psycopg.errors.LockNotAvailable as error:
        raise _busy_error(connection, located, limits) from error


def _busy_error(connection: Connection, located: Sequence[LocatedRelation], limits: ReadLimits) -> TableBusyError:
    oids = [row["oid"] for relation in located for row in relation.members]
    holder = connection.execute(statement("lock_holder"), {"oids": oids}).fetchone()
    schema, name, pid, role = holder or (located[0].schema, located[0].name, None, None)
    process = f"Process {pid}" + (f" of role {role}" if role else "")
    hint = f"{process} locks it: end its transaction." if pid else "End the transaction that locks it: see pg_locks."
    message = f"table {schema}.{name} is locked: no lock for reading was granted within {limits.lock_s:g} s"
    return TableBusyError(message, hint=hint)


def _locate(connection: Connection, relation: Relation) -> LocatedRelation:
    """Find the relation by its oid. Raises MissingError if it is gone or its name belongs to another table."""
    parameters = {"oid": relation.oid, "schema": relation.schema, "name": relation.name}
    row = connection.execute(statement("locate"), parameters).fetchone()
    if row is None:
        raise InvariantError(f"locating table {relation.name} gave no row")
    exists, schema, name, named_now = row
    title = f"{relation.schema}.{relation.name}"
    if named_now is not None and named_now != relation.oid:
        detail = (
            f"The job was enqueued for the table with oid {relation.oid}; the name belongs to oid {named_now} now."
        )
        raise MissingError(f"table {title} was dropped and created again", detail=detail, hint=_AGAIN_HINT)
    family = _family(connection, relation.oid)
    if not exists or not family:
        hint = "Create it, then call tensile_train again."
        raise MissingError(f"table {title} no longer exists", detail=f"Its oid was {relation.oid}.", hint=hint)
    refuse_unreadable(copyable_relation.reasons(family, ()))
    oids = [row["oid"] for row in family]
    lockable = frozenset(oid for (oid,) in connection.execute(statement("lockable"), {"oids": oids}))
    return LocatedRelation(oid=relation.oid, schema=schema, name=name, family=family, lockable=lockable)


def _family(connection: Connection, oid: int) -> tuple[Row, ...]:
    return tuple(catalog_rows(connection, copyable_relation.FAMILY, str(oid)))


def catalog_rows(connection: Connection, query: str, *arguments: str) -> list[Row]:
    """Return the rows of a statement of `copyable_relation`, whose parameters are in the syntax of PL/Python."""
    with psycopg.RawCursor(connection, row_factory=dict_row) as cursor:
        return list(cursor.execute(query, arguments).fetchall())


def _lock(connection: Connection, located: Sequence[LocatedRelation], limits: ReadLimits) -> None:
    """Start the transaction, and lock the tables that may be locked before a query takes the snapshot."""
    connection.execute(statement("begin_snapshot"))
    if limits.snapshot is not None:
        _import_snapshot(connection, limits.snapshot)
    timeout = sql.SQL(statement("set_lock_timeout")).format(milliseconds=sql.Literal(round(1000 * limits.lock_s)))
    connection.execute(timeout)
    tables = [
        sql.SQL("only {}").format(quoted(row))
        for relation in located
        for row in relation.members
        if row["oid"] in relation.lockable
    ]
    if tables:
        connection.execute(sql.SQL(statement("lock")).format(tables=sql.SQL(", ").join(tables)))


def _import_snapshot(connection: Connection, snapshot: str) -> None:
    try:
        connection.execute(sql.SQL(statement("import_snapshot")).format(snapshot=sql.Literal(snapshot)))
    except (psycopg.errors.InvalidParameterValue, psycopg.errors.UndefinedObject) as error:
        raise DatabaseError(
            f"the snapshot to read under no longer exists: {_first_line(error)}",
            hint="The session that has exported it has ended its transaction.",
        ) from error


def export_snapshot(connection: Connection) -> str:
    """Return the name of the snapshot of the connection's transaction, which lasts as long as the transaction."""
    row = connection.execute(statement("export_snapshot")).fetchone()
    assert row is not None
    return str(row[0])


def quoted(row: Row) -> sql.Identifier:
    """Return the qualified name of a member."""
    return sql.Identifier(row["schema"], row["name"])


def _describe_locked(
    connection: Connection, located: LocatedRelation, key: Sequence[str] | None
) -> DescribedRelation:
    """Describe the locked relation. Raises _ChangedError if its family differs from the locked one."""
    if _family(connection, located.oid) != located.family:
        raise _ChangedError
    rows = catalog_rows(connection, copyable_relation.COLUMNS, str(located.oid))
    if key is not None:
        rows = [{**row, "primary_key": row["name"] in key} for row in rows]
    version = connection.info.server_version
    described = tuple(
        Column(
            name=row["name"],
            type=row["type"],
            wire=copy_encodings.of_column(row["base"], enumerated=row["enumerated"], server_version=version),
            not_null=row["not_null"],
            primary_key=row["primary_key"],
            identity=row["identity"],
            generated=row["generated"],
            dims=row["dims"],
            number=row["number"],
        )
        for row in rows
    )
    readable_columns = {column.name: column.wire for column in described if column.wire is not None}
    key_wires = {row["name"]: copy_encodings.of_key(row["base"], sent_as_text=row["sent_as_text"]) for row in rows}
    keys = {row["name"]: wire for row in rows if row["primary_key"] and (wire := key_wires[row["name"]]) is not None}
    return DescribedRelation(
        located=located,
        columns=described,
        wires=keys | readable_columns,
        key_wires=keys,
        reasons=copyable_relation.reasons(located.family, rows),
    )


def require_unchanged(connection: Connection, located: Sequence[LocatedRelation]) -> None:
    """Raise _ChangedError if the copied rows may differ from the rows of the snapshot.

    This is possible only for a table of which the role may read single columns: such a table is locked only by its
    own COPY.
    """
    oids = [oid for each in located for oid in each.oids]
    if connection.execute(statement("changed"), {"oids": oids}).fetchone():
        raise _ChangedError


def refuse_unreadable(reasons: tuple[Reason, ...]) -> None:
    """Raise UnreadableError for the first of the reasons, if there is any."""
    if not reasons:
        return
    reason = reasons[0]
    subject = f"{reason.schema}.{reason.name}"
    match reason.code:
        case copyable_relation.ROW_SECURITY:
            raise ProtectedError(
                f"table {subject} is protected by row-level security", hint=_SNAPSHOT_HINT, reasons=reasons
            )
        case copyable_relation.GENERATED | copyable_relation.SEND_FUNCTION | copyable_relation.KEY_TYPE:
            raise UnreadableError(
                f"table {subject} cannot be copied as it stands: {reason.text}",
                hint=_SNAPSHOT_HINT if reason.key else f"{_SNAPSHOT_HINT} Or leave the column out with exclude.",
                reasons=reasons,
            )
        case copyable_relation.TEMPORARY:
            message = f"{subject} is a temporary table, which other sessions cannot see"
            raise UnreadableError(message, hint=_SNAPSHOT_HINT, reasons=reasons)
        case copyable_relation.NO_ROWS:
            raise UnreadableError(
                f"{subject} is {reason.type}", hint="Name the table that holds the rows.", reasons=reasons
            )
        case _:
            kind = reason.type or f"a {reason.code}"
            message = f"{subject} is {kind}; a worker reads ordinary and partitioned tables"
            raise UnreadableError(message, hint=_SNAPSHOT_HINT, reasons=reasons)
