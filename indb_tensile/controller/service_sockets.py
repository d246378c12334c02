"""The files of services' sockets: whether one is in use, and the removal of those that killed services have left.

The name of a socket has digits of the database's id and the number of the worker (worker/serving/identity.py).
While it is made it begins with a dot, and a file beside it is its lock.
"""

import fcntl
import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from indb_tensile.catalog import jobs, stored_checkpoints
from indb_tensile.catalog.connection import Connection

_NAME = re.compile(r"\.?([0-9a-f]{8,32})-(\d{1,18})(?:\.sock|\.lock)?")


def remove_left_sockets(connection: Connection, directory: Path | None) -> str:
    """Remove the sockets of this database's workers that have stopped, where nothing listens any more.

    A service removes its socket when it ends. One that is killed together with its controller leaves it, and no later
    service has its name.
    """
    if directory is None or not directory.is_dir():
        return ""
    digits, removed = stored_checkpoints.installation(connection).hex, 0
    left = {path: match for path in directory.iterdir() if (match := _NAME.fullmatch(path.name))}
    left = {path: match for path, match in left.items() if digits.startswith(match[1])}
    running = {own.worker for own in jobs.other_workers(connection, None)}  # after the look at the files
    for path, match in sorted(left.items()):
        if int(match[2]) in running:
            continue
        with locked(directory / f".{match[1]}-{match[2]}.lock"):
            if path.suffix != ".lock":  # the lock removes its own file
                if is_listening(path):
                    continue
                path.unlink(missing_ok=True)
        removed += 1
    return f"removed {removed}" if removed else ""


def is_listening(path: Path) -> bool:
    """Return whether a process listens on this socket. One whose queue of connections is full counts too."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as client:
        try:
            client.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except BlockingIOError:
            return True
        return True


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Lock this file, which is removed afterwards. Only this process's user may open it."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if not _is_current_file(path, descriptor):
                continue  # the previous owner of the lock has removed the file
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
            return
        finally:
            os.close(descriptor)


def _is_current_file(path: Path, descriptor: int) -> bool:
    try:
        return path.stat().st_ino == os.fstat(descriptor).st_ino
    except FileNotFoundError:
        return False
