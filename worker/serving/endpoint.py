"""The socket's file: made ready under another name, then put in place, so that no client meets half a socket."""

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from indb_tensile.errors import UnavailableError

from .peer import user_name

MAX_SOCKET_PATH_BYTES = 107  # sockaddr_un.sun_path holds 108 with its terminating zero
_BACKLOG = 128


class Endpoint:
    """A listening Unix socket at `<directory>/<name>.sock`.

    A file whose service has ended is replaced. A name whose service still listens is never taken over. Raises
    UnavailableError for such a name, where another user than root owns the directory or others may write to it
    (they could put a socket of theirs in our place), and where the path is too long.
    """

    def __init__(self, directory: Path, name: str) -> None:
        self.path = directory / f"{name}.sock"
        _check_length(self.path)
        _prepare(directory)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        try:
            with _locked(directory / f".{name}.lock"):
                self._inode = self._bind(directory / f".{name}")
        except UnavailableError:
            self.socket.close()
            raise

    def close(self) -> None:
        """Stop listening and remove the file, unless a newer service has already put its own there."""
        self.socket.close()
        with suppress(FileNotFoundError):
            if self.path.stat().st_ino == self._inode:
                self.path.unlink()

    def _bind(self, fresh: Path) -> int:
        """Listen, and put the socket in place; its inode. Needs the lock."""
        if _listens(self.path):
            raise UnavailableError(
                f"another service listens on {self.path}",
                detail="Its database has the same identity: it is this one, or a copy of this one's data directory.",
                hint="End that service's controller, or give this controller another service directory "
                "(TENSILE_SERVICE_DIRECTORY, and socket_directory in the database).",
            )
        fresh.unlink(missing_ok=True)
        self.socket.bind(str(fresh))
        fresh.chmod(0o666)
        self.socket.listen(_BACKLOG)
        inode = fresh.stat().st_ino
        fresh.rename(self.path)
        return inode


def _listens(path: Path) -> bool:
    """Whether a process listens there. A full queue of connections has one too."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as client:
        try:
            client.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except BlockingIOError:
            return True
        return True


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Alone among the processes that lock this file, which is gone afterwards. Only our own user may open it."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if not _is_file(path, descriptor):
                continue  # the process before us has removed it
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
            return
        finally:
            os.close(descriptor)


def _is_file(path: Path, descriptor: int) -> bool:
    try:
        return path.stat().st_ino == os.fstat(descriptor).st_ino
    except FileNotFoundError:
        return False


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
