"""Makes a control group (cgroup) with a memory limit, for a process that a benchmark or a test moves into it."""

import contextlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_CGROUP_ROOT = Path("/sys/fs/cgroup")
# Directory, limit of memory, and limit of swap in cgroup versions 1 and 2. In version 2 only the root may have both
# processes and child groups, so the group is created there and not in this process's group.
_VERSIONS = (
    (_CGROUP_ROOT / "memory", "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"),
    (_CGROUP_ROOT, "memory.max", "memory.swap.max"),
)
_REMOVE_TIMEOUT_S = 60.0


@contextmanager
def limited_memory(limit_bytes: int) -> Iterator[Path | None]:
    """Yield the directory of a group with this limit, or None if the group cannot be made.

    The group has no swap space, if the kernel counts swap. A process makes one group at a time.
    """
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
            # Version 1 limits memory and swap together, version 2 swap alone. The kernel may count no swap.
            with contextlib.suppress(OSError):
                (path / swap).write_text(str(limit_bytes if name == "memory.limit_in_bytes" else 0))
            return path
    return None


def _remove(path: Path) -> None:
    """Remove the group. Processes that are still in it go back to its parent.

    A group whose processes are ending cannot be removed at once, so this is tried until it succeeds.
    """
    end_s = time.monotonic() + _REMOVE_TIMEOUT_S
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
