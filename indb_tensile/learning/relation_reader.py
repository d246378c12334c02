"""Reads one table in one snapshot as the role `tensile_reader`: COPY in binary format, decoded with numpy.

Every table that holds rows (the table itself, each partition, each child) is copied separately and as it is stored.
`copy (select …)` would be planned, and planning evaluates expressions that the table's owner wrote: expressions of
indexes, of statistics and of partition keys, and casts. Through such an expression a user could take over the reading
role. So this module runs only plain queries on PostgreSQL's own catalogs, `lock table` and `copy table`, which
evaluate no such expression. All conversions are done in Python (learning/binaryvalues.py).

The rows come in physical order, table by table in the order of the partition tree, so an unchanged table always gives
the same batches.
"""

import hashlib
import json
import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

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
from indb_tensile.learning import copy_encodings
from indb_tensile.learning.columns import Column, ColumnData, CopyEncoding, TableData
from indb_tensile.learning.columnstore import ColumnStore
from indb_tensile.learning.copybinary import BLOCK_BYTES, CopyDecoder
from indb_tensile.learning.copystream import blocks
from indb_tensile.learning.memory_estimate import Statistics
from indb_tensile.learning.relationsql import read_statistics, statement
from indb_tensile.request import copyable_relation
from indb_tensile.request.column_types import SUPPORTED_TYPES
from indb_tensile.request.copyable_relation import Reason, missing_grants
from indb_tensile.sizes import size

log = logging.getLogger("trainer")

Connection = psycopg.Connection[Any]
Choose = Callable[[tuple[Column, ...]], Sequence[str]]
_StatisticsCallback = Callable[[tuple[Column, ...], Statistics], None]
Row = Mapping[str, Any]
Result = TypeVar("Result")

_ATTEMPTS = 3  # attempts to read a table that is changed while it is read


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLimits:
    """The limits of one read: bytes of memory for the columns, and seconds to wait for a lock."""

    size_bytes: int = sys.maxsize
    lock_s: float = 5.0


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
class _Located:
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
class _Described:
    """A locked relation with its columns, their encodings, and the reasons against copying it."""

    located: _Located
    columns: tuple[Column, ...]
    wires: dict[str, CopyEncoding]
    reasons: tuple[Reason, ...]

    @property
    def key(self) -> tuple[str, ...]:
        """Return the columns of the primary key."""
        return tuple(column.name for column in self.columns if column.primary_key)


def read(
    connection: Connection,
    relation: Relation,
    choose: Choose,
    *,
    owner_oid: int | None = None,
    key: Sequence[str] | None = None,
    limits: ReadLimits | None = None,
    on_statistics: _StatisticsCallback = lambda _columns, _statistics: None,
) -> TableData:
    """Read the columns that `choose` selects from the relation's columns, in one snapshot.

    The snapshot ends with this call. `connection` is an idle connection of the role `tensile_reader`. The caller must
    close it afterwards, because its settings are changed. If `owner_oid` is given, that role must also be able to
    read the columns. `key` names the columns that identify rows in a copy without a primary key; None means the
    relation's primary key. `on_statistics` is called with the table's statistics before the table is read, and again
    when the first arrays have given their shapes; it may raise an exception. If the relation is changed while it is
    read, the read is repeated and `choose` and `on_statistics` are called again. Raises MissingError, PrivilegeError,
    DataError, RequestError and UnreadableError for faults that the user can correct, TableBusyError if another
    session locks a table for longer than the limit, and DatabaseError for other faults.
    """
    limits = limits or ReadLimits()

    def copied(described: _Described) -> TableData:
        chosen = tuple(dict.fromkeys(choose(described.columns)))
        _require_wires(described, chosen)
        _refuse_unreadable(copyable_relation.counting(described.reasons, chosen))
        if owner_oid is not None:
            _require_owners_grants(connection, described.located, owner_oid, chosen)
        _require_grants(connection, described.located, (*chosen, *described.key))
        return _copy_rows(connection, described, chosen, limits, on_statistics)

    return _with_locked_relation(connection, relation, limits, copied, key)


def describe(connection: Connection, relation: Relation) -> tuple[Column, ...]:
    """Return every column of the relation, in its order. The connection is as for `read`.

    Raises MissingError if the relation no longer exists or another table has its name now, UnreadableError if the
    relation cannot be copied, whichever columns are used.
    """
    return _with_locked_relation(connection, relation, ReadLimits(), lambda described: described.columns)


def _with_locked_relation(
    connection: Connection,
    relation: Relation,
    limits: ReadLimits,
    action: Callable[[_Described], Result],
    key: Sequence[str] | None = None,
) -> Result:
    """Call `action` with the locked relation. Repeats the call if the relation is changed meanwhile."""
    status = connection.info.transaction_status
    if status is not TransactionStatus.IDLE:
        raise InvariantError(f"the connection that should read {relation.name} is in a transaction ({status.name})")
    with _translate_errors(connection, relation):
        connection.execute(statement("set_session"))
        for _ in range(_ATTEMPTS):
            located = _locate(connection, relation)
            try:
                with _translate_lock_errors(connection, located, limits), connection.transaction():
                    _lock(connection, located, limits)
                    return action(_describe_locked(connection, located, key))
            except _ChangedError:
                continue
    raise MissingError(
        f"table {relation.schema}.{relation.name} was changed {_ATTEMPTS} times while it was read",
        hint="Call tensile_train again when its definition no longer changes.",
    )


@contextmanager
def _translate_errors(connection: Connection, relation: Relation) -> Iterator[None]:
    """Convert PostgreSQL's errors to the project's, except the error of a lost connection, which allows a retry."""
    table = f"{relation.schema}.{relation.name}"
    try:
        yield
    except psycopg.errors.InsufficientPrivilege as error:
        raise PrivilegeError(f"table {table} cannot be read: {_first_line(error)}", hint=_PROTECTED_HINT) from error
    except psycopg.DataError as error:
        raise DataError(f"table {table} cannot be read: {_first_line(error)}") from error
    except psycopg.errors.QueryCanceled as error:
        hint = "A statement on the catalog may take a minute and a table's copy four hours: see PostgreSQL's log."
        raise DatabaseError(f"reading table {table} failed: {_first_line(error)}", hint=hint) from error
    except psycopg.Error as error:
        if connection.broken and not isinstance(error, psycopg.errors.IdleInTransactionSessionTimeout):
            raise
        raise DatabaseError(f"reading table {table} failed: {_first_line(error)}") from error


_AGAIN_HINT = "Call tensile_train again to train on the table that has this name now."
_PROTECTED_HINT = (
    "Train on a table of your own: create table ... as select ... from it, as a role that may read it, and give it a "
    "primary key, which is not copied."
)


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
def _translate_lock_errors(connection: Connection, located: _Located, limits: ReadLimits) -> Iterator[None]:
    """Convert the errors of a lock timeout and of a dropped table, after the transaction is rolled back."""
    try:
        yield
    except _DROPPED_ERRORS:  # the next attempt looks the relation up again and reports the cause
        raise _ChangedError from None
    except psycopg.errors.LockNotAvailable as error:
        raise _busy_error(connection, located, limits) from error


def _busy_error(connection: Connection, located: _Located, limits: ReadLimits) -> TableBusyError:
    oids = [row["oid"] for row in located.members]
    holder = connection.execute(statement("lock_holder"), {"oids": oids}).fetchone()
    schema, name, pid, role = holder or (located.schema, located.name, None, None)
    process = f"Process {pid}" + (f" of role {role}" if role else "")
    hint = f"{process} locks it: end its transaction." if pid else "End the transaction that locks it: see pg_locks."
    message = f"table {schema}.{name} is locked: no lock for reading was granted within {limits.lock_s:g} s"
    return TableBusyError(message, hint=hint)


def _locate(connection: Connection, relation: Relation) -> _Located:
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
    _refuse_unreadable(copyable_relation.reasons(family, ()))
    oids = [row["oid"] for row in family]
    lockable = frozenset(oid for (oid,) in connection.execute(statement("lockable"), {"oids": oids}))
    return _Located(oid=relation.oid, schema=schema, name=name, family=family, lockable=lockable)


def _family(connection: Connection, oid: int) -> tuple[Row, ...]:
    return tuple(_rows(connection, copyable_relation.FAMILY, str(oid)))


def _rows(connection: Connection, query: str, *arguments: str) -> list[Row]:
    """Return the rows of a statement of `copyable_relation`, whose parameters are in the syntax of PL/Python."""
    with psycopg.RawCursor(connection, row_factory=dict_row) as cursor:
        return list(cursor.execute(query, arguments).fetchall())


def _lock(connection: Connection, located: _Located, limits: ReadLimits) -> None:
    """Start the transaction, and lock the tables that may be locked before a query takes the snapshot."""
    connection.execute(statement("begin_snapshot"))
    timeout = sql.SQL(statement("set_lock_timeout")).format(milliseconds=sql.Literal(round(1000 * limits.lock_s)))
    connection.execute(timeout)
    tables = [sql.SQL("only {}").format(_quoted(row)) for row in located.members if row["oid"] in located.lockable]
    if tables:
        connection.execute(sql.SQL(statement("lock")).format(tables=sql.SQL(", ").join(tables)))


def _quoted(row: Row) -> sql.Identifier:
    return sql.Identifier(row["schema"], row["name"])


def _describe_locked(connection: Connection, located: _Located, key: Sequence[str] | None) -> _Described:
    """Describe the locked relation. Raises _ChangedError if its family differs from the locked one."""
    if _family(connection, located.oid) != located.family:
        raise _ChangedError
    rows = _rows(connection, copyable_relation.COLUMNS, str(located.oid))
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
        )
        for row in rows
    )
    readable_columns = {column.name: column.wire for column in described if column.wire is not None}
    key_wires = {row["name"]: copy_encodings.of_key(row["base"], sent_as_text=row["sent_as_text"]) for row in rows}
    keys = {row["name"]: wire for row in rows if row["primary_key"] and (wire := key_wires[row["name"]]) is not None}
    return _Described(
        located=located,
        columns=described,
        wires=keys | readable_columns,
        reasons=copyable_relation.reasons(located.family, rows),
    )


def _require_unchanged(connection: Connection, located: _Located) -> None:
    """Raise _ChangedError if the copied rows may differ from the rows of the snapshot.

    This is possible only for a table of which the role may read single columns: such a table is locked only by its
    own COPY.
    """
    if connection.execute(statement("changed"), {"oids": located.oids}).fetchone():
        raise _ChangedError


def _refuse_unreadable(reasons: tuple[Reason, ...]) -> None:
    """Raise UnreadableError for the first of the reasons, if there is any."""
    if not reasons:
        return
    reason = reasons[0]
    subject = f"{reason.schema}.{reason.name}"
    match reason.code:
        case copyable_relation.ROW_SECURITY:
            raise ProtectedError(
                f"table {subject} is protected by row-level security", hint=_PROTECTED_HINT, reasons=reasons
            )
        case copyable_relation.GENERATED | copyable_relation.SEND_FUNCTION | copyable_relation.KEY_TYPE:
            advice = f"Leave it out: exclude => '{{{reason.column}}}'. Or train" if not reason.key else "Train"
            raise UnreadableError(
                f"table {subject} cannot be copied as it stands: {reason.text}",
                hint=f"{advice} on a copy of it, made with create table ... as select; give it a primary key, which "
                "is not copied.",
                reasons=reasons,
            )
        case copyable_relation.TEMPORARY:
            hint = "Other sessions cannot see temporary tables: create it without temporary."
            message = f"{subject} is a temporary table; training reads permanent tables"
            raise UnreadableError(message, hint=hint, reasons=reasons)
        case _:
            kind = reason.type or f"a {reason.code}"
            hint = (
                "Store its rows in a table with create table ... as select, give it a primary key, which is not "
                "copied, and train on that."
            )
            message = f"{subject} is {kind}; training reads ordinary and partitioned tables"
            raise UnreadableError(message, hint=hint, reasons=reasons)


def _require_wires(described: _Described, chosen: Sequence[str]) -> None:
    by_name = {column.name: column for column in described.columns}
    unsupported = [by_name[name] for name in chosen if by_name[name].wire is None]
    if unsupported:
        shown = ", ".join(f'"{column.name}" ({column.type})' for column in unsupported)
        left_out = ", ".join(column.name for column in unsupported)
        raise RequestError(
            f"cannot learn from column {shown}",
            detail=f"Supported types: {SUPPORTED_TYPES}.",
            hint=f"Leave it out: exclude => '{{{left_out}}}'.",
        )


def _require_owners_grants(connection: Connection, located: _Located, role_oid: int, columns: Sequence[str]) -> None:
    """Raise PrivilegeError if the role may not read the relation's columns; its partitions need no grants."""
    parameters = {"schema": located.schema, "oid": located.oid, "role": role_oid, "columns": list(columns)}
    row = connection.execute(statement("owner_may_read"), parameters).fetchone()
    if row is None:
        raise MissingError(f"the owner of the job (role {role_oid}) no longer exists")
    role, may_use, may_select = row
    facts = {"schema": located.schema, "name": located.name, "enters": may_use, "reads": may_select}
    _require_complete_grants(connection, role, [facts], f"table {located}")


def _require_grants(connection: Connection, located: _Located, columns: Sequence[str]) -> None:
    """Raise PrivilegeError if this session's role may not read the columns of every table that holds rows."""
    role = connection.info.user
    rows = _rows(connection, copyable_relation.GRANTS, str(located.oid), role, json.dumps(columns))
    _require_complete_grants(connection, role, rows, f"table {located}")


def _require_complete_grants(connection: Connection, role: str, tables: Sequence[Row], subject: str) -> None:
    def quote(name: str) -> str:
        return sql.Identifier(name).as_string(connection)

    missing = missing_grants(tables, role, quote)
    if missing:
        raise PrivilegeError(f"role {role} may not read {subject}", hint=f"Run: {' '.join(missing)}")


_UNCHECKED_ROW_BYTES = 16 << 20  # rows up to this size are decoded before the memory limit is checked


def _copy_rows(
    connection: Connection,
    described: _Described,
    chosen: Sequence[str],
    limits: ReadLimits,
    on_statistics: _StatisticsCallback,
) -> TableData:
    """Copy the rows of every table, one table after another."""
    located = described.located
    wires = _copied_wires(described, chosen)
    types = {column.name: column.type for column in described.columns}
    digest = hashlib.sha256(repr([(name, types[name]) for name in wires]).encode())
    statistics = read_statistics(connection, located.oids, wires)
    stored_bytes = statistics.stored_bytes
    log.info("reading table %s: %d tables of %d bytes on disk", located, len(located.tables), stored_bytes)
    on_statistics(described.columns, statistics)

    def refuse(size_bytes: int) -> NoReturn:
        raise _too_large_error(located, store.rows, size_bytes, stored_bytes, limits)

    def check_row_size(row_bytes: int) -> None:  # in the stream an array has up to twice its size in memory
        if row_bytes > 2 * (limits.size_bytes - store.size_bytes):
            refuse(store.size_bytes + row_bytes)

    def sink(columns: dict[str, ColumnData], rows: int) -> None:
        shapes = {name: data.shape for name, data in columns.items() if data.shape}
        if shapes and not store.rows:
            on_statistics(described.columns, statistics.seen(shapes))
        store.add(columns, rows)

    identity = described.key or sorted(chosen)
    store = ColumnStore(wires, stored=chosen, identity=identity, limit_bytes=limits.size_bytes, refuse=refuse)
    decoder = CopyDecoder(tuple(wires.items()), sink)
    connection.execute(statement("set_copy_timeout"))
    names = sql.SQL(", ").join(map(sql.Identifier, wires))
    for table in located.tables:
        decoder.begin()
        copying = sql.SQL(statement("copy_table")).format(table=_quoted(table), columns=names)
        with connection.cursor() as cursor, cursor.copy(copying) as copy:
            arriving = blocks(
                copy, connection, block_bytes=BLOCK_BYTES, large_bytes=_UNCHECKED_ROW_BYTES, check_size=check_row_size
            )
            for block in arriving:
                digest.update(block)
                decoder.feed(block)
        decoder.end()
    _require_unchanged(connection, located)
    return TableData(
        columns=store.columns(),
        described=described.columns,
        rows=store.rows,
        row_hash=store.row_hash(),
        digest=digest.hexdigest(),
    )


def _copied_wires(described: _Described, chosen: Sequence[str]) -> dict[str, CopyEncoding]:
    """Return the encodings of the chosen columns and of the key, fixed widths first so that runs are long."""
    names = tuple(dict.fromkeys((*chosen, *described.key)))
    wires = {name: described.wires[name] for name in names}
    return dict(sorted(wires.items(), key=lambda item: not item[1].item))


def _too_large_error(
    located: _Located, rows: int, size_bytes: int, stored_bytes: int, limits: ReadLimits
) -> DataError:
    return DataError(
        f"table {located} takes more memory than a trainer may use to read it: {size(size_bytes)}, and the limit is "
        f"{size(limits.size_bytes)}",
        detail=f"That is after {rows} rows; on disk the table takes {size(stored_bytes)}, possibly compressed.",
        hint="Leave columns out with exclude, train on fewer rows, or let the administrator raise "
        "TENSILE_READ_LIMIT_BYTES.",
    )
