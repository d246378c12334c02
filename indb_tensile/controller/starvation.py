"""Whether the kernel has just ended a process for memory, as its own counters say, or else what the process had.

A process that is killed so gets SIGKILL, like one that somebody kills. The kernel counts such kills before it sends
the signal: for each control group (`oom_kill` in `memory.events`, in version 1 in `memory.oom_control`) and for the
machine (`oom_kill` in /proc/vmstat), which counts other containers' too and is read only where no group tells.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from indb_tensile.executor.hardware import memory
from indb_tensile.scheduler.admission.facts import Ending

RECENT_S = 10.0  # a process that held much memory takes seconds to end
_LOOK_S = 1.0  # between two looks at counters
# From what share of all memory on SIGKILL from outside is put down to the kernel, though no counter says so.
_MOST_OF_ALL = 0.9  # where there are counters, which may be another group's
_MUCH_OF_ALL = 0.5  # where there are none


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """Where the counters are."""

    membership: Path = Path("/proc/self/cgroup")
    mounted: Path = Path("/sys/fs/cgroup")
    machine: Path = Path("/proc/vmstat")

    def kills(self) -> int | None:
        """How many processes were killed for memory so far, of this group or else of the machine; None: not told."""
        own = [count for path in self._files() if (count := _count(path)) is not None]
        return sum(own) if own else _count(self.machine)

    def _files(self) -> list[Path]:
        try:
            lines = self.membership.read_text(encoding="utf-8").splitlines()
        except OSError:
            return []
        found = []
        for line in lines:
            number, _, rest = line.partition(":")
            controllers, _, group = rest.partition(":")
            if number == "0":
                places, name = (self.mounted, self.mounted / "unified"), "memory.events"
            elif "memory" in controllers.split(","):
                places, name = (self.mounted / "memory", self.mounted / controllers), "memory.oom_control"
            else:
                continue
            # Where a container sees only its own part of the hierarchy, its group is what is mounted.
            candidates = [place / part / name for place in dict.fromkeys(places) for part in (group.lstrip("/"), "")]
            found += [path for path in candidates if path.exists()][:1]
        return found


class Starvation:
    """Tells whether a kill for memory was counted within the last seconds, and what SIGKILL means without that."""

    def __init__(
        self,
        kills: Callable[[], int | None] | None = None,
        clock_s: Callable[[], float] = time.monotonic,
        memory_bytes: Callable[[], int] = lambda: memory().size_bytes,
    ) -> None:
        self._memory_bytes = memory_bytes
        self._kills = kills or Counters().kills
        self._clock_s = clock_s
        self._known = self._kills()
        self._looked_s = clock_s()
        self._raised_s: float | None = None

    def look(self) -> None:
        """Notice a kill, so that it is known when it was; does nothing where the last look is fresh."""
        if self._clock_s() >= self._looked_s + _LOOK_S:
            self._read()

    @property
    def memory_bytes(self) -> int:
        """What the machine or its container has now."""
        return self._memory_bytes()

    def judge(self, peak_bytes: int) -> Ending:
        """Who sent SIGKILL to a process of ours, if we did not; `peak_bytes` is the most memory that it had."""
        if self.recent():
            return Ending.STARVED
        share = _MOST_OF_ALL if self._known is not None else _MUCH_OF_ALL
        return Ending.PROBABLY_STARVED if peak_bytes >= share * self.memory_bytes else Ending.OUTSIDE

    def recent(self) -> bool:
        """Whether a process was killed for memory just now."""
        self._read()
        return self._raised_s is not None and self._clock_s() <= self._raised_s + RECENT_S

    def _read(self) -> None:
        kills, self._looked_s = self._kills(), self._clock_s()
        if kills is not None and self._known is not None and kills > self._known:
            self._raised_s = self._looked_s
        self._known = kills


def _count(path: Path) -> int | None:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    counts = [line.split()[1] for line in lines if line.startswith("oom_kill ")]
    return int(counts[0]) if counts and counts[0].isdecimal() else None
