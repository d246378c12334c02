"""Finds and drops snapshot tables: copies of the rows of relations that a trainer cannot read.

tensile_train creates such a copy with the rights of its caller, and the trainer reads the copy. These tables have
nothing to do with the snapshots of transactions.
"""

from indb_tensile.catalog.connection import Connection
from indb_tensile.catalog.queries import query
from indb_tensile.errors import MissingError
from indb_tensile.job import JobId, Relation, SnapshotTable

_MOST_DROPPED = 20  # most tables that one statement drops, so that it takes only milliseconds


def find_snapshot(connection: Connection, job: JobId) -> SnapshotTable | None:
    """Return the job's snapshot table, or None if the trainer reads the relation itself.

    Raises MissingError if the table does not exist.
    """
    row = connection.execute(query("find_snapshot"), {"job": job}).fetchone()
    if row is None:
        return None
    oid, schema, name, columns, key, rows, valid_rows, test_rows = row
    if oid is None:
        raise MissingError(
            f"the snapshot of job {job} is gone: there is no table {schema}.{name}",
            detail="A database restored without schema tensile_data has no snapshots.",
            hint="Call tensile_train again.",
        )
    return SnapshotTable(
        relation=Relation(oid=oid, schema=schema, name=name),
        columns=tuple(columns),
        key=tuple(key),
        rows=rows,
        valid_rows=valid_rows,
        test_rows=test_rows,
    )


def drop_ended(connection: Connection, most: int = _MOST_DROPPED) -> int:
    """Drop at most `most` snapshot tables of ended or deleted jobs, and return how many were dropped.

    The table of a deleted job is recognised by its name. Locked tables stay for a later call.
    """
    row = connection.execute(query("drop_snapshots"), {"most": most}).fetchone()
    return int(row[0]) if row else 0
