"""Opens the connections on which trainers read users' tables, as the role `tensile_reader`, one for each read.

The role has no privilege in the catalog and is a member of no role. If a table's owner still finds a way to run code
in such a session, the code has no privileges to use, and the session ends with the read.
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
_FULL = "too many connections for role"
_FULL_HINT = (
    f"Let the role have more connections, one for each job that reads: alter role {READER} connection limit -1;"
)
# Only the wording tells a refusal from a server that is down: libpq gives no SQLSTATE for a failed connection.
_REFUSALS = ("authentication failed", "pg_hba.conf", "no password supplied", "is not permitted to log in", "role ")


def reader_dsn(settings: Settings) -> str:
    """Return the setting reader_dsn, or else the worker's connection string changed by `as_reader`."""
    if settings.reader_dsn:
        return settings.reader_dsn
    return as_reader(settings.dsn)


def as_reader(dsn: str) -> str:
    """Change a connection string to the reader's role, without the password. Raises RequestError if it is invalid."""
    try:
        parts: dict[str, Any] = conninfo_to_dict(dsn)
    except psycopg.ProgrammingError as error:
        raise RequestError(
            f"the connection string cannot be read: {error}",
            hint='Write it as "host=... dbname=... user=..." or as postgresql://user@host/dbname.',
        ) from error
    without_password: dict[str, Any] = {name: value for name, value in parts.items() if name != "password"}
    return make_conninfo(**without_password | {"user": READER})


@contextmanager
def open_reader(dsn: str, *, application_name: str) -> Iterator[Connection]:
    """Open a connection for one read, and close it afterwards.

    Raises UnreachableError if the server does not answer, and another DatabaseError if it refuses the role's login.
    """
    try:
        connection = connect(dsn, application_name=application_name)
    except UnreachableError as error:
        if _FULL in error.message:
            raise DatabaseError(error.message, hint=_FULL_HINT) from error
        if any(words in error.message for words in _REFUSALS):
            raise DatabaseError(error.message, hint=HINT) from error
        raise
    with connection:
        yield connection
