"""Reads processes from /proc: parents, names, memory and open files."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_GONE = (FileNotFoundError, ProcessLookupError, PermissionError)  # the process has ended, or belongs to another user


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessInfo:
    """A process that ran when /proc was read."""

    pid: int
    parent: int
    name: str

    def serves(self, roles: Sequence[str]) -> bool:
        """Return whether the process is a PostgreSQL backend of one of `roles`, by the title that the server sets."""
        try:
            title = Path(f"/proc/{self.pid}/cmdline").read_bytes().decode(errors="replace")
        except _GONE:
            return False
        return title.startswith(tuple(f"postgres: {role} " for role in roles))


def all_processes() -> Iterator[ProcessInfo]:
    """Yield all processes except zombies, by process id."""
    for path in sorted(Path("/proc").glob("[0-9]*"), key=lambda path: int(path.name)):
        with suppress(*_GONE):
            before, _, after = (path / "stat").read_text().rpartition(")")
            state, parent = after.split()[:2]
            if state != "Z":
                yield ProcessInfo(pid=int(path.name), parent=int(parent), name=before.partition("(")[2])


def pids_with_environment(words: str) -> list[int]:
    """Return the ids of processes with `words` (NAME=value) in the environment that they started with; no zombies."""
    pids = []
    for process in all_processes():
        with suppress(*_GONE):
            if f"{words}\0".encode() in Path(f"/proc/{process.pid}/environ").read_bytes():
                pids.append(process.pid)
    return pids


def peak_bytes(pid: int) -> int:
    """Return the peak resident memory of a process; 0 if the process has ended."""
    with suppress(*_GONE):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


def descriptors(pid: int) -> Counter[str]:
    """Return the open files of a process, counted by what they are. Numbers are masked. Empty if it has ended."""
    kinds: Counter[str] = Counter()
    with suppress(*_GONE):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # the file was closed meanwhile
                kinds[re.sub(r"\d+", "N", str(entry.readlink()))] += 1
    return kinds
