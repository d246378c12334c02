"""Reads one table in one snapshot as the role `tensile_reader`: COPY in binary format, decoded with numpy.

Every table that holds rows (the table itself, each partition, each child) is copied separately and as it is stored.
`copy (select ...)` would be planned, and planning evaluates expressions that the table's owner wrote: expressions of
indexes, of statistics and of partition keys, and casts. Through such an expression a user could take over the reading
role. So this module and locked_relation.py run only plain queries on PostgreSQL's own catalogs, `lock table` and
`copy table`, which evaluate no such expression. All conversions are done in Python
(learning/decoding/binaryvalues.py).

The rows come in physical order, table by table in the order of the partition tree, so an unchanged table always gives
the same batches.
"""

import hashlib
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import MappingProxyType

from psycopg import sql

from indb_tensile.errors import DataError, MissingError, PrivilegeError, RequestError
from indb_tensile.job import PartTable, Relation
from indb_tensile.learning.decoding import copy_encodings
from indb_tensile.learning.decoding.copybinary import BLOCK_BYTES, CopyDecoder, SegmentStream
from indb_tensile.learning.decoding.copystream import blocks
from indb_tensile.learning.relation.arriving_rows import ArrivingRows, StatisticsCallback
from indb_tensile.learning.relation.locked_relation import (
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
    with_locked_relations,
)
from indb_tensile.learning.relation.relationsql import read_statistics, statement
from indb_tensile.learning.relation.unchecked_texts import unchecked_texts
from indb_tensile.learning.storage.background_feed import BackgroundFeed
from indb_tensile.learning.storage.columns import Column, ColumnKind, CopyEncoding, TableData
from indb_tensile.request import copyable_relation
from indb_tensile.request.column_types import SUPPORTED_TYPES
from indb_tensile.request.copyable_relation import missing_grants
from indb_tensile.request.json_text import json_text
from indb_tensile.request.part_tables import SAME_COLUMNS_HINT, differing_columns

log = logging.getLogger("trainer")

Choose = Callable[[tuple[Column, ...]], Sequence[str]]


def read(
    connection: Connection,
    relation: Relation,
    choose: Choose,
    *,
    owner_oid: int | None = None,
    key: Sequence[str] | None = None,
    part_tables: Mapping[str, PartTable] = MappingProxyType({}),
    label_columns: Collection[str] = (),
    has_unlike_texts: Callable[[str], bool] = lambda _: False,
    limits: ReadLimits | None = None,
    on_statistics: StatisticsCallback = lambda _columns, _statistics: True,
) -> TableData:
    """Read the columns that `choose` selects from the relation's columns, in one snapshot.

    The snapshot ends with this call. `connection` is an idle connection of the role `tensile_reader`. The caller must
    close it afterwards, because its settings are changed. If `owner_oid` is given, that role must also be able to
    read the columns. `key` names the columns that identify rows in a copy without a primary key; None means the
    relation's primary key. `part_tables` are the tables of parts of the split; their rows follow those of the
    relation, and they must have the chosen columns with the same types. Arrays of integers in `label_columns` are
    read as sets of labels. `has_unlike_texts` says of which columns nearly every text is another one, so that a file
    has the texts themselves. `on_statistics` is called with the tables' statistics before they are read, again when
    the first arrays have given their shapes, and again if there are more rows than the statistics said; it may raise
    an exception. If it returns False, the columns go to `limits.overflow`. If a relation is changed while it is read,
    the read is repeated and `choose` and `on_statistics` are called again. Raises MissingError, PrivilegeError,
    DataError, RequestError and UnreadableError for faults that the user can correct, TableBusyError if another
    session locks a table for longer than the limit,
    and DatabaseError for other faults.
    """
    limits = limits or ReadLimits()

    def copied(relations: tuple[DescribedRelation, ...]) -> TableData:
        relations = tuple(_with_labels(each, label_columns) for each in relations)
        described, *others = relations
        chosen = tuple(dict.fromkeys(choose(described.columns)))
        require_wires(described, chosen)
        for (part, table), other in zip(part_tables.items(), others, strict=True):
            require_same_numbers(table.column_numbers, other.columns, str(other.located))
            _require_same_types(described, part, other, chosen)
        for place, each in enumerate(relations):
            refuse_unreadable(copyable_relation.counting(each.reasons, chosen, keyed=not place))
            if owner_oid is not None:
                require_role_grants(connection, each.located, owner_oid, chosen)
            require_grants(connection, each.located, chosen if place else (*chosen, *described.key))
        parts = dict(zip(part_tables, others, strict=True))
        unlike_texts = tuple(name for name in chosen if has_unlike_texts(name))
        return _copy_rows(connection, described, parts, chosen, unlike_texts, limits, on_statistics)

    relations = (relation, *(table.relation for table in part_tables.values()))
    return with_locked_relations(connection, relations, limits, copied, key)


def _with_labels(described: DescribedRelation, names: Collection[str]) -> DescribedRelation:
    """Return the relation with the encodings of columns that are sets of labels."""
    if not names:
        return described
    wires = {name: copy_encodings.of_labels(wire) for name, wire in described.wires.items() if name in names}
    columns = tuple(replace(each, wire=wires.get(each.name, each.wire)) for each in described.columns)
    return replace(described, columns=columns, wires=described.wires | wires)


def describe(connection: Connection, relation: Relation) -> tuple[Column, ...]:
    """Return every column of the relation, in its order. The connection is as for `read`.

    Raises MissingError if the relation no longer exists or another table has its name now, UnreadableError if the
    relation cannot be copied, whichever columns are used.
    """
    return with_locked_relation(connection, relation, ReadLimits(), lambda described: described.columns)


def require_wires(described: DescribedRelation, chosen: Sequence[str]) -> None:
    """Raise RequestError if models cannot learn from one of these columns."""
    by_name = {column.name: column for column in described.columns}
    unsupported = [by_name[name] for name in chosen if by_name[name].wire is None]
    if unsupported:
        shown = ", ".join(f'"{column.name}" ({column.type})' for column in unsupported)
        left_out = ", ".join(column.name for column in unsupported)
        raise RequestError(
            f"cannot learn from column {shown}",
            detail=f"Supported types: {SUPPORTED_TYPES}.",
            hint=f"Leave out what cannot be learned from: exclude => '{{{left_out}}}'.",
        )


def require_same_numbers(numbers: Mapping[str, int], described: Sequence[Column], table: str) -> None:
    """Refuse a table whose columns were dropped, renamed or created again after the job was enqueued."""
    present = {column.name: column.number for column in described}
    changed = sorted(name for name, number in numbers.items() if present.get(name) != number)
    if changed:
        listed = ", ".join(f'"{name}"' for name in changed)
        raise MissingError(
            f"columns of table {table} changed after the job was enqueued: {listed}",
            detail="They were dropped or renamed, or other columns have these names now.",
            hint="Enqueue the job again, which then uses the present columns.",
        )


def _require_same_types(
    described: DescribedRelation, part: str, other: DescribedRelation, chosen: Sequence[str]
) -> None:
    """Refuse the table of a part whose columns differ, with all differences."""
    types = {column.name: column.type for column in other.columns}
    message = differing_columns(
        part, str(other.located), {c.name: c.type for c in described.columns if c.name in chosen}, types
    )
    if message:
        raise DataError(message, detail=f"The training reads {described.located}.", hint=SAME_COLUMNS_HINT)


def require_role_grants(
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


def require_grants(connection: Connection, located: LocatedRelation, columns: Sequence[str]) -> None:
    """Raise PrivilegeError if this session's role may not read the columns of every table that holds rows."""
    role = connection.info.user
    rows = catalog_rows(connection, copyable_relation.GRANTS, str(located.oid), role, json_text(columns))
    _require_complete_grants(connection, role, rows, f"table {located}")


def _require_complete_grants(connection: Connection, role: str, tables: Sequence[Row], subject: str) -> None:
    def quote(name: str) -> str:
        return sql.Identifier(name).as_string(connection)

    missing = missing_grants(tables, role, quote)
    if missing:
        raise PrivilegeError(f"role {role} may not read {subject}", hint=f"Run: {' '.join(missing)}")


_FIRST_BYTES = 256 << 10  # of rows that are handed over: a session waits for the first ones
UNCHECKED_ROW_BYTES = 16 << 20  # rows up to this size are decoded before the memory limit is checked


def _copy_rows(
    connection: Connection,
    described: DescribedRelation,
    parts: Mapping[str, DescribedRelation],
    chosen: Sequence[str],
    unlike_texts: Collection[str],
    limits: ReadLimits,
    on_statistics: StatisticsCallback,
) -> TableData:
    """Copy the rows of every table, one table after another."""
    located, others = described.located, [part.located for part in parts.values()]
    wires = _copied_wires(described, chosen)
    digest = _digest_of_types(described, wires, parts)
    statistics = read_statistics(connection, [oid for each in (located, *others) for oid in each.oids], wires)
    statistics = replace(statistics, test_rows=_test_rows(connection, parts, wires))
    log.info("reading table %s: %d tables of %d bytes on disk", located, len(located.tables), statistics.stored_bytes)
    arriving = ArrivingRows(
        described,
        wires,
        stored=_stored_columns(described, chosen, wires, alone=not parts),
        identity=described.key or sorted(chosen),
        unlike_texts=unlike_texts,
        statistics=statistics,
        limits=limits,
        on_statistics=on_statistics,
    )
    store = arriving.store
    decoder = CopyDecoder(tuple(wires.items()), arriving.add, key=described.key)
    copy_tables(connection, located, decoder.names, decoder, digest.update, arriving.check_row_size)
    sections: dict[str, tuple[int, int]] = {}
    for part, own in zip(parts, others, strict=True):
        store.identify_by(sorted(chosen))  # the table of a part may lack the key, and its rows are not divided
        start, own_decoder = store.rows, decoder.of_columns(chosen)
        with _naming(part, own):
            copy_tables(connection, own, own_decoder.names, own_decoder, digest.update, arriving.check_row_size)
        sections[part] = (start, store.rows)
    require_unchanged(connection, (located, *others))
    arriving.end()
    return TableData(
        columns=store.columns(),
        described=described.columns,
        rows=store.rows,
        row_hash=store.row_hash(),
        digest=digest.hexdigest(),
        storage=store.storage,
        sections=sections,
    )


def _digest_of_types(
    described: DescribedRelation, wires: Mapping[str, CopyEncoding], parts: Iterable[str]
) -> "hashlib._Hash":
    """Return the digest of the rows before the first one: the columns' types, and which parts have own tables."""
    types = {column.name: column.type for column in described.columns}
    return hashlib.sha256(repr([*((name, types[name]) for name in wires), *parts]).encode())


def _test_rows(
    connection: Connection, parts: Mapping[str, DescribedRelation], wires: dict[str, CopyEncoding]
) -> int | None:
    """Return the rows of the table of the test part by its statistics, or None if there is no such table."""
    return read_statistics(connection, parts["test"].located.oids, wires).rows if "test" in parts else None


@contextmanager
def _naming(part: str, located: LocatedRelation) -> Iterator[None]:
    """Add to an error about a row that the row is one of the table of a part."""
    try:
        yield
    except DataError as error:
        error.detail = f"The rows are those of table {located}, of the {part} part. {error.detail}".rstrip()
        raise


def copy_tables(
    connection: Connection,
    located: LocatedRelation,
    names: tuple[str, ...],
    decoder: SegmentStream,
    add_to_digest: Callable[[bytearray], None],
    check_row_size: Callable[[int], None],
    *,
    handed_over: bool = False,
) -> None:
    """Copy these columns of every table, one table after another. A second thread decodes what has arrived.

    A decoder that only hands the rows over to other threads, to be taken as slowly as they like, needs no second
    thread (which costs a tenth of the processor time) and has no time limit.
    """
    connection.execute(statement("set_no_copy_timeout" if handed_over else "set_copy_timeout"))
    columns = sql.SQL(", ").join(map(sql.Identifier, names))
    copy_statement = sql.SQL(statement("copy_table"))
    copies = [copy_statement.format(table=quoted(table), columns=columns) for table in located.tables]

    def take(block: bytearray) -> None:
        add_to_digest(block)
        decoder.feed(block)

    for copying in [each.as_bytes(connection) for each in copies]:
        decoder.begin()
        with unchecked_texts(connection), connection.cursor() as cursor, cursor.copy(copying) as copy:
            arriving = blocks(
                copy,
                connection,
                block_bytes=BLOCK_BYTES,
                large_bytes=UNCHECKED_ROW_BYTES,
                check_size=check_row_size,
                first_bytes=_FIRST_BYTES if handed_over else None,
            )
            if handed_over:
                for block in arriving:
                    take(block)
            else:
                with BackgroundFeed(take) as feed:
                    for block in arriving:
                        feed.put(block)
        decoder.end()


def _stored_columns(
    described: DescribedRelation, chosen: Sequence[str], wires: Mapping[str, CopyEncoding], *, alone: bool
) -> Sequence[str]:
    """Return the columns to keep: with images the key too, by which errors name the row of a broken image."""
    pictured = any(wires[name].kind is ColumnKind.IMAGE for name in chosen)
    return tuple(dict.fromkeys((*chosen, *described.key))) if pictured and alone else chosen


_KEYS_AS_TEXT = (ColumnKind.CLOCK, ColumnKind.DURATION, ColumnKind.IMAGE)


def _copied_wires(described: DescribedRelation, chosen: Sequence[str]) -> dict[str, CopyEncoding]:
    """Return the encodings of the chosen columns and of the key, fixed widths first so that runs are long.

    A time or bytea in the key identifies a row by its text, as in 0.1.0, unless models learn from it.
    """
    names = tuple(dict.fromkeys((*chosen, *described.key)))
    wires = {name: described.wires[name] for name in names}
    for name in described.key:
        if name not in chosen and wires[name].kind in _KEYS_AS_TEXT:
            wires[name] = described.key_wires[name]
    return dict(sorted(wires.items(), key=lambda item: not item[1].item))
