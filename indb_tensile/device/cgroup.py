"""The most memory and processor time that this process's control group may use, and every process that it starts.

In a container this is what the container was given; beyond it the kernel kills. A group's parents bind it, too, so
the smallest limit on the way up counts (Linux, admin-guide/cgroup-v2, `memory.max`; in version 1
`memory.limit_in_bytes`).
psutil tells the machine's memory alone.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_BOUNDLESS_BYTES = 1 << 62  # version 1 has no word for it: as many whole pages as a signed number holds


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A control group's memory, and the file that says so."""

    size_bytes: int
    path: Path


def memory_limit(
    membership: Path = Path("/proc/self/cgroup"), mounted: Path = Path("/sys/fs/cgroup")
) -> Limit | None:
    """The smallest limit that binds this process; None where there is none or the system does not tell."""
    try:
        lines = membership.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    found = [limit for line in lines for limit in _limits(line, mounted)]
    return min(found, key=lambda limit: (limit.size_bytes, limit.path), default=None)


def processors(membership: Path = Path("/proc/self/cgroup"), mounted: Path = Path("/sys/fs/cgroup")) -> float | None:
    """How many processors' time the group may use; None where nothing bounds it (`cpu.max`, `cpu.cfs_quota_us`)."""
    try:
        lines = membership.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    found = [share for line in lines for place in _places(line, mounted, "cpu") if (share := _share(place))]
    return min(found, default=None)


def _share(directory: Path) -> float | None:
    try:
        words = (directory / "cpu.max").read_text(encoding="utf-8").split()
    except OSError:
        words = []
    if len(words) == 2 and all(map(str.isdecimal, words)) and int(words[1]):  # else "max 100000"
        return int(words[0]) / int(words[1])
    quota, period = _number(directory / "cpu.cfs_quota_us"), _number(directory / "cpu.cfs_period_us")
    return quota / period if quota and period else None  # without a bound the quota is -1


def free_bytes(limit: Limit) -> int:
    """What the group of this limit may still take: what the page cache holds of files on a disk can be dropped."""
    used_bytes = _number(limit.path.with_name(_USAGE[limit.path.name])) or 0
    told = _statistics(limit.path.with_name("memory.stat"))
    cached_bytes = told.get("total_cache", told.get("file", 0)) - told.get("total_shmem", told.get("shmem", 0))
    return max(0, limit.size_bytes - used_bytes + max(0, cached_bytes))


_USAGE = {"memory.max": "memory.current", "memory.limit_in_bytes": "memory.usage_in_bytes"}


def _statistics(path: Path) -> dict[str, int]:
    """The lines of a memory.stat; in version 1 figures that begin with `total_` include the group's children."""
    try:
        pairs = (line.partition(" ")[::2] for line in path.read_text(encoding="utf-8").splitlines())
        return {name: int(value) for name, value in pairs if value.isdecimal()}
    except OSError:
        return {}


def _limits(line: str, mounted: Path) -> Iterator[Limit]:
    """Those of one hierarchy, `number:controllers:group`, from the group up to what is mounted.

    Where a container sees only its own part of the hierarchy, groups of the host's are not there, and its own is what
    is mounted.
    """
    name = "memory.max" if line.startswith("0:") else "memory.limit_in_bytes"
    for directory in _places(line, mounted, "memory"):
        size_bytes = _size_bytes(directory / name)
        if size_bytes is not None:
            yield Limit(size_bytes=size_bytes, path=directory / name)


def _places(line: str, mounted: Path, controller: str) -> Iterator[Path]:
    """Where the files of one hierarchy may be, if the controller is one of its."""
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
