"""Chooses the database of a program whose user names none.

That is the database of TENSILE_DSN, else of libpq's variables, else the embedded cluster of `tensile up`.
"""

import os

from indb_tensile.errors import DatabaseError
from indb_tensile.state_directory import StateDirectory, find_state_directory

ORDINARY_ROLE = "demo"
_CHOOSES_A_CONNECTION = ("PGHOST", "PGHOSTADDR", "PGPORT", "PGDATABASE", "PGUSER", "PGSERVICE")


def resolve(dsn: str | None, *, role: str = ORDINARY_ROLE) -> str:
    """Return the connection string to use. On the embedded cluster, the connection has the role `role`.

    Raises DatabaseError if no database is named and there is no embedded cluster.
    """
    named = named_database(dsn)
    return embedded_state_directory().cluster().dsn(user=role) if named is None else named


def named_database(dsn: str | None) -> str | None:
    """Return the named connection string: "" for libpq's variables, None for the embedded cluster."""
    if dsn is not None:
        return dsn
    if os.environ.get("TENSILE_DSN"):
        return os.environ["TENSILE_DSN"]
    return "" if naming_variables() else None


def naming_variables() -> tuple[str, ...]:
    """Return those of libpq's variables that are set and that choose a connection."""
    return tuple(name for name in _CHOOSES_A_CONNECTION if os.environ.get(name))


def embedded_state_directory() -> StateDirectory:
    """Return the state directory of the embedded cluster.

    Raises DatabaseError if there is no embedded cluster, PrivilegeError if it belongs to another user.
    """
    place = find_state_directory(os.environ)
    place.check_owner()
    if not place.has_cluster():
        raise DatabaseError(
            "no database is named, and there is no embedded one yet",
            hint="run tensile up for an embedded one, or name yours with --dsn or libpq's PGHOST, PGDATABASE, ...",
        )
    return place
