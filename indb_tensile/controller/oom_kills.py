"""Tells whether the kernel killed a process because memory ran out.

Such a process gets SIGKILL, as if a user had killed it. The kernel counts these kills before it sends the signal: for
each control group (`oom_kill` in `memory.events`; version 1: in `memory.oom_control`) and for the whole machine
(`oom_kill` in /proc/vmstat). The machine's counter includes other containers, so it is read only if no control group
has a counter. If no counter has risen, the kill is judged by the peak memory of the process.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from indb_tensile.device.hardware import memory
from indb_tensile.scheduler.admission.events import ExitCause

RECENT_S = 10.0  # a process with much memory takes seconds to end
_READ_INTERVAL_S = 1.0  # between two reads of the counters
# If no counter has risen, a SIGKILL from outside still counts as a kill for memory when the process had at least this
# share of all memory.
_SHARE_WITH_COUNTERS = 0.9  # if there are counters; they may be another group's
_SHARE_WITHOUT_COUNTERS = 0.5  # if there are no counters


@dataclass(frozen=True, slots=True, kw_only=True)
class OomCounters:
    """The files of the kernel's counters."""

    membership: Path = Path("/proc/self/cgroup")
    mounted: Path = Path("/sys/fs/cgroup")
    machine: Path = Path("/proc/vmstat")

    def kills(self) -> int | None:
        """Return how many processes were killed for memory so far, or None if no counter can be read.

        Counts the kills of this process's control groups, or of the machine if the groups have no counter.
        """
        group_kills = [count for path in self._files() if (count := _count(path)) is not None]
        return sum(group_kills) if group_kills else _count(self.machine)

    def _files(self) -> list[Path]:
        try:
            lines = self.membership.read_text(encoding="utf-8").splitlines()
        except OSError:
            return []
        files = []
        for line in lines:
            number, _, rest = line.partition(":")
            controllers, _, group = rest.partition(":")
            if number == "0":
                places, name = (self.mounted, self.mounted / "unified"), "memory.events"
            elif "memory" in controllers.split(","):
                places, name = (self.mounted / "memory", self.mounted / controllers), "memory.oom_control"
            else:
                continue
            # A container may see only its own part of the hierarchy: then its group is the mount point itself.
            candidates = [place / part / name for place in dict.fromkeys(places) for part in (group.lstrip("/"), "")]
            files += [path for path in candidates if path.exists()][:1]
        return files


class OomKills:
    """Tells whether a kill for memory was counted in the last seconds, and judges a SIGKILL if none was."""

    def __init__(
        self,
        kills: Callable[[], int | None] | None = None,
        clock_s: Callable[[], float] = time.monotonic,
        memory_bytes: Callable[[], int] = lambda: memory().size_bytes,
    ) -> None:
        self._memory_bytes = memory_bytes
        self._kills = kills or OomCounters().kills
        self._clock_s = clock_s
        self._last_kills = self._kills()
        self._read_at_s = clock_s()
        self._killed_at_s: float | None = None

    def look(self) -> None:
        """Read the counters, so that the time of a kill is known. Does nothing within 1 s of the last read."""
        if self._clock_s() >= self._read_at_s + _READ_INTERVAL_S:
            self._read()

    @property
    def memory_bytes(self) -> int:
        """The memory of the machine or of its container, in bytes."""
        return self._memory_bytes()

    def judge(self, peak_bytes: int) -> ExitCause:
        """Return how a process ended that got a SIGKILL which this controller did not send.

        `peak_bytes` is the peak memory of the process.
        """
        if self.recent():
            return ExitCause.STARVED
        share = _SHARE_WITH_COUNTERS if self._last_kills is not None else _SHARE_WITHOUT_COUNTERS
        return ExitCause.PROBABLY_STARVED if peak_bytes >= share * self.memory_bytes else ExitCause.OUTSIDE

    def recent(self) -> bool:
        """Return whether a process was killed for memory in the last 10 s."""
        self._read()
        return self._killed_at_s is not None and self._clock_s() <= self._killed_at_s + RECENT_S

    def _read(self) -> None:
        kills, self._read_at_s = self._kills(), self._clock_s()
        if kills is not None and self._last_kills is not None and kills > self._last_kills:
            self._killed_at_s = self._read_at_s
        self._last_kills = kills


def _count(path: Path) -> int | None:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    counts = [line.split()[1] for line in lines if line.startswith("oom_kill ")]
    return int(counts[0]) if counts and counts[0].isdecimal() else None
