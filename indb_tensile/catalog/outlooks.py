"""Stores what the jobs on a worker's device still need, from which `tensile_explain` foretells."""

import msgspec
from psycopg.types.json import Jsonb

from indb_tensile.catalog.connection import Connection
from indb_tensile.catalog.queries import query
from indb_tensile.job import WorkerId
from indb_tensile.scheduler.admission.outlook import Outlook


def record_outlook(connection: Connection, worker: WorkerId, outlook: Outlook) -> None:
    """Replace the stored outlook of the worker's device."""
    values = {"worker": worker, "outlook": Jsonb(msgspec.to_builtins(outlook))}
    connection.execute(query("record_outlook"), values)


def load_outlook(connection: Connection, host: str) -> Outlook | None:
    """Return the outlook of the newest live worker of this host, or None if there is none that can be read."""
    row = connection.execute(query("load_outlook"), {"host": host}).fetchone()
    try:
        return None if row is None else msgspec.convert(row[0], type=Outlook)
    except msgspec.ValidationError:  # of a controller of another version
        return None
