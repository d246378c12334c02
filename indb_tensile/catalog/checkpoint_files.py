"""Stores checkpoints in files below the controller's state directory, one folder for each installation and host.

A file's name consists of the job's number and the digest of the contents; no path comes from the catalog. A new
checkpoint is written beside the previous one, which is removed after the catalog has named the new one. So a crash at
any moment leaves the checkpoint that the catalog names complete.
"""

import contextlib
import os
import re
import stat
import time
from collections.abc import Iterable
from pathlib import Path
from uuid import UUID

from indb_tensile.catalog.chunks import Part
from indb_tensile.catalog.stored_checkpoints import DigestingParts, digest_of
from indb_tensile.errors import StorageError
from indb_tensile.job import JobId

FOLDER = "checkpoints"
_NAME = re.compile(r"job-(?P<job>[1-9][0-9]{0,18})-(?P<digest>[0-9a-f]{64})\.ckpt")
_UNSAFE = re.compile(r"[^A-Za-z0-9-]")
_UNFINISHED = "new-"
_UNDER_WAY_S = 600.0  # longer than the time from a file's last write to the commit of its row


class CheckpointFiles:
    """The checkpoint files of one installation on one host.

    Directories have mode 0700 and files 0600, because they hold weights. Each host has its own folder, because hosts
    may share a state directory on a network and each host removes its stale files.
    """

    def __init__(self, state_directory: Path, installation: UUID, host: str) -> None:
        folder = _UNSAFE.sub("_", host) or "_"
        self.directory = state_directory.absolute() / FOLDER / str(installation) / folder

    def write(self, job: JobId, parts: Iterable[Part]) -> DigestingParts:
        """Write the parts durably. Returns their size and digest. Other checkpoints of the job stay.

        Raises StorageError if the disk is full or the directory is not writable.
        """
        summed = DigestingParts(parts)
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
        """Read the job's checkpoint of this digest and size. Raises StorageError for a lost or damaged file."""
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
            raise StorageError(f"{path} is damaged: its SHA-256 digest does not match")
        return data

    def keep_only(self, job: JobId, digest: str) -> None:
        """Remove this job's checkpoints except the one with this digest, after the catalog has named it."""
        with contextlib.suppress(OSError):  # a file that stays is removed as stale later
            for path, (number, file_digest) in self._files().items():
                if number == job and file_digest != digest:
                    path.unlink(missing_ok=True)

    def remove_stale(self, counted: frozenset[tuple[int, str]]) -> int:
        """Remove the files that no row of the catalog names. Returns how many were removed. Raises StorageError.

        `counted` has job and digest of each row for this host. A job that has ended, on any host, has no rows. Files
        of the last ten minutes stay, because their rows may not be committed yet.
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
            return removed  # a trainer removed the file first; the next call removes the rest
        except OSError as error:
            raise StorageError(f"stale checkpoints cannot be removed: {error}") from error
        return removed

    def _path(self, job: JobId, digest: str) -> Path:
        name = f"job-{int(job)}-{digest}.ckpt"
        if _NAME.fullmatch(name) is None:
            raise StorageError(f"job {job} and the digest {digest[:80]!r} do not form the name of a checkpoint file")
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
    """Flush the directory to disk, so that the names in it survive a crash."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
