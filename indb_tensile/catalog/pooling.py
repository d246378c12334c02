"""Tells a server from a pooler that gives each transaction another of the server's sessions.

A controller and its trainers need sessions of their own: they listen, prepare statements and set session settings.
Behind PgBouncer in transaction or statement mode every job would fail, with errors that do not name the cause. A
pooler in session mode is as good as the server.

Nothing in the protocol tells a pooler apart, so its effect is looked for: a setting that one client made must be
there in that client's next statement, and must never be seen by another client. With one idle session in the pool
the second client gets the session of the first; with several, a client soon gets one in which it has set nothing.
The two clients take turns and hold no transaction open, so a pool of a single session does not block them.
"""

import uuid

import psycopg

from indb_tensile.catalog.connection import Connection, connect
from indb_tensile.catalog.queries import query
from indb_tensile.errors import DatabaseError

_ROUNDS = 8


def refuse_pooled_sessions(dsn: str) -> None:
    """Raise DatabaseError, with the way out, where the dsn leads to a pooler that shares sessions."""
    with (
        connect(dsn, application_name="tensile probe") as one,
        connect(dsn, application_name="tensile probe") as other,
    ):
        try:
            shared = any(_shared(one, other) for _ in range(_ROUNDS))
        except psycopg.errors.InvalidSqlStatementName:
            shared = True  # somebody else's prepared statements are in the way
        if shared:
            raise DatabaseError(
                f"the sessions of {_place(one)} are shared: a pooler gives each transaction another of the server's",
                detail="A setting that one connection made was lost, or seen by another connection.",
                hint="Give controllers a dsn (TENSILE_DSN) that names the server itself, or a PgBouncer database "
                "with pool_mode = session. Clients may go through any pooler.",
            )


def _shared(one: Connection, other: Connection) -> bool:
    """Whether either client loses what it set, or sees what the other set."""
    for client, bystander in ((one, other), (other, one)):
        before = _probe(bystander)
        mark = uuid.uuid4().hex
        client.execute(query("set_probe"), {"mark": mark}, prepare=False)
        if _probe(bystander) != before or _probe(client) != mark:
            return True
    return False


def _probe(client: Connection) -> str:
    row = client.execute(query("probe"), prepare=False).fetchone()
    assert row is not None
    return str(row[0])


def _place(connection: Connection) -> str:
    info = connection.info
    return f'database "{info.dbname}" at host "{info.host}", port {info.port}'
