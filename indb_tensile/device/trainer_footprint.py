"""How much of a GPU a trainer takes beside the regions that jobs share: a context, kernels, what torch needs.

The driver and torch decide it, so it is measured while trainers run and kept per kind of device, in a file of the
state directory; until then a first guess stands in. A GPU's capacity is what is free less this much for every job
that may run.
"""

import json
import os
from pathlib import Path
from typing import Final

from indb_tensile.config import MIB

CONTEXT_BYTES: Final = 400 * MIB  # a first guess of a context with torch's kernels loaded
OUTSIDE_BYTES: Final = 256 * MIB  # beside its regions, for cuBLAS's workspace and whatever else no plan foresees
FIRST_FOOTPRINT_BYTES: Final = CONTEXT_BYTES + OUTSIDE_BYTES

_FILE = "trainer-footprints.json"


def capacity_beside(room_bytes: int, footprint_bytes: int, max_jobs: int) -> tuple[int, int]:
    """The bytes for jobs' regions, and how many trainers fit beside them, in at most half of the room."""
    places = max(1, min(max_jobs, room_bytes // 2 // max(1, footprint_bytes)))
    return max(0, room_bytes - places * footprint_bytes), places


class KeptFootprints:
    """The measured bytes of one trainer by kind of device, in a file; a file that cannot be read holds none."""

    def __init__(self, state_directory: Path) -> None:
        self._path = state_directory / _FILE

    def read(self, kind: str) -> int:
        """The bytes of one trainer on this kind of device, or the first guess."""
        size_bytes = self._all().get(kind)
        return size_bytes if isinstance(size_bytes, int) and size_bytes > 0 else FIRST_FOOTPRINT_BYTES

    def keep(self, kind: str, size_bytes: int) -> None:
        """Remember it for the next start."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        partial = self._path.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps(self._all() | {kind: size_bytes}, indent=1), encoding="utf-8")
        partial.replace(self._path)  # whole or not at all

    def _all(self) -> dict[str, object]:
        try:
            kept = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return kept if isinstance(kept, dict) else {}
