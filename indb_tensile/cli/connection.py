"""Which database a command talks to: `--dsn`, else libpq's own variables, else the embedded cluster."""

import os

import psycopg

from indb_tensile.catalog.connection import connect
from indb_tensile.cli.place import find_place
from indb_tensile.errors import DatabaseError

_LIBPQ = ("PGHOST", "PGHOSTADDR", "PGPORT", "PGDATABASE", "PGUSER", "PGSERVICE", "PGSERVICEFILE")
ORDINARY_ROLE = "demo"


def resolve(dsn: str | None, *, role: str = ORDINARY_ROLE) -> str:
    """The connection string to use; `role` is who one is on the embedded cluster.

    Raises DatabaseError where no database is named and no embedded one was created.
    """
    if dsn is not None:
        return dsn
    if os.environ.get("TENSILE_DSN"):
        return os.environ["TENSILE_DSN"]
    if any(os.environ.get(name) for name in _LIBPQ):
        return ""
    place = find_place(dict(os.environ))
    if not place.has_cluster():
        raise DatabaseError(
            "no database is named, and there is no embedded one yet",
            hint="run tensile up for an embedded one, or name yours with --dsn or libpq's PGHOST, PGDATABASE, …",
        )
    return place.cluster().dsn(user=role)


def open_connection(dsn: str | None, *, role: str = ORDINARY_ROLE) -> psycopg.Connection:
    """A connection in autocommit mode to the database that `resolve` names."""
    return connect(resolve(dsn, role=role), application_name="tensile")
