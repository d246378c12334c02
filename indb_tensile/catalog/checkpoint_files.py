"""Checkpoints in files below the controller's state directory, one folder for each installation and host.

A file's name is made of the job's number and the bytes' digest; no path comes from the catalog. A new checkpoint lies
beside the previous one until the catalog names it: a crash at any moment leaves the one that the catalog names whole.
"""

import contextlib
import os
import re
import stat
import time
from collections.abc import Iterable
from pathlib import Path
from uuid import UUID

from indb_tensile.catalog.checkpoints import Summed, digest_of
from indb_tensile.catalog.chunks import Part
from indb_tensile.errors import StorageError
from indb_tensile.job import JobId

FOLDER = "checkpoints"
_NAME = re.compile(r"job-(?P<job>[1-9][0-9]{0,18})-(?P<digest>[0-9a-f]{64})\.ckpt")
_UNSAFE = re.compile(r"[^A-Za-z0-9-]")
_UNFINISHED = "new-"
_UNDER_WAY_S = 600.0  # longer than from a file's last write to the commit of its row


class CheckpointFiles:
    """The files of one installation on one host. Directories have mode 0700, files 0600: they hold weights.

    The host has a folder because hosts may share a state directory on a network, and each removes stale files.
    """

    def __init__(self, state_directory: Path, installation: UUID, host: str) -> None:
        folder = _UNSAFE.sub("_", host) or "_"
        self.directory = state_directory.absolute() / FOLDER / str(installation) / folder

    def write(self, job: JobId, parts: Iterable[Part]) -> Summed:
        """Write the parts durably. Returns their size and digest. Other checkpoints of the job stay.

        Raises StorageError where the disk is full or the directory cannot be written.
        """
        summed = Summed(parts)
        unfinished = self.directory / f"{_UNFINISHED}job-{int(job)}.{os.getpid()}"
        try:
            self._make_directory()
            _write_durably(unfinished, summed)
            unfinished.rename(self._path(job, summed.digest))
            _sync(self.directory)
        except OSError as error:
            with contextlib.suppress(OSError):
                unfinished.unlink(missing_ok=True)
            raise StorageError(
                f"the checkpoint of job {job} cannot be written to {self.directory}: {error.strerror or error}",
                detail=f"{summed.size_bytes} bytes of it were written.",
                hint="Free space there, or set TENSILE_STATE_DIR to another directory.",
            ) from error
        return summed

    def read(self, job: JobId, digest: str, size_bytes: int) -> bytes:
        """The bytes of that checkpoint. Raises StorageError where the file is lost or damaged."""
        path = self._path(job, digest)
        try:
            with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode) or status.st_size != size_bytes:
                    raise StorageError(f"{path} has {status.st_size} bytes, not {size_bytes}")
                data = file.read()
        except OSError as error:
            raise StorageError(f"{path} cannot be read: {error.strerror or error}") from error
        if digest_of(data) != digest:
            raise StorageError(f"{path} is damaged: its SHA-256 digest is another")
        return data

    def keep_only(self, job: JobId, digest: str) -> None:
        """Remove this job's checkpoints but the one of that digest, which the catalog names by now."""
        with contextlib.suppress(OSError):  # what stays is removed as stale later
            for path, (number, own) in self._files().items():
                if number == job and own != digest:
                    path.unlink(missing_ok=True)

    def remove_stale(self, counted: frozenset[tuple[int, str]]) -> int:
        """Remove files that the catalog does not count on; return how many.

        `counted` are job and digest of this host's rows: a job that has ended, on whatever host, has none. A file
        of the last ten minutes stays: its row may be under way. Raises StorageError.
        """
        before = time.time() - _UNDER_WAY_S
        removed = 0
        try:
            stale = [path for path, key in self._files().items() if key not in counted]
            for path in [*stale, *self.directory.glob(f"{_UNFINISHED}*")]:
                if path.lstat().st_mtime < before:
                    path.unlink(missing_ok=True)
                    removed += 1
        except FileNotFoundError:
            return removed  # a trainer was faster; the rest is for the next time
        except OSError as error:
            raise StorageError(f"stale checkpoints cannot be removed: {error}") from error
        return removed

    def _path(self, job: JobId, digest: str) -> Path:
        name = f"job-{int(job)}-{digest}.ckpt"
        if _NAME.fullmatch(name) is None:
            raise StorageError(f"job {job} and the digest {digest[:80]!r} make no name of a checkpoint's file")
        return self.directory / name

    def _files(self) -> dict[Path, tuple[int, str]]:
        if not self.directory.is_dir():
            return {}
        matches = {path: _NAME.fullmatch(path.name) for path in sorted(self.directory.iterdir())}
        return {path: (int(match["job"]), match["digest"]) for path, match in matches.items() if match}

    def _make_directory(self) -> None:
        if self.directory.is_dir():
            return
        installation = self.directory.parent
        installation.parent.parent.mkdir(parents=True, exist_ok=True)
        for directory in (installation.parent, installation, self.directory):
            directory.mkdir(mode=0o700, exist_ok=True)
            _sync(directory.parent)


def _write_durably(path: Path, parts: Iterable[Part]) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        for part in parts:
            file.write(part)
        file.flush()
        os.fsync(file.fileno())


def _sync(directory: Path) -> None:
    """Make names in the directory durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
