"""Reads from the kernel which system user is at the other end of a Unix socket.

The service answers only the system user that runs its database server. It learns that user from its own connection to
the server.
"""

import os
import pwd
import socket
import struct
from typing import Protocol

from indb_tensile.errors import DatabaseError

_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid


def peer_uid(connection: socket.socket) -> int:
    """Return the user id of the connected process or, on a client's socket, of the listening process."""
    uid: int = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))[1]
    return uid


class Connected(Protocol):
    """The method of a database connection that is used here."""

    def fileno(self) -> int:
        """Return the descriptor of the connection's socket."""
        ...


def server_uid(database: Connected) -> int:
    """Return the user id of the database server's process at the other end of this connection.

    Raises DatabaseError if the connection is not a Unix socket, because the server's user is unknown then.
    """
    duplicate = socket.socket(fileno=os.dup(database.fileno()))
    with duplicate:
        if duplicate.family != socket.AF_UNIX:
            raise DatabaseError(
                "the service cannot tell which system user runs the database server: "
                f"it is connected to {duplicate.getpeername()[0]} over TCP",
                hint="Connect through the server's Unix socket, or set TENSILE_SERVICE_PEER_UID to the user id "
                "of the server's processes on this machine.",
            )
        return peer_uid(duplicate)


def user_name(uid: int) -> str:
    """Return the user's name for a message, or the number if the user has no name."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
