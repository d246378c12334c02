"""Files that pass rows from a trainer to the process that computes the baseline of the trained version.

A file is taken by removing it. So a baseline is computed at most once: a process that is killed while it computes one
leaves nothing behind, and the version has none.
"""

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from indb_tensile.job import ModelVersionId

_MOST_FILES = 100  # most waiting files: more collect only on a machine whose processors are never idle
_SUFFIX = ".rows"


@dataclass(frozen=True, slots=True)
class BaselineFiles:
    """The directory of the files of one installation, which need not exist yet."""

    directory: Path

    @classmethod
    def of(cls, state_directory: Path, installation: UUID) -> "BaselineFiles":
        """Return the files of an installation below the state directory of a controller."""
        return cls(state_directory / "baselines" / str(installation))

    def put(self, version: ModelVersionId, rows: bytes) -> bool:
        """Leave the rows of a version's baseline. Returns false if too many wait. Raises OSError."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if len(self.waiting()) >= _MOST_FILES:
            return False
        unfinished = self.directory / f"{version}.{os.getpid()}.unfinished"
        try:
            with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(rows)
            unfinished.rename(self.directory / f"{version}{_SUFFIX}")
        except OSError:
            with contextlib.suppress(OSError):
                unfinished.unlink()
            raise
        return True

    def waiting(self) -> list[ModelVersionId]:
        """Return the versions whose baselines wait to be computed, in their order."""
        names = self.directory.glob(f"*{_SUFFIX}") if self.directory.is_dir() else ()
        return sorted(ModelVersionId(int(path.stem)) for path in names if path.stem.isdecimal())

    def take(self, version: ModelVersionId) -> bytes | None:
        """Return the rows of a version and remove them, or None if another process has taken them."""
        path = self.directory / f"{version}{_SUFFIX}"
        try:
            with path.open("rb") as file:
                path.unlink()
                return file.read()
        except FileNotFoundError:
            return None

    def clear_unfinished(self) -> None:
        """Remove what a trainer that was killed has not finished."""
        for path in self.directory.glob("*.unfinished") if self.directory.is_dir() else ():
            pid = path.stem.rpartition(".")[2]
            if not Path(f"/proc/{pid}").exists():
                with contextlib.suppress(OSError):
                    path.unlink()
