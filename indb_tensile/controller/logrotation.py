"""Rotates logs to which several processes append: copies the file and then empties it in place.

The controller, its trainers and its service inherit one open file, and PostgreSQL's server has another. If the file
were renamed, they would write on under its new name. All of them append (O_APPEND), so after the file is emptied they
continue at its start. A message that is written in the microseconds between the last read and the truncation is lost.
"""

import contextlib
import fcntl
import os
import shutil
import stat
from pathlib import Path
from typing import BinaryIO

# Of a log above this many times the limit only the end is kept, which bounds the total size of older files.
_OVERSIZE_FACTOR = 4


def rotate(log: Path, limit_bytes: int, files: int) -> bool:
    """Move the content of the log to `log.1`, and older files one number up to `files`.

    Returns False, and does nothing, if the log is below the limit or missing, or if another process rotates it now.
    """
    try:
        descriptor = os.open(log, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    with os.fdopen(descriptor, "r+b", buffering=0) as file:
        if not _locked(descriptor):
            return False
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size < limit_bytes:
            return False
        copy = log.with_name(f"{log.name}.new")
        try:
            with _create(copy, status.st_mode) as into:
                _skip_oldest(file, into, status.st_size, limit_bytes)
                shutil.copyfileobj(file, into, 1 << 20)
                _renumber(log, files)
                copy.rename(numbered(log, 1))
                shutil.copyfileobj(file, into, 1 << 20)  # records that were written meanwhile
                os.ftruncate(descriptor, 0)
        except OSError:
            copy.unlink(missing_ok=True)
            raise
    return True


def _skip_oldest(file: BinaryIO, into: BinaryIO, size_bytes: int, limit_bytes: int) -> None:
    """Skip the oldest part of a log that has grown far too long, and write how much was skipped."""
    if size_bytes <= _OVERSIZE_FACTOR * limit_bytes:
        return
    file.seek(size_bytes - limit_bytes)
    while (byte := file.read(1)) and byte != b"\n":
        pass
    into.write(b"(%d bytes are left out: the log grew faster than it was rotated)\n" % file.tell())


def numbered(log: Path, number: int) -> Path:
    """Return the path of the older file with this number; 1 is the newest."""
    return log.with_name(f"{log.name}.{number}")


def _locked(descriptor: int) -> bool:
    """Keep other controllers of this machine from rotating the same log. The lock ends with the descriptor."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _create(path: Path, mode: int) -> BinaryIO:
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    os.fchmod(descriptor, stat.S_IMODE(mode))
    return os.fdopen(descriptor, "wb", buffering=0)


def _renumber(log: Path, files: int) -> None:
    for number in range(files - 1, 0, -1):
        with contextlib.suppress(FileNotFoundError):
            numbered(log, number).replace(numbered(log, number + 1))
