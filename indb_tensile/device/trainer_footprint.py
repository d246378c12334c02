"""The GPU memory that a trainer uses outside the regions that jobs share: a context, kernels, and torch's workspaces.

The driver and torch determine the amount, so it is measured while trainers run and stored per kind of device in a
file of the state directory. Before the first measurement a guess is used. A GPU's capacity is its free memory minus
this amount for each job that may run.
"""

import json
import os
from pathlib import Path
from typing import Final

from indb_tensile.config import MIB

CONTEXT_BYTES: Final = 400 * MIB  # a first guess for a context with torch's kernels loaded
OUTSIDE_BYTES: Final = 256 * MIB  # outside the regions: cuBLAS's workspace and other memory that no plan contains
FIRST_FOOTPRINT_BYTES: Final = CONTEXT_BYTES + OUTSIDE_BYTES
# For the connection by NCCL of a rank, until it is measured (catalog/rank_memory.py): the most that others have seen,
# from 544 MB on.
FIRST_NCCL_BYTES: Final = 688_000_000

_FILE = "trainer-footprints.json"


def capacity_beside(room_bytes: int, footprint_bytes: int, max_jobs: int) -> tuple[int, int]:
    """Divide a GPU's free memory between jobs' regions and trainers' footprints.

    Returns the bytes for regions, and the number of trainers, at least 1, whose footprints fit in at most half of the
    room.
    """
    trainers = max(1, min(max_jobs, room_bytes // 2 // max(1, footprint_bytes)))
    return max(0, room_bytes - trainers * footprint_bytes), trainers


class FootprintFile:
    """The measured footprint of one trainer per kind of device, stored in a file. An unreadable file is empty."""

    def __init__(self, state_directory: Path) -> None:
        self._path = state_directory / _FILE

    def read(self, kind: str) -> int:
        """Return the footprint of one trainer on this kind of device, or the first guess."""
        size_bytes = self._all().get(kind)
        return size_bytes if isinstance(size_bytes, int) and size_bytes > 0 else FIRST_FOOTPRINT_BYTES

    def keep(self, kind: str, size_bytes: int) -> None:
        """Store the footprint for the next start."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        partial = self._path.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps(self._all() | {kind: size_bytes}, indent=1), encoding="utf-8")
        partial.replace(self._path)  # atomic: readers see the old file or the new one

    def _all(self) -> dict[str, object]:
        try:
            footprints = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return footprints if isinstance(footprints, dict) else {}
