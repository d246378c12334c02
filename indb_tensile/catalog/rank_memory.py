"""Stores how much of a device's memory the connection between the devices of a job takes outside every plan."""

from indb_tensile.catalog.connection import Connection
from indb_tensile.catalog.queries import query


def load_memory(connection: Connection, device_kind: str, ranks: int) -> int | None:
    """Load the bytes on each of so many devices of this kind; None if they were not measured."""
    row = connection.execute(query("load_rank_memory"), {"device_kind": device_kind, "ranks": ranks}).fetchone()
    return None if row is None else int(row[0])


def save_memory(connection: Connection, device_kind: str, ranks: int, memory_bytes: int) -> None:
    """Store a measurement. The largest of a day counts."""
    values = {"device_kind": device_kind, "ranks": ranks, "memory_bytes": memory_bytes}
    connection.execute(query("save_rank_memory"), values)
