"""What a storm costs and leaves: peak memory by kind of process, and whatever is still there in the end."""

import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from indb_tensile.bench import chaos_processes as processes
from indb_tensile.bench.chaos_jobs import Jobs
from indb_tensile.bench.chaos_rig import Rig

_EVERY_S = 0.25
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - looked at, never written to
NAMES = ("trainer", "service", "analyst")


class MemoryWatch:
    """Looks at the peak resident memory of a rig's processes again and again, on a thread of its own.

    A process that lives for less than a quarter of a second may be missed. Backends count the server's shared memory
    that they have touched.
    """

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self.peak_bytes = dict.fromkeys(("controller", *NAMES, "backend"), 0)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._look_on, name="memory", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Look once more, and no more."""
        self._stopped.set()
        self._thread.join()

    def _look_on(self) -> None:
        while not self._stopped.wait(_EVERY_S):
            with suppress(OSError, ValueError, IndexError):  # the server is about to write its file
                self._look()

    def _look(self) -> None:
        self._note("controller", (controller.pid for controller in self._rig.controllers))
        for name in NAMES:
            self._note(name, self._rig.workers_processes(name))
        self._note("backend", self._rig.backends())

    def _note(self, name: str, pids: Iterable[int]) -> None:
        self.peak_bytes[name] = max([self.peak_bytes[name], *(processes.peak_bytes(pid) for pid in pids if pid)])


def descriptors(rig: Rig) -> int:
    """The most files that a controller has open."""
    return max((processes.descriptors(controller.pid) for controller in rig.controllers if controller.pid), default=0)


def shared_memory_files() -> frozenset[str]:
    """Names of files in shared memory that may be ours."""
    return frozenset(path.name for path in _SHARED_MEMORY.iterdir() if "tensile" in path.name)


def device_bytes(jobs: Jobs) -> int:
    """Memory of devices that is granted or in use, by live controllers' own word."""
    return int(jobs.run("device_bytes")[0][0])
