"""Makes SQLAlchemy engines whose connections follow the same rules as our psycopg connections.

An engine gets its connections from `catalog.connection.connect`: the same connection string, defaults, timeouts,
application_name and errors. It adds a small pool, and it pins search_path in every transaction rather than in the
session, so that it also works through PgBouncer in transaction mode.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError

from indb_tensile.catalog.connection import connect
from indb_tensile.catalog.queries import query
from indb_tensile.request.json_text import json_text

# A command lists with one connection. The second one lets a program read in two threads, and keeps a program with a
# pool of its own from taking many of the server's max_connections.
_POOL_CONNECTIONS = 2
_POOL_TIMEOUT_S = 10.0  # as long as a new connection may take: see connect_timeout in catalog/connection.py


def catalog_engine(dsn: str = "", *, application_name: str, read_only: bool = True) -> Engine:
    """Return an engine for the catalog at `dsn`; an empty dsn means libpq's own defaults and PG* variables.

    Connections are opened when they are needed, at most two at a time, and are tested before they are used again.
    With `read_only`, PostgreSQL refuses every write. Use `transaction` to run statements. Dispose of the engine to
    close its connections.
    """

    def open_connection() -> psycopg.Connection:
        connection = connect(dsn, application_name=application_name, callers_path=True)
        try:
            connection.read_only = read_only
            connection.autocommit = False
            # SQLAlchemy's own first statements, which ask for the server's version and settings, run in the
            # transaction that this statement begins, and so find no function of another role.
            connection.execute(query("pin_transaction"))
        except BaseException:
            connection.close()
            raise
        return connection

    engine = create_engine(
        "postgresql+psycopg://",
        creator=open_connection,
        pool_size=_POOL_CONNECTIONS,
        max_overflow=0,
        pool_timeout=_POOL_TIMEOUT_S,
        pool_pre_ping=True,
        hide_parameters=True,  # values of users' filters do not belong in errors and logs
        json_serializer=json_text,
        use_native_hstore=False,  # saves a query on each engine: the catalog has no hstore
    )
    event.listen(engine, "begin", _pin)
    return engine


@contextmanager
def transaction(engine: Engine) -> Iterator[Connection]:
    """Run one transaction with search_path pinned.

    A failed statement raises psycopg's own exception, not SQLAlchemy's, so that callers handle the errors of all
    connections alike. UnreachableError and RequestError come from `catalog.connection.connect`.
    """
    try:
        with engine.begin() as connection:
            yield connection
    except DBAPIError as error:
        if error.orig is None:
            raise
        raise error.orig from None


def _pin(connection: Connection) -> None:
    connection.exec_driver_sql(query("pin_transaction"))
