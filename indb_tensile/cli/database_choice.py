"""Connects a command to its database.

That is the database of `--dsn`, else of TENSILE_DSN, else of libpq's variables, else the embedded cluster.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import psycopg

from indb_tensile.catalog import install
from indb_tensile.catalog.connection import Connection, Session, connect
from indb_tensile.cli.state_directory import StateDirectory, find_state_directory
from indb_tensile.errors import DatabaseError

if TYPE_CHECKING:
    from sqlalchemy import Engine

ORDINARY_ROLE = "demo"
_APPLICATION = "tensile"
_CHOOSES_A_CONNECTION = ("PGHOST", "PGHOSTADDR", "PGPORT", "PGDATABASE", "PGUSER", "PGSERVICE")
# The errors of our statements if the catalog is missing, has another version, or is not accessible to this role.
_UNEXPECTED = (
    psycopg.errors.UndefinedFunction,
    psycopg.errors.UndefinedTable,
    psycopg.errors.UndefinedColumn,
    psycopg.errors.UndefinedObject,
    psycopg.errors.InvalidSchemaName,
    psycopg.errors.InsufficientPrivilege,
)


@contextmanager
def open_connection(dsn: str | None, *, role: str = ORDINARY_ROLE) -> Iterator[Connection]:
    """Open a connection in autocommit mode to the database that `resolve` returns, with the user's search_path.

    Our own statements run within `pinned` (catalog/connection.py). Statements that resolve names written by the user
    do not; they qualify all other names. If a statement fails because of a missing object or privilege, and the
    catalog is missing or has another version, the error says so.
    """
    with connect(resolve(dsn, role=role), application_name=_APPLICATION, callers_path=True) as connection:
        try:
            yield connection
        except _UNEXPECTED:
            install.check_version(connection)
            raise


@contextmanager
def open_engine(dsn: str | None) -> "Iterator[Engine]":
    """Open an SQLAlchemy engine that only reads, for listings, on the database that `open_connection` uses.

    A missing object or privilege is reported as `open_connection` does.
    """
    from indb_tensile.catalog.sqlalchemy.engine import catalog_engine  # slow to import: see `catalog/sqlalchemy`

    database = resolve(dsn)
    engine = catalog_engine(database, application_name=_APPLICATION)
    try:
        yield engine
    except _UNEXPECTED:
        with connect(database, application_name=_APPLICATION, callers_path=True) as connection:
            install.check_version(connection)
        raise
    finally:
        engine.dispose()


@contextmanager
def open_session(dsn: str | None, *, patience_s: float = 60.0) -> Iterator[Session]:
    """Open a session for commands that poll, as `open_connection` does.

    The session survives a restart of the database.
    """
    with Session(resolve(dsn), application_name=_APPLICATION, patience_s=patience_s, callers_path=True) as session:
        try:
            yield session
        except _UNEXPECTED:
            session.run(install.check_version)
            raise


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
            hint="run tensile up for an embedded one, or name yours with --dsn or libpq's PGHOST, PGDATABASE, …",
        )
    return place
