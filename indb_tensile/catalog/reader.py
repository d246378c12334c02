"""The connection that a trainer reads users' tables on: one of the role `tensile_reader`, for one read.

The role has no right in the catalog and is a member of nothing. Where a table's owner should after all find a way to
run code in that session, the code finds nothing there, and the session ends with the read.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from indb_tensile.catalog.connection import Connection, UnreachableError, connect
from indb_tensile.config import Settings, variable
from indb_tensile.errors import DatabaseError, RequestError

READER = "tensile_reader"
HINT = (
    f"Trainers read tables as the role {READER}, which must be able to log in where the worker does: by a line for "
    "it in pg_hba.conf; with peer authentication also by one in pg_ident.conf; with a password in ~/.pgpass or in "
    f"{variable('reader_dsn')}. The password in {variable('dsn')} is the worker's and is not used."
)
# Only these words tell a refusal from a server that is down: libpq gives no SQLSTATE for a failed connection.
_REFUSALS = ("authentication failed", "pg_hba.conf", "no password supplied", "is not permitted to log in", "role ")


def reader_dsn(settings: Settings) -> str:
    """The setting, or the worker's connection string with the reader's name and without the worker's password."""
    if settings.reader_dsn:
        return settings.reader_dsn
    return as_reader(settings.dsn)


def as_reader(dsn: str) -> str:
    """A connection string with the reader's name in it. Raises RequestError where it cannot be read."""
    try:
        parts: dict[str, Any] = conninfo_to_dict(dsn)
    except psycopg.ProgrammingError as error:
        raise RequestError(
            f"the connection string cannot be read: {error}",
            hint='Write it as "host=… dbname=… user=…" or as postgresql://user@host/dbname.',
        ) from error
    parts.pop("password", None)
    return make_conninfo(**parts | {"user": READER})


@contextmanager
def open_reader(dsn: str, *, application_name: str) -> Iterator[Connection]:
    """A connection for one read, closed afterwards.

    Raises UnreachableError where the server is away, and another DatabaseError where it does not let the role in.
    """
    try:
        connection = connect(dsn, application_name=application_name)
    except UnreachableError as error:
        if any(words in error.message for words in _REFUSALS):
            raise DatabaseError(error.message, hint=HINT) from error
        raise
    with connection:
        yield connection
