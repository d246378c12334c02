"""Deletes rows that are older than the `retain_...` settings allow, and thins out history, in small steps."""

from indb_tensile.catalog.connection import Connection
from indb_tensile.catalog.queries import query

KINDS = ("events", "plans", "metrics", "jobs", "workers", "links", "versions", "usage")


def vacuum_step(connection: Connection, most: int) -> dict[str, int]:
    """Delete at most `most` old rows. Returns how many of each kind were deleted; empty if no old rows are left."""
    return dict(connection.execute(query("vacuum_step"), {"most": most}).fetchall())


def thin_samples(connection: Connection, most: int) -> int:
    """Delete at most `most` old rows of the devices' history. Returns how many were deleted."""
    row = connection.execute(query("thin_samples"), {"most": most}).fetchone()
    return int(row[0]) if row else 0
