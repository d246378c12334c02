"""The socket's file: made ready under another name, then put in place, so that no client meets half a socket."""

import os
import socket
from pathlib import Path

from indb_tensile.errors import UnavailableError

from .peer import user_name

MAX_SOCKET_PATH_BYTES = 107  # sockaddr_un.sun_path holds 108 with its terminating zero
_BACKLOG = 128


class Endpoint:
    """A listening Unix socket at `<directory>/<name>.sock`; a file left there by a dead service is replaced.

    Raises UnavailableError where another user than root owns the directory or others may write to it (they could
    put a socket of theirs in our place), or where the path is too long.
    """

    def __init__(self, directory: Path, name: str) -> None:
        self.path = directory / f"{name}.sock"
        fresh = directory / f".{name}.{os.getpid()}"
        _check_length(fresh)
        _prepare(directory)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        fresh.unlink(missing_ok=True)
        self.socket.bind(str(fresh))
        fresh.chmod(0o666)
        self.socket.listen(_BACKLOG)
        self._inode = fresh.stat().st_ino
        fresh.rename(self.path)

    def close(self) -> None:
        """Stop listening and remove the file, unless a newer service has already put its own there."""
        self.socket.close()
        try:
            if self.path.stat().st_ino == self._inode:
                self.path.unlink()
        except FileNotFoundError:
            return


def _prepare(directory: Path) -> None:
    try:
        if not directory.exists():
            directory.mkdir(parents=True)
            directory.chmod(0o755)  # whatever the umask: the server's user must be able to enter
    except OSError as error:
        raise UnavailableError(
            f"the service's directory {directory} cannot be made: {error.strerror}",
            hint="make it, or name another (TENSILE_SERVICE_DIRECTORY)",
        ) from error
    facts = directory.stat()
    mode = facts.st_mode & 0o777
    if facts.st_uid not in (0, os.geteuid()):
        raise UnavailableError(
            f"the service's directory {directory} belongs to {user_name(facts.st_uid)}, who could replace the socket",
            hint=f"run: chown {user_name(os.geteuid())} {directory}",
        )
    if mode & 0o022:
        raise UnavailableError(
            f"the service's directory {directory} has mode {mode:04o}: others could put their own socket there",
            hint=f"run: chmod 0755 {directory}",
        )


def _check_length(path: Path) -> None:
    size_bytes = len(os.fsencode(path))
    if size_bytes > MAX_SOCKET_PATH_BYTES:
        raise UnavailableError(
            f"the service's socket {path} would have a path of {size_bytes} bytes, and the system allows "
            f"{MAX_SOCKET_PATH_BYTES}",
            hint="choose a shorter service directory",
        )
