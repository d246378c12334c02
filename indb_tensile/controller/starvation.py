"""Whether the system has just killed a process for lack of memory, as its own counters say.

A process that is killed so gets SIGKILL, like one that somebody kills. The kernel counts such kills before it sends
the signal: for each control group (`oom_kill` in `memory.events`, in version 1 in `memory.oom_control`) and for the
machine (`oom_kill` in /proc/vmstat), which counts other containers' too and is read only where no group tells.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

RECENT_S = 10.0  # a process that held much memory takes seconds to end
_LOOK_S = 1.0  # between two looks at counters


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """Where the counters are."""

    membership: Path = Path("/proc/self/cgroup")
    mounted: Path = Path("/sys/fs/cgroup")
    machine: Path = Path("/proc/vmstat")

    def kills(self) -> int:
        """How many processes were killed for lack of memory so far, of this group or else of the machine."""
        own = [count for path in self._files() if (count := _count(path)) is not None]
        return sum(own) if own else _count(self.machine) or 0

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
    """Tells whether a kill for lack of memory was counted within the last seconds."""

    def __init__(self, kills: Callable[[], int] | None = None, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._kills = kills or Counters().kills
        self._clock_s = clock_s
        self._known = self._kills()
        self._looked_s = clock_s()
        self._raised_s: float | None = None

    def look(self) -> None:
        """Notice a kill, so that it is known when it was; does nothing where the last look is fresh."""
        if self._clock_s() >= self._looked_s + _LOOK_S:
            self._read()

    def recent(self) -> bool:
        """Whether a process was killed for lack of memory just now."""
        self._read()
        return self._raised_s is not None and self._clock_s() <= self._raised_s + RECENT_S

    def _read(self) -> None:
        kills, self._looked_s = self._kills(), self._clock_s()
        if kills > self._known:
            self._raised_s = self._looked_s
        self._known = kills


def _count(path: Path) -> int | None:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    counts = [line.split()[1] for line in lines if line.startswith("oom_kill ")]
    return int(counts[0]) if counts and counts[0].isdecimal() else None
