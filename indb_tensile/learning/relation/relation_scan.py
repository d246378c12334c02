"""Streams the rows of a relation, block by block, to what predicts them: nothing of a block is kept after it.

The relation is read as `relation_reader.py` reads one for a training: as the role `tensile_reader`, by COPY of each
table that holds rows, in one snapshot.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from indb_tensile.errors import DataError, MissingError
from indb_tensile.job import Relation
from indb_tensile.learning.decoding.copybinary import SegmentSink, SegmentStream
from indb_tensile.learning.relation.locked_relation import (
    Connection,
    DescribedRelation,
    ReadLimits,
    refuse_unreadable,
    require_unchanged,
    with_locked_relations,
)
from indb_tensile.learning.relation.relation_reader import (
    copy_tables,
    require_grants,
    require_role_grants,
    require_wires,
)
from indb_tensile.learning.relation.relationsql import read_statistics
from indb_tensile.learning.storage.columns import CopyEncoding
from indb_tensile.request import copyable_relation
from indb_tensile.sizes import size

MOST_ROW_BYTES = 32 << 20  # equal to the largest row that tensile_predict_table sends to the service


@dataclass(frozen=True, slots=True, kw_only=True)
class ScannedColumns:
    """The columns of a scan: the features come first in each row, then those keys that are no features.

    `numbers` has PostgreSQL's number of columns that must not have been replaced, and `types` the types that columns
    must have; columns that the two do not name are not checked.
    """

    features: tuple[str, ...]
    keys: tuple[str, ...]
    numbers: Mapping[str, int]
    types: Mapping[str, str]

    @property
    def names(self) -> tuple[str, ...]:
        """Return all columns in the order of their fields."""
        return tuple(dict.fromkeys((*self.features, *self.keys)))

    @property
    def key_fields(self) -> tuple[int, ...]:
        """Return the places of the keys among the fields of a row."""
        return tuple(self.names.index(key) for key in self.keys)


Begin = Callable[[tuple[tuple[str, CopyEncoding], ...], int | None], SegmentSink]


def scan(
    connection: Connection,
    relation: Relation,
    columns: ScannedColumns,
    begin: Begin,
    *,
    role_oid: int | None,
    primary_key: Sequence[str] | None = None,
    limits: ReadLimits | None = None,
) -> None:
    """Read all rows of the relation, and give the segments of each block to a sink, on a second thread.

    `begin` gets the encodings of the features and the expected number of rows (None if PostgreSQL has no statistics),
    and returns the sink. It is called again if the relation was changed while it was read: then all rows come again.
    `role_oid` is a role that must have the right to select the columns, besides the role of `connection`. The other
    arguments and the errors are those of `relation_reader.read`. If `limits` names a snapshot, the session that has
    exported it has locked the relation, so the relation does not change.
    """
    limits = limits or ReadLimits()
    shared = limits.snapshot is not None

    def copied(relations: tuple[DescribedRelation, ...]) -> None:
        (described,) = relations
        _require_same_columns(described, columns)
        require_wires(described, columns.names)
        refuse_unreadable(copyable_relation.counting(described.reasons, columns.names))
        if role_oid is not None:
            require_role_grants(connection, described.located, role_oid, columns.names)
        require_grants(connection, described.located, columns.names)
        if shared:  # the relation may have been rewritten between the snapshot and the lock
            require_unchanged(connection, (described.located,))
        wires = {name: described.wires[name] for name in columns.names}
        statistics = read_statistics(connection, described.located.oids, wires)
        sink = begin(
            tuple((name, wires[name]) for name in columns.features), statistics.rows if statistics.analyzed else None
        )
        stream = SegmentStream(len(columns.names), sink, block_bytes=1)  # the blocks have a good size already
        copy_tables(
            connection, described.located, columns.names, stream, lambda _: None, _check_row_size, handed_over=shared
        )
        require_unchanged(connection, (described.located,))

    with_locked_relations(connection, (relation,), limits, copied, primary_key)


def _check_row_size(row_bytes: int) -> None:
    if row_bytes > MOST_ROW_BYTES:
        raise DataError(
            f"a row has {size(row_bytes)}, more than the {size(MOST_ROW_BYTES)} that a row to predict may have",
            hint="Name a view whose arrays have fewer values.",
        )


def _require_same_columns(described: DescribedRelation, columns: ScannedColumns) -> None:
    """Refuse a table whose columns were dropped, replaced or changed after the job was enqueued."""
    present = {column.name: column for column in described.columns}
    changed = [
        name
        for name in columns.names
        if name not in present
        or columns.numbers.get(name, present[name].number) != present[name].number
        or columns.types.get(name, present[name].type) != present[name].type
    ]
    if changed:
        listed = ", ".join(f'"{name}"' for name in changed)
        raise MissingError(
            f"columns of table {described.located} changed after the job was enqueued: {listed}",
            detail="They were dropped or renamed, have another type, or other columns have these names now.",
            hint="Call tensile_predict_into again to predict from the present columns.",
        )
