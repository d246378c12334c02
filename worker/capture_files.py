"""Keeps captured steps in files, so that a network is captured once and not again for each of its trainings.

The files are for this operating system user alone, like Python's own bytecode files. A file that another user could
have written, or that is damaged, counts as missing. The files that were used last stay.
"""

import contextlib
import logging
import os
import stat
from pathlib import Path

from indb_tensile.errors import DataError
from indb_tensile.executor.capture.step_capture import CapturedStep
from indb_tensile.executor.capture.stored_capture import decode, encode, is_storable

_SUFFIX = ".capture"
_MOST_FILES = 1024  # each has one step of a network; one of 300 operators takes 0.2 MB
_MOST_BYTES = 64 << 20  # largest size of one file

log = logging.getLogger("trainer")


class CaptureFiles:
    """The captures in one directory, by key. The directory is made when something is stored."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def load(self, key: str) -> tuple[CapturedStep, ...] | None:
        """Return the steps that are stored under this key, or None."""
        try:
            content = self._read(key)
            return None if content is None else decode(content)
        except (OSError, DataError) as error:
            log.info("captured steps %s are not used: %s", key, error)
            return None

    def save(self, key: str, steps: tuple[CapturedStep, ...]) -> None:
        """Store the steps if that is possible. A full disk or another fault only costs the next capture."""
        if not is_storable(steps):
            return
        try:
            content = encode(steps)
            if len(content) <= _MOST_BYTES:
                self._write(key, content)
                self._limit()
        except (OSError, DataError) as error:
            log.info("captured steps %s are not stored: %s", key, error)

    def _path(self, key: str) -> Path:
        return self._directory / f"{key}{_SUFFIX}"

    def _read(self, key: str) -> bytes | None:
        try:
            descriptor = os.open(self._path(key), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        with os.fdopen(descriptor, "rb") as file:
            for status in (os.fstat(descriptor), self._directory.lstat()):
                if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & (stat.S_IWGRP | stat.S_IWOTH):
                    raise DataError(f"another system user could have written to {self._directory}")
            content = file.read(_MOST_BYTES)
        with contextlib.suppress(OSError):
            os.utime(self._path(key))  # the time of the last use
        return content

    def _write(self, key: str, content: bytes) -> None:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = self._directory / f"{key}.{os.getpid()}.new"
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
            new.replace(self._path(key))
        except OSError:
            new.unlink(missing_ok=True)
            raise

    def _limit(self) -> None:
        """Delete the files that were not used for longest, beyond the most that are kept."""
        files: list[tuple[int, Path]] = []
        for path in self._directory.iterdir():
            with contextlib.suppress(FileNotFoundError):  # another trainer deletes as well
                files.append((path.stat().st_mtime_ns, path))
        for _, path in sorted(files)[:-_MOST_FILES]:
            path.unlink(missing_ok=True)
