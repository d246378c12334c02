"""Makes a control group with a memory limit, for a process that a benchmark or a test moves into the group."""

import contextlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_MOUNTED = Path("/sys/fs/cgroup")
# The files of versions 1 and 2. A group of version 2 has processes or children but not both, so the new group is
# created in the root and not in this process's own group.
_VERSIONS = (
    (_MOUNTED / "memory", "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"),
    (_MOUNTED, "memory.max", "memory.swap.max"),
)
_REMOVED_WITHIN_S = 60.0


@contextmanager
def limited_memory(limit_bytes: int) -> Iterator[Path | None]:
    """Yield a group with this limit and without swap space, or None if none can be made."""
    group = _create(limit_bytes)
    try:
        yield group
    finally:
        if group is not None:
            _remove(group)


def _create(limit_bytes: int) -> Path | None:
    for root, name, swap in _VERSIONS:
        path = root / f"tensile-{os.getpid()}"
        with contextlib.suppress(OSError):
            path.mkdir()
            try:
                (path / name).write_text(str(limit_bytes))
            except OSError:
                path.rmdir()
                continue
            with contextlib.suppress(OSError):
                (path / swap).write_text(str(limit_bytes if name == "memory.limit_in_bytes" else 0))
            return path
    return None


def _remove(path: Path) -> None:
    """Remove the group. Processes that are still in it go back to its parent."""
    end_s = time.monotonic() + _REMOVED_WITHIN_S
    while path.exists():
        for pid in (path / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):
                (path.parent / "cgroup.procs").write_text(pid)
        with contextlib.suppress(OSError):
            path.rmdir()
        if path.exists():
            if time.monotonic() > end_s:
                raise TimeoutError(f"{path} cannot be removed")
            time.sleep(0.02)
