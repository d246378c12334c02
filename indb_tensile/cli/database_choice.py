"""Connects a command to its database.

A command uses the database of `--dsn`, else of TENSILE_DSN, else of libpq's variables, else the embedded cluster.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import psycopg

from indb_tensile.catalog import install
from indb_tensile.catalog.connection import Connection, Session, connect
from indb_tensile.default_database import ORDINARY_ROLE, resolve

if TYPE_CHECKING:
    from sqlalchemy import Engine

_APPLICATION = "tensile"
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
    run outside and qualify all other names. If a statement fails because of a missing object or privilege, and the
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
def open_session(dsn: str | None, *, retry_s: float = 60.0) -> Iterator[Session]:
    """Open a session for commands that poll, as `open_connection` does.

    The session survives a restart of the database.
    """
    with Session(resolve(dsn), application_name=_APPLICATION, retry_s=retry_s, callers_path=True) as session:
        try:
            yield session
        except _UNEXPECTED:
            session.run(install.check_version)
            raise
