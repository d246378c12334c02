"""What is left on a machine: a process's descriptors and mappings, files in shared memory, processes of a service."""

import gc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

_OURS = ("memfd:", "/dev/shm/")  # in the names of mappings that may be a device's memory or its ledger


@dataclass(frozen=True)
class Remains:
    """What this process has open and mapped, and what lies in shared memory under our name."""

    descriptors: Counter[str]
    mappings: Counter[str]
    files: frozenset[Path]

    @classmethod
    def now(cls) -> "Remains":
        gc.collect()
        lines = Path("/proc/self/maps").read_text().splitlines()
        return cls(
            descriptors=Counter(_descriptors()),
            mappings=Counter(line.split()[-1] for line in lines if any(word in line for word in _OURS)),
            files=frozenset(entry for entry in Path("/dev/shm").iterdir() if "tensile" in entry.name),
        )


@contextmanager
def nothing_remains() -> Iterator[None]:
    """Whatever is made inside is gone at the end: no descriptor, no mapping, no file."""
    before = Remains.now()
    yield
    assert Remains.now() == before


def processes_with(words: str) -> list[int]:
    """The processes whose first environment holds these words, such as a database's name."""
    found = []
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # it has ended, or is another user's
            if words.encode() in environment.read_bytes():
                found.append(int(environment.parent.name))
    return found


def _descriptors() -> Iterator[str]:
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the one that lists them
            yield str(descriptor.readlink())
