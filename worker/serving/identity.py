"""Identifies the database that a service answers: every request names its database, and any other one is refused.

`installation` is tensile.installation(), derived from the cluster's system identifier and the database's oid. A copy
of the whole data directory has the same value. The copy runs under another server process, so `server_start`, the
microsecond at which that process started, distinguishes the two. After a restart of the database, `server_start` is
read again.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from uuid import UUID

from indb_tensile.catalog import jobs
from indb_tensile.catalog.connection import Connection
from indb_tensile.errors import UnavailableError
from indb_tensile.job import WorkerId

_DIGITS = 12  # digits of the installation's id in the socket's name: a path has at most 107 bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseIdentity:
    """One database of one running server."""

    installation: str
    server_start: str


def read_identity(connection: Connection) -> DatabaseIdentity:
    """Read the identity of the database at the other end of this connection."""
    installation, server_start = jobs.database_identity(connection)
    return DatabaseIdentity(installation=installation, server_start=server_start)


def socket_name(installation: str, worker: WorkerId) -> str:
    """Return the name of a worker's socket. It differs for every database and worker."""
    return f"{UUID(installation).hex[:_DIGITS]}-{worker}"


def standby_socket_name(installation: str, port: int) -> str:
    """Return the name of the socket of a service that only reads. Nothing can be announced in a standby's catalog, so
    its sessions compute the name too (sql_api/service_connection.py). The port tells standbys of one host apart.
    """
    return f"{UUID(installation).hex[:_DIGITS]}-standby-{port}"


class IdentityCheck:
    """Admits requests of one database. `read` reads the identity of that database again."""

    def __init__(self, identity: DatabaseIdentity, read: Callable[[], Awaitable[DatabaseIdentity]]) -> None:
        self._identity = identity
        self._read = read
        self._reading = asyncio.Lock()

    @property
    def installation(self) -> str:
        """The installation id of the database that is answered."""
        return self._identity.installation

    def admits(self, requester: DatabaseIdentity) -> bool:
        """Return whether the requesting database is known to be this service's database."""
        return requester == self._identity

    async def check(self, requester: DatabaseIdentity) -> None:
        """Raise UnavailableError if the requesting database is not this service's database."""
        if requester == self._identity:
            return
        if requester.installation == self._identity.installation:
            async with self._reading:
                if requester != self._identity:
                    self._identity = await self._read()
        if requester != self._identity:
            raise _foreign(requester, self._identity)


def _foreign(requester: DatabaseIdentity, identity: DatabaseIdentity) -> UnavailableError:
    if requester.installation == identity.installation:
        detail = "Both have the same installation id, and their servers started at different times: one is a copy."
    else:
        detail = (
            f"It answers for installation {identity.installation}; "
            f"the request came from installation {requester.installation or 'none'}."
        )
    return UnavailableError(
        "this service belongs to another database",
        detail=detail,
        hint="Start a controller for this database. If two servers share a socket directory, give each its own: "
        "select tensile_set_setting('socket_directory', '\"/run/tensile\"').",
    )
