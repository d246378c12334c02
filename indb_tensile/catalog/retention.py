"""Removes what the `retain_…` settings say is old, a step at a time."""

from indb_tensile.catalog.connection import Connection
from indb_tensile.catalog.queries import query

KINDS = ("events", "plans", "metrics", "jobs", "workers", "links", "versions")


def vacuum_step(connection: Connection, most: int) -> dict[str, int]:
    """Remove at most so many rows; how many of each kind went, empty when nothing is left to remove."""
    return dict(connection.execute(query("vacuum_step"), {"most": most}).fetchall())
