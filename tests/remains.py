"""Find what a test leaves on the machine: a process's open descriptors and mappings, files in shared memory, and
processes of a service.
"""

import gc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

# Parts of the names of mappings that may be a device's memory or its ledger.
_SHARED_MEMORY = ("memfd:", "/dev/shm/")


@dataclass(frozen=True)
class Remains:
    """The descriptors and mappings of this process, and the files of the project in shared memory."""

    descriptors: Counter[str]
    mappings: Counter[str]
    files: frozenset[Path]

    @classmethod
    def now(cls) -> "Remains":
        """Return what exists now, after a garbage collection."""
        gc.collect()
        lines = Path("/proc/self/maps").read_text().splitlines()
        return cls(
            descriptors=Counter(_descriptors()),
            mappings=Counter(line.split()[-1] for line in lines if any(word in line for word in _SHARED_MEMORY)),
            files=frozenset(entry for entry in Path("/dev/shm").iterdir() if "tensile" in entry.name),
        )


@contextmanager
def nothing_remains() -> Iterator[None]:
    """Check that everything made in the block is gone at its end: descriptors, mappings and files."""
    before = Remains.now()
    yield
    assert Remains.now() == before


def processes_with(text: str) -> list[int]:
    """Return the processes whose initial environment contains `text`, such as a database's name."""
    process_ids = []
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # the process has ended, or belongs to another user
            if text.encode() in environment.read_bytes():
                process_ids.append(int(environment.parent.name))
    return process_ids


def _descriptors() -> Iterator[str]:
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the descriptor of this listing, closed by now
            yield str(descriptor.readlink())
