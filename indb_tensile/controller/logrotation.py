"""Logs that several processes append to, kept below a size: copied and then emptied in place.

The controller, its trainers and its service inherit one open file, and PostgreSQL's server has another, so a log that
is renamed would be written on under its new name. All of them append (O_APPEND): after the file is emptied they go on
at its start. A message that is written between the last read and the truncation, microseconds apart, is lost.
"""

import contextlib
import os
import shutil
import stat
from pathlib import Path
from typing import BinaryIO

_FLOOD = 4  # times the limit: a log of that size keeps only its end, so older files are bounded in all


def rotate(log: Path, limit_bytes: int, files: int) -> bool:
    """Move what is in the log to `log.1`, and older files one number up to `files`; False below the limit."""
    try:
        descriptor = os.open(log, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    with os.fdopen(descriptor, "r+b", buffering=0) as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size < limit_bytes:
            return False
        copy = log.with_name(f"{log.name}.new")
        try:
            with _fresh(copy, status.st_mode) as into:
                _skip(file, into, status.st_size, limit_bytes)
                shutil.copyfileobj(file, into, 1 << 20)
                _shift(log, files)
                copy.rename(numbered(log, 1))
                shutil.copyfileobj(file, into, 1 << 20)  # what was written meanwhile
                os.ftruncate(descriptor, 0)
        except OSError:
            copy.unlink(missing_ok=True)
            raise
    return True


def _skip(file: BinaryIO, into: BinaryIO, size_bytes: int, limit_bytes: int) -> None:
    """Of a log that a flood of records has made far too long, leave out the oldest, and say how much."""
    if size_bytes <= _FLOOD * limit_bytes:
        return
    file.seek(size_bytes - limit_bytes)
    while (byte := file.read(1)) and byte != b"\n":
        pass
    into.write(b"(%d bytes are left out: the log grew faster than it was rotated)\n" % file.tell())


def numbered(log: Path, number: int) -> Path:
    """The older file of that number; 1 is the newest."""
    return log.with_name(f"{log.name}.{number}")


def _fresh(path: Path, mode: int) -> BinaryIO:
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    os.fchmod(descriptor, stat.S_IMODE(mode))
    return os.fdopen(descriptor, "wb", buffering=0)


def _shift(log: Path, files: int) -> None:
    for number in range(files - 1, 0, -1):
        with contextlib.suppress(FileNotFoundError):
            numbered(log, number).replace(numbered(log, number + 1))
