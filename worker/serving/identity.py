"""Which database a service answers for: every request names its own database, and any other one is refused.

`installation` is tensile.installation(), from the cluster's system identifier and the database's oid. A copy of the
whole data directory has the same one; it runs under another server process, so `server_start`, the microsecond at
which that process started, tells the two apart. Where the database was restarted, `server_start` is read anew.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from uuid import UUID

from indb_tensile.catalog.connection import Connection
from indb_tensile.catalog.queries import query
from indb_tensile.errors import DatabaseError, UnavailableError
from indb_tensile.job import WorkerId

_DIGITS = 12  # of the installation's id in the socket's name: the path has 107 bytes, and the greeting has it all


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseIdentity:
    """One database of one running server."""

    installation: str
    server_start: str


def read_identity(connection: Connection) -> DatabaseIdentity:
    """The database at the other end of this connection."""
    row = connection.execute(query("database_identity")).fetchone()
    if row is None:
        raise DatabaseError("the database does not say who it is")
    return DatabaseIdentity(installation=row[0], server_start=row[1])


def socket_name(installation: str, worker: WorkerId) -> str:
    """The name of a worker's socket: no other database, and no other worker of this one, has it."""
    return f"{UUID(installation).hex[:_DIGITS]}-{worker}"


class Gate:
    """Admits requests of one database. `read` asks the database again who it is."""

    def __init__(self, own: DatabaseIdentity, read: Callable[[], Awaitable[DatabaseIdentity]]) -> None:
        self._own = own
        self._read = read
        self._reading = asyncio.Lock()

    @property
    def installation(self) -> str:
        """The database that is answered."""
        return self._own.installation

    async def check(self, asks: DatabaseIdentity) -> None:
        """Raises UnavailableError where another database than our own asks."""
        if asks == self._own:
            return
        if asks.installation == self._own.installation:
            async with self._reading:
                if asks != self._own:
                    self._own = await self._read()
        if asks != self._own:
            raise _foreign(asks, self._own)


def _foreign(asks: DatabaseIdentity, own: DatabaseIdentity) -> UnavailableError:
    if asks.installation == own.installation:
        detail = "Both have the same installation id, and their servers started at different times: one is a copy."
    else:
        detail = f"It answers for installation {own.installation}; installation {asks.installation or 'none'} asks."
    return UnavailableError(
        "the service that was asked belongs to another database",
        detail=detail,
        hint="Start a controller for this database. Where two servers share a socket directory, give each its own: "
        "select tensile_set_setting('socket_directory', '\"/run/tensile\"').",
    )
