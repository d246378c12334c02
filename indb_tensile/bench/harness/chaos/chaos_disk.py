"""A small file system that a test can fill: a tmpfs. To mount it takes root and the right to mount."""

import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

SIZE_BYTES = 384 << 20  # enough for a server with its write-ahead log, and little enough to fill quickly
_CHUNK = bytes(1 << 20)
_BALLAST = "ballast"


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """A small file system and its mount point. If mounting failed, `fault` says why; otherwise `fault` is empty."""

    directory: Path
    fault: str = ""

    def fill(self) -> int:
        """Write until the file system is full. Returns the number of bytes written."""
        with (self.directory / _BALLAST).open("wb", buffering=0) as ballast:
            for size in (len(_CHUNK), 4096, 1):
                self._write(ballast.fileno(), size)
            return os.fstat(ballast.fileno()).st_size

    def empty(self) -> None:
        """Remove the file that `fill` has written."""
        (self.directory / _BALLAST).unlink(missing_ok=True)

    def _write(self, descriptor: int, size_bytes: int) -> None:
        try:
            while os.write(descriptor, _CHUNK[:size_bytes]) == size_bytes:
                pass
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise


@contextmanager
def small_disk(directory: Path) -> Iterator[Disk]:
    """Mount a small file system at `directory` for the duration of the block."""
    directory.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE_BYTES},mode=755", "tmpfs", str(directory)]
    try:
        completed = subprocess.run(command, capture_output=True, text=True, check=False)
        fault = completed.stderr.strip() if completed.returncode else ""
    except FileNotFoundError:
        fault = "there is no program mount"
    if fault:
        yield Disk(directory=directory, fault=f"no small disk can be mounted: {fault}")
        return
    try:
        yield Disk(directory=directory)
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=False)
