"""Who is at the other end of a Unix socket: the kernel's word, not the peer's.

The service answers only the operating-system user that runs its own database server, which it learns from its
own connection to that server.
"""

import os
import pwd
import socket
import struct
from typing import Protocol

from indb_tensile.errors import DatabaseError

_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid


def peer_uid(connection: socket.socket) -> int:
    """The user id of the process that connected, or, seen from a client, of the one that listens."""
    uid: int = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))[1]
    return uid


class Connected(Protocol):
    """As much of a database connection as is looked at here."""

    def fileno(self) -> int:
        """Its socket."""
        ...


def server_uid(database: Connected) -> int:
    """The user id of the database's server, as its end of this connection shows it.

    Raises DatabaseError where the connection is not a Unix socket: who runs the server cannot be known then.
    """
    duplicate = socket.socket(fileno=os.dup(database.fileno()))
    with duplicate:
        if duplicate.family != socket.AF_UNIX:
            raise DatabaseError(
                "the service cannot tell which system user runs the database server: "
                f"it is connected to {duplicate.getpeername()[0]} over TCP",
                hint="connect through the server's Unix socket, or set TENSILE_SERVICE_PEER_UID to the user id "
                "of the server's processes on this machine",
            )
        return peer_uid(duplicate)


def user_name(uid: int) -> str:
    """The user's name for a message, or its number where it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
