"""Reads the limits on memory and processor time of this process's control group.

The limits bind this process and every process that it starts. In a container they are the container's limits; the
kernel kills processes that exceed the memory limit. The limits of parent groups also apply, so the smallest limit on
the way up counts (Linux, admin-guide/cgroup-v2, `memory.max`; in version 1 `memory.limit_in_bytes`). psutil only
reports the machine's memory.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_BOUNDLESS_BYTES = 1 << 62  # version 1 reports "no limit" as the most whole pages that a signed number holds


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A control group's memory limit, and the file that states the limit."""

    size_bytes: int
    path: Path


def memory_limit(
    membership: Path = Path("/proc/self/cgroup"), mounted: Path = Path("/sys/fs/cgroup")
) -> Limit | None:
    """Return the smallest limit that binds this process, or None if the system reports none."""
    try:
        lines = membership.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    limits = [limit for line in lines for limit in _limits(line, mounted)]
    return min(limits, key=lambda limit: (limit.size_bytes, limit.path), default=None)


def processors(membership: Path = Path("/proc/self/cgroup"), mounted: Path = Path("/sys/fs/cgroup")) -> float | None:
    """Return how many processors' time the group may use, or None without a limit (`cpu.max`, `cpu.cfs_quota_us`)."""
    try:
        lines = membership.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    shares = [share for line in lines for place in _places(line, mounted, "cpu") if (share := _share(place))]
    return min(shares, default=None)


def _share(directory: Path) -> float | None:
    try:
        words = (directory / "cpu.max").read_text(encoding="utf-8").split()
    except OSError:
        words = []
    if len(words) == 2 and all(map(str.isdecimal, words)) and int(words[1]):  # without a limit: "max 100000"
        return int(words[0]) / int(words[1])
    quota, period = _number(directory / "cpu.cfs_quota_us"), _number(directory / "cpu.cfs_period_us")
    return quota / period if quota and period else None  # without a limit the quota is -1


def free_bytes(limit: Limit) -> int:
    """Return the bytes that the group may still use.

    The kernel can drop cached files, so the page cache counts as free.
    """
    used_bytes = _number(limit.path.with_name(_USAGE[limit.path.name])) or 0
    figures = _statistics(limit.path.with_name("memory.stat"))
    cached_bytes = figures.get("total_cache", figures.get("file", 0)) - figures.get(
        "total_shmem", figures.get("shmem", 0)
    )
    return max(0, limit.size_bytes - used_bytes + max(0, cached_bytes))


_USAGE = {"memory.max": "memory.current", "memory.limit_in_bytes": "memory.usage_in_bytes"}


def _statistics(path: Path) -> dict[str, int]:
    """Read a memory.stat. In version 1, figures that begin with `total_` include the group's children."""
    try:
        pairs = (line.partition(" ")[::2] for line in path.read_text(encoding="utf-8").splitlines())
        return {name: int(value) for name, value in pairs if value.isdecimal()}
    except OSError:
        return {}


def _limits(line: str, mounted: Path) -> Iterator[Limit]:
    """Yield the limits of one hierarchy, `number:controllers:group`, from the group up to the mount point.

    A container may see only its own part of the hierarchy. Then the host's groups do not exist as directories, and
    the container's group is the mount point itself.
    """
    name = "memory.max" if line.startswith("0:") else "memory.limit_in_bytes"
    for directory in _places(line, mounted, "memory"):
        size_bytes = _size_bytes(directory / name)
        if size_bytes is not None:
            yield Limit(size_bytes=size_bytes, path=directory / name)


def _places(line: str, mounted: Path, controller: str) -> Iterator[Path]:
    """Yield the directories that may hold the files of one hierarchy, if the hierarchy has the controller."""
    number, _, rest = line.partition(":")
    controllers, _, group = rest.partition(":")
    if number == "0":
        roots = (mounted, mounted / "unified")
    elif controller in controllers.split(","):
        roots = (mounted / controller, mounted / controllers)
    else:
        return
    for root in dict.fromkeys(roots):
        place = root / group.lstrip("/")
        yield from (place, *(parent for parent in place.parents if parent.is_relative_to(root)))


def _size_bytes(path: Path) -> int | None:
    number = _number(path)
    return number if number is not None and number < _BOUNDLESS_BYTES else None


def _number(path: Path) -> int | None:
    try:
        text = path.read_text(encoding="utf-8").strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None
