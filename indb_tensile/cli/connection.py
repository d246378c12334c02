"""Which database a command talks to: `--dsn`, else libpq's own variables, else the embedded cluster."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from indb_tensile.catalog import install
from indb_tensile.catalog.connection import Connection, Session, connect
from indb_tensile.cli.place import Place, find_place
from indb_tensile.errors import DatabaseError

ORDINARY_ROLE = "demo"
_NAMES_A_DATABASE = ("PGHOST", "PGHOSTADDR", "PGPORT", "PGDATABASE", "PGUSER", "PGSERVICE")
# What a statement of ours ends with where the catalog is missing, older or newer, or not for this role.
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
    """A connection in autocommit mode to the database that `resolve` names, with the session's own search_path.

    Statements of ours run within `pinned`. Those that resolve what the user wrote do not: they qualify every name.
    What a statement of ours misses in the database is raised as what is wrong with the catalog.
    """
    with connect(resolve(dsn, role=role), application_name="tensile", callers_path=True) as connection:
        try:
            yield connection
        except _UNEXPECTED:
            install.check_version(connection)
            raise


@contextmanager
def open_session(dsn: str | None, *, patience_s: float = 60.0) -> Iterator[Session]:
    """The same for commands that look again and again: it outlives a restart of the database."""
    with Session(resolve(dsn), application_name="tensile", patience_s=patience_s, callers_path=True) as session:
        try:
            yield session
        except _UNEXPECTED:
            session.run(install.check_version)
            raise


def resolve(dsn: str | None, *, role: str = ORDINARY_ROLE) -> str:
    """The connection string to use; `role` is who one is on the embedded cluster.

    Raises DatabaseError where no database is named and no embedded one was created.
    """
    named = named_database(dsn)
    return embedded_place().cluster().dsn(user=role) if named is None else named


def named_database(dsn: str | None) -> str | None:
    """The connection string that was named; empty for libpq's variables, None for the embedded cluster."""
    if dsn is not None:
        return dsn
    if os.environ.get("TENSILE_DSN"):
        return os.environ["TENSILE_DSN"]
    return "" if naming_variables() else None


def naming_variables() -> tuple[str, ...]:
    """Which of libpq's variables that are set name a database."""
    return tuple(name for name in _NAMES_A_DATABASE if os.environ.get(name))


def embedded_place() -> Place:
    """Where the embedded cluster is. Raises DatabaseError where none is, PrivilegeError where it is another's."""
    place = find_place(os.environ)
    place.check_owner()
    if not place.has_cluster():
        raise DatabaseError(
            "no database is named, and there is no embedded one yet",
            hint="run tensile up for an embedded one, or name yours with --dsn or libpq's PGHOST, PGDATABASE, …",
        )
    return place
