"""A clock that can be stepped: libfaketime, preloaded into what shall go by it. Its monotonic clock is left alone."""

import os
from pathlib import Path

_LIBRARY = "libfaketimeMT.so.1"
_PLACES = ("/usr/lib/*/faketime", "/usr/lib/faketime", "/usr/lib64/faketime", "/usr/local/lib/faketime")
# With the clock stepped, libfaketime 0.9.10 answers EINVAL to the clock_nanosleep() on the monotonic clock that
# Python's time.sleep() is; waiting for an event that never comes is left alone by it.
_SLEEP = """\
import threading
import time


def sleep(seconds):
    if seconds < 0:
        raise ValueError("sleep length must be non-negative")
    threading.Event().wait(seconds)


time.sleep = sleep
"""


class Clock:
    """The clock of all processes that are started with `environment`, seconds ahead of the machine's."""

    def __init__(self, directory: Path, library: Path) -> None:
        directory.mkdir()
        directory.chmod(0o755)
        self._file = directory / "offset"
        (directory / "sitecustomize.py").write_text(_SLEEP)
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
        """Set it; processes see it within a second."""
        fresh = self._file.with_suffix(".new")
        fresh.write_text(f"{ahead_s:+d}\n")
        fresh.chmod(0o644)
        fresh.rename(self._file)


def find_library() -> Path | None:
    """Debian's package libfaketime, or a library of that name elsewhere."""
    found = (path for place in _PLACES for path in sorted(Path("/").glob(f"{place[1:]}/{_LIBRARY}")))
    return next(found, None)
