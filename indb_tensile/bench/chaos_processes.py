"""Processes as /proc shows them: who is whose child, what they are called, how much memory they have had."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_GONE = (FileNotFoundError, ProcessLookupError, PermissionError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process that runs, or ran a moment ago."""

    pid: int
    parent: int
    name: str

    def serves(self, roles: Sequence[str]) -> bool:
        """Whether it is a PostgreSQL backend of one of these roles, by the title that the server gives it."""
        try:
            title = Path(f"/proc/{self.pid}/cmdline").read_bytes().decode(errors="replace")
        except _GONE:
            return False
        return title.startswith(tuple(f"postgres: {role} " for role in roles))


def every() -> Iterator[Process]:
    """All processes but zombies, by number."""
    for path in sorted(Path("/proc").glob("[0-9]*"), key=lambda path: int(path.name)):
        with suppress(*_GONE):
            before, _, after = (path / "stat").read_text().rpartition(")")
            state, parent = after.split()[:2]
            if state != "Z":
                yield Process(pid=int(path.name), parent=int(parent), name=before.partition("(")[2])


def marked(words: str) -> list[int]:
    """Processes that were started with these words in their environment; zombies are none."""
    found = []
    for process in every():
        with suppress(*_GONE):
            if f"{words}\0".encode() in Path(f"/proc/{process.pid}/environ").read_bytes():
                found.append(process.pid)
    return found


def peak_bytes(pid: int) -> int:
    """The most memory that a process has had resident at once; 0 for one that is gone."""
    with suppress(*_GONE):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


def descriptors(pid: int) -> int:
    """How many files a process has open; 0 for one that is gone."""
    with suppress(*_GONE):
        return len(list(Path(f"/proc/{pid}/fd").iterdir()))
    return 0
