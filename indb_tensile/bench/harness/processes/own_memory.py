"""Watches how much memory of their own processes have, without the pages that they share with others."""

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Self

_PAUSE_S = 0.02


class OwnMemory:
    """Samples the anonymous resident memory of processes in a thread.

    `peaks_bytes` has the largest sample of each name, which may be that of several processes.
    """

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._pids = set(pids.items())
        self.peaks_bytes = dict.fromkeys(pids, 0)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memory", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def add(self, name: str, pid: int) -> None:
        """Watch one more process."""
        self._pids.add((name, pid))

    def _watch(self) -> None:
        while True:
            for name, pid in tuple(self._pids):
                self.peaks_bytes[name] = max(self.peaks_bytes.get(name, 0), own_bytes(pid))
            if self._ended.wait(_PAUSE_S):
                return


def own_bytes(pid: int) -> int:
    """Return the memory of a process, 0 of one that has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:")), 0)
