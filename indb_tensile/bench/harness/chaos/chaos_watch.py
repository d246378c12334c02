"""Measures the resources that a chaos test uses and leaves behind: memory by kind of process, files, device bytes."""

import threading
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from indb_tensile.bench.harness.chaos.chaos_jobs import Jobs
from indb_tensile.bench.harness.chaos.chaos_rig import ChaosRig
from indb_tensile.bench.harness.processes import process_table as processes

_EVERY_S = 0.25
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - looked at, never written to
NAMES = ("trainer", "service", "analyst")


class MemoryWatch:
    """Samples the peak resident memory of a rig's processes on a thread of its own.

    A process that lives for less than a quarter of a second may be missed. The figure of a backend includes the pages
    of the server's shared memory that it has touched.
    """

    def __init__(self, rig: ChaosRig) -> None:
        self._rig = rig
        self.peak_bytes = dict.fromkeys(("controller", *NAMES, "backend"), 0)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._sample_repeatedly, name="memory", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Take a last sample and stop."""
        self._stopped.set()
        self._thread.join()

    def _sample_repeatedly(self) -> None:
        while not self._stopped.wait(_EVERY_S):
            with suppress(OSError, ValueError, IndexError):  # the server has not written postmaster.pid completely
                self._sample()

    def _sample(self) -> None:
        self._record("controller", (controller.pid for controller in self._rig.controllers))
        for name in NAMES:
            self._record(name, self._rig.controller_children(name))
        self._record("backend", self._rig.backends())

    def _record(self, name: str, pids: Iterable[int]) -> None:
        self.peak_bytes[name] = max([self.peak_bytes[name], *(processes.peak_bytes(pid) for pid in pids if pid)])


def descriptors(rig: ChaosRig) -> Counter[str]:
    """Return the open files of the controller that has most, counted by what they are."""
    counts = [processes.descriptors(controller.pid) for controller in rig.controllers if controller.pid]
    return max(counts, key=Counter.total, default=Counter())


def shared_memory_files() -> frozenset[str]:
    """Return the names of files in shared memory that may belong to this package."""
    return frozenset(path.name for path in _SHARED_MEMORY.iterdir() if "tensile" in path.name)


def device_bytes(jobs: Jobs) -> int:
    """Return the device memory granted or in use, as live controllers report it in the catalog."""
    return int(jobs.run("device_bytes")[0][0])
