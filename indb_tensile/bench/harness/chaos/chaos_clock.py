"""A wall clock that a test can step, by preloading libfaketime into a process. The monotonic clock stays right.

Only the process that starts with `Clock.environment` sees the stepped clock. Its children do not: trainers preload
another library, and the two cannot be loaded together.
"""

import os
from contextlib import suppress
from pathlib import Path

_LIBRARY = "libfaketimeMT.so.1"
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - libfaketime's choice
_PLACES = ("/usr/lib/*/faketime", "/usr/lib/faketime", "/usr/lib64/faketime", "/usr/local/lib/faketime")
# Runs when the interpreter starts, and replaces time.sleep(). Python's time.sleep() calls clock_nanosleep() on the
# monotonic clock; while the wall clock is stepped, libfaketime 0.9.10 answers that call with EINVAL. Waiting with a
# timeout for an event that nobody sets takes the same time and is not affected.
_CUSTOM = """\
import os
import threading
import time

os.environ.pop("LD_PRELOAD", None)


def sleep(seconds):
    if seconds < 0:
        raise ValueError("sleep length must be non-negative")
    threading.Event().wait(seconds)


time.sleep = sleep
"""


class Clock:
    """The wall clock of processes that start with `environment`. `step` sets its offset to the machine's clock."""

    def __init__(self, directory: Path, library: Path) -> None:
        directory.mkdir()
        directory.chmod(0o755)
        self._file = directory / "offset"
        (directory / "sitecustomize.py").write_text(_CUSTOM)
        self.step(0)
        self.environment = {
            "LD_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "NO_FAKE_STAT": "1",
            "PYTHONPATH": os.pathsep.join([str(directory), *filter(None, [os.environ.get("PYTHONPATH")])]),
        }

    def step(self, ahead_s: int) -> None:
        """Set the offset in seconds. Processes see it within a second."""
        replacement = self._file.with_suffix(".new")
        replacement.write_text(f"{ahead_s:+d}\n")
        replacement.chmod(0o644)
        replacement.rename(self._file)

    @staticmethod
    def tidy(pid: int) -> None:
        """Remove the files that libfaketime leaves in shared memory when a process is killed."""
        for name in (f"faketime_shm_{pid}", f"sem.faketime_sem_{pid}"):
            with suppress(FileNotFoundError):
                (_SHARED_MEMORY / name).unlink()


def find_library() -> Path | None:
    """Return the path of libfaketime, from Debian's or another usual directory; None if it is not installed."""
    paths = (path for place in _PLACES for path in sorted(Path("/").glob(f"{place[1:]}/{_LIBRARY}")))
    return next(paths, None)
