"""The file of the service's socket.

It is created under another name and then renamed, so that no client finds a socket that does not listen yet.
"""

import os
import socket
from contextlib import suppress
from pathlib import Path

from indb_tensile.controller.service_sockets import is_listening, locked
from indb_tensile.errors import UnavailableError

from .peer import user_name

MAX_SOCKET_PATH_BYTES = 107  # sockaddr_un.sun_path has 108 bytes with its terminating zero
BACKLOG = 1024  # connections that wait to be accepted; beyond it a connect fails at once


class Endpoint:
    """A listening Unix socket at `<directory>/<name>.sock`.

    The file of a service that has ended is replaced; the file of a service that still listens is not. Raises
    UnavailableError if another service listens on the name, if the path is too long, or if other users could replace
    the socket with theirs: because the directory belongs to a user other than root or this process's user, or is
    writable for others.
    """

    def __init__(self, directory: Path, name: str) -> None:
        self.path = directory / f"{name}.sock"
        _check_length(self.path)
        _prepare(directory)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        try:
            with locked(directory / f".{name}.lock"):
                self._inode = self._bind(directory / f".{name}")
        except UnavailableError:
            self.socket.close()
            raise

    def close(self) -> None:
        """Stop listening and remove the file, unless a newer service has replaced it."""
        self.socket.close()
        with suppress(FileNotFoundError):
            if self.path.stat().st_ino == self._inode:
                self.path.unlink()

    def _bind(self, fresh: Path) -> int:
        """Listen, and rename the socket to its final name. Returns its inode. The caller must have the lock."""
        if is_listening(self.path):
            raise UnavailableError(
                f"another service listens on {self.path}",
                detail="Its database has the same identity: it is this one, or a copy of this one's data directory.",
                hint="End that service's controller, or give this controller another service directory "
                "(TENSILE_SERVICE_DIRECTORY, and socket_directory in the database).",
            )
        fresh.unlink(missing_ok=True)
        self.socket.bind(str(fresh))
        fresh.chmod(0o666)
        self.socket.listen(BACKLOG)
        inode = fresh.stat().st_ino
        fresh.rename(self.path)
        return inode


def _prepare(directory: Path) -> None:
    try:
        if not directory.exists():
            directory.mkdir(parents=True)
            directory.chmod(0o755)  # set regardless of the umask, because the server's user must be able to enter
    except OSError as error:
        raise UnavailableError(
            f"the service's directory {directory} cannot be created: {error.strerror}",
            hint="Create it, or set another directory (TENSILE_SERVICE_DIRECTORY).",
        ) from error
    facts = directory.stat()
    mode = facts.st_mode & 0o777
    if facts.st_uid not in (0, os.geteuid()):
        raise UnavailableError(
            f"the service's directory {directory} belongs to {user_name(facts.st_uid)}, who could replace the socket",
            hint=f"Run: chown {user_name(os.geteuid())} {directory}",
        )
    if mode & 0o022:
        raise UnavailableError(
            f"the service's directory {directory} has mode {mode:04o}: others could put their own socket there",
            hint=f"Run: chmod 0755 {directory}",
        )


def _check_length(path: Path) -> None:
    size_bytes = len(os.fsencode(path))
    if size_bytes > MAX_SOCKET_PATH_BYTES:
        raise UnavailableError(
            f"the service's socket {path} would have a path of {size_bytes} bytes, and the system allows "
            f"{MAX_SOCKET_PATH_BYTES}",
            hint="Choose a shorter service directory.",
        )
