"""Finds and drops snapshot tables. Callers of tensile_train create them from relations that a trainer cannot read."""

from indb_tensile.catalog.connection import Connection
from indb_tensile.catalog.queries import query
from indb_tensile.errors import MissingError
from indb_tensile.job import JobId, Relation, Snapshot

_MOST_DROPPED = 20  # tables that one statement drops, so that it takes only milliseconds


def find_snapshot(connection: Connection, job: JobId) -> Snapshot | None:
    """Return the job's snapshot, or None if the trainer reads the relation itself.

    Raises MissingError if the snapshot's table does not exist.
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
    return Snapshot(
        relation=Relation(oid=oid, schema=schema, name=name),
        columns=tuple(columns),
        key=tuple(key),
        rows=rows,
        valid_rows=valid_rows,
        test_rows=test_rows,
    )


def drop_ended(connection: Connection, most: int = _MOST_DROPPED) -> int:
    """Drop at most `most` snapshots of ended or deleted jobs. Returns how many. Locked ones stay for a later call."""
    row = connection.execute(query("drop_snapshots"), {"most": most}).fetchone()
    return int(row[0]) if row else 0
