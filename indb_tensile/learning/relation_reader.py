"""Reads one table in one snapshot as the role `tensile_reader`: COPY in binary format, decoded with numpy.

Every table that holds rows (the table itself, each partition, each child) is copied separately and as it is stored.
`copy (select …)` would be planned, and planning evaluates expressions that the table's owner wrote: expressions of
indexes, of statistics and of partition keys, and casts. Through such an expression a user could take over the reading
role. So this module and locked_relation.py run only plain queries on PostgreSQL's own catalogs, `lock table` and
`copy table`, which evaluate no such expression. All conversions are done in Python (learning/binaryvalues.py).

The rows come in physical order, table by table in the order of the partition tree, so an unchanged table always gives
the same batches.
"""

import hashlib
import json
import logging
from collections.abc import Callable, Sequence
from typing import NoReturn

from psycopg import sql

from indb_tensile.errors import DataError, MissingError, PrivilegeError, RequestError
from indb_tensile.job import Relation
from indb_tensile.learning.columns import Column, ColumnData, CopyEncoding, TableData
from indb_tensile.learning.columnstore import ColumnStore
from indb_tensile.learning.copybinary import BLOCK_BYTES, CopyDecoder
from indb_tensile.learning.copystream import blocks
from indb_tensile.learning.locked_relation import (
    Connection,
    DescribedRelation,
    LocatedRelation,
    ReadLimits,
    Row,
    catalog_rows,
    quoted,
    refuse_unreadable,
    require_unchanged,
    with_locked_relation,
)
from indb_tensile.learning.memory_estimate import Statistics
from indb_tensile.learning.relationsql import read_statistics, statement
from indb_tensile.request import copyable_relation
from indb_tensile.request.column_types import SUPPORTED_TYPES
from indb_tensile.request.copyable_relation import missing_grants
from indb_tensile.sizes import size

log = logging.getLogger("trainer")

Choose = Callable[[tuple[Column, ...]], Sequence[str]]
_StatisticsCallback = Callable[[tuple[Column, ...], Statistics], None]


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

    def copied(described: DescribedRelation) -> TableData:
        chosen = tuple(dict.fromkeys(choose(described.columns)))
        _require_wires(described, chosen)
        refuse_unreadable(copyable_relation.counting(described.reasons, chosen))
        if owner_oid is not None:
            _require_owners_grants(connection, described.located, owner_oid, chosen)
        _require_grants(connection, described.located, (*chosen, *described.key))
        return _copy_rows(connection, described, chosen, limits, on_statistics)

    return with_locked_relation(connection, relation, limits, copied, key)


def describe(connection: Connection, relation: Relation) -> tuple[Column, ...]:
    """Return every column of the relation, in its order. The connection is as for `read`.

    Raises MissingError if the relation no longer exists or another table has its name now, UnreadableError if the
    relation cannot be copied, whichever columns are used.
    """
    return with_locked_relation(connection, relation, ReadLimits(), lambda described: described.columns)


def _require_wires(described: DescribedRelation, chosen: Sequence[str]) -> None:
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


def _require_owners_grants(
    connection: Connection, located: LocatedRelation, role_oid: int, columns: Sequence[str]
) -> None:
    """Raise PrivilegeError if the role may not read the relation's columns; its partitions need no grants."""
    parameters = {"schema": located.schema, "oid": located.oid, "role": role_oid, "columns": list(columns)}
    row = connection.execute(statement("owner_may_read"), parameters).fetchone()
    if row is None:
        raise MissingError(f"the owner of the job (role {role_oid}) no longer exists")
    role, may_use, may_select = row
    facts = {"schema": located.schema, "name": located.name, "enters": may_use, "reads": may_select}
    _require_complete_grants(connection, role, [facts], f"table {located}")


def _require_grants(connection: Connection, located: LocatedRelation, columns: Sequence[str]) -> None:
    """Raise PrivilegeError if this session's role may not read the columns of every table that holds rows."""
    role = connection.info.user
    rows = catalog_rows(connection, copyable_relation.GRANTS, str(located.oid), role, json.dumps(columns))
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
    described: DescribedRelation,
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
        copying = sql.SQL(statement("copy_table")).format(table=quoted(table), columns=names)
        with connection.cursor() as cursor, cursor.copy(copying) as copy:
            arriving = blocks(
                copy, connection, block_bytes=BLOCK_BYTES, large_bytes=_UNCHECKED_ROW_BYTES, check_size=check_row_size
            )
            for block in arriving:
                digest.update(block)
                decoder.feed(block)
        decoder.end()
    require_unchanged(connection, located)
    return TableData(
        columns=store.columns(),
        described=described.columns,
        rows=store.rows,
        row_hash=store.row_hash(),
        digest=digest.hexdigest(),
    )


def _copied_wires(described: DescribedRelation, chosen: Sequence[str]) -> dict[str, CopyEncoding]:
    """Return the encodings of the chosen columns and of the key, fixed widths first so that runs are long."""
    names = tuple(dict.fromkeys((*chosen, *described.key)))
    wires = {name: described.wires[name] for name in names}
    return dict(sorted(wires.items(), key=lambda item: not item[1].item))


def _too_large_error(
    located: LocatedRelation, rows: int, size_bytes: int, stored_bytes: int, limits: ReadLimits
) -> DataError:
    return DataError(
        f"table {located} takes more memory than a trainer may use to read it: {size(size_bytes)}, and the limit is "
        f"{size(limits.size_bytes)}",
        detail=f"That is after {rows} rows; on disk the table takes {size(stored_bytes)}, possibly compressed.",
        hint="Leave columns out with exclude, train on fewer rows, or let the administrator raise "
        "TENSILE_READ_LIMIT_BYTES.",
    )
