"""A small disk that can be filled: a tmpfs, which takes root and the right to mount."""

import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

SIZE_BYTES = 384 << 20  # a server with its write-ahead log, and some gigabytes fewer than a machine has
_CHUNK = bytes(1 << 20)
_BALLAST = "ballast"


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """A small file system and where it is mounted. `fault` says why none could be mounted; otherwise it is empty."""

    directory: Path
    fault: str = ""

    def fill(self) -> int:
        """Write until nothing more fits; how many bytes that took."""
        with (self.directory / _BALLAST).open("wb", buffering=0) as ballast:
            for size in (len(_CHUNK), 4096, 1):
                self._write(ballast.fileno(), size)
            return os.fstat(ballast.fileno()).st_size

    def empty(self) -> None:
        """Take away what `fill` has written."""
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
    """A disk mounted there for as long as the block lasts."""
    directory.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE_BYTES},mode=755", "tmpfs", str(directory)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        fault = done.stderr.strip() if done.returncode else ""
    except FileNotFoundError:
        fault = "there is no program mount"
    if fault:
        yield Disk(directory=directory, fault=f"no small disk can be mounted: {fault}")
        return
    try:
        yield Disk(directory=directory)
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=False)
