"""Detects a connection pooler that shares server sessions among its clients.

A controller and its trainers need sessions of their own: they listen, prepare statements and set session settings.
Behind PgBouncer in transaction or statement mode every job would fail, with errors that do not name the cause. A
pooler in session mode works like the server itself.

The protocol does not tell a pooler from a server, so this module tests for its effect. A setting that one client has
made must be present in that client's next statement, and must never be visible to another client. If the pool has one
idle session, the second client gets the session of the first. If the pool has several, a client soon gets a session
without its setting. The two clients take turns and hold no transaction open, so a pool with a single session does not
block them.
"""

import uuid

import psycopg

from indb_tensile.catalog.connection import Connection, UnreachableError, connect
from indb_tensile.catalog.queries import query
from indb_tensile.errors import DatabaseError

_ROUNDS = 8


def refuse_pooled_sessions(dsn: str) -> None:
    """Raise DatabaseError if the dsn leads to a pooler that shares sessions. The hint says what to do.

    Raises UnreachableError if the server does not answer or goes away.
    """
    with (
        connect(dsn, application_name="tensile probe") as first,
        connect(dsn, application_name="tensile probe") as second,
    ):
        refuse_shared_sessions(first, second)


def refuse_shared_sessions(first: Connection, second: Connection) -> None:
    """Raise the errors of `refuse_pooled_sessions` for two connections to the same database."""
    address = _address(first)  # a lost connection has none
    try:
        shared = any(_shared(first, second) for _ in range(_ROUNDS))
    except psycopg.errors.InvalidSqlStatementName:
        shared = True  # the session holds another client's prepared statements
    except psycopg.OperationalError as error:
        if not (first.broken or second.broken):
            raise
        raise UnreachableError(
            f"{address} has closed a new connection: {str(error).strip()}", hint="See the server's log."
        ) from error
    if shared:
        raise DatabaseError(
            f"the sessions of {address} are shared: a pooler runs each transaction in another session",
            detail="A setting that one connection made was lost, or seen by another connection.",
            hint="Give controllers a dsn (TENSILE_DSN) that names the server itself, or a PgBouncer database "
            "with pool_mode = session. Clients may go through any pooler.",
        )


def _shared(first: Connection, second: Connection) -> bool:
    """Return whether either client loses its own setting or sees the other client's setting."""
    for client, observer in ((first, second), (second, first)):
        before = _probe(observer)
        mark = uuid.uuid4().hex
        client.execute(query("set_probe"), {"mark": mark}, prepare=False)
        if _probe(observer) != before or _probe(client) != mark:
            return True
    return False


def _probe(client: Connection) -> str:
    row = client.execute(query("probe"), prepare=False).fetchone()
    assert row is not None
    return str(row[0])


def _address(connection: Connection) -> str:
    info = connection.info
    return f'database "{info.dbname}" at host "{info.host}", port {info.port}'
