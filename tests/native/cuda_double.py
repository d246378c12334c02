"""Build the fake CUDA driver (fake_cuda.cpp) as a library, and run processes with it."""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).parents[2]
FAKES = ("fake_cuda", "fake_device", "fake_memory", "fake_queues")
SOURCES = (*(f"tests/native/{name}.cpp" for name in FAKES), "native/device/fault.cpp")


def build(directory: Path) -> Path:
    """Copy the driver to this directory as libcuda.so.1. It is compiled again only when its sources change."""
    compiled = ROOT / ".build" / f"cuda-double-{_digest()}"
    if not compiled.exists():
        compiled.parent.mkdir(exist_ok=True)
        made = directory / "made.so"
        subprocess.run(
            [
                "c++",
                "-std=c++20",
                "-O1",
                "-shared",
                "-fPIC",
                "-Inative",
                "-Inative/device",
                "-Itests/native",
                *SOURCES,
                "-o",
                str(made),
            ],
            cwd=ROOT,
            check=True,
            timeout=250,
        )
        shutil.move(made, partial := compiled.with_suffix(f".{os.getpid()}"))
        partial.replace(compiled)  # atomic, because other processes may be loading the library
    library = directory / "libcuda.so.1"
    shutil.copyfile(compiled, library)
    return library


def _digest() -> str:
    digest = hashlib.sha256()
    for path in sorted(
        {*map(ROOT.joinpath, SOURCES), *ROOT.glob("tests/native/fake_*"), *ROOT.glob("native/**/*.h*")}
    ):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def physical_bytes(root: int) -> int:
    """Return the double's physical memory that this process and its descendants have open or mapped.

    Physical memory is a file in memory, which exists until no process has it open or mapped. Each file counts once.
    """
    sizes: dict[str, int] = {}
    for pid in _descendants(root):
        with suppress(OSError):  # the process ends meanwhile
            for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
                if _MEMORY in line:
                    bounds, _, _, _, inode, *_ = line.split()
                    begin, end = (int(bound, 16) for bound in bounds.split("-"))
                    sizes[inode] = max(end - begin, sizes.get(inode, 0))
            for entry in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(OSError):
                    if _MEMORY in entry.readlink().name:
                        facts = entry.stat()
                        sizes[str(facts.st_ino)] = facts.st_size
    return sum(sizes.values())


_MEMORY = "memfd:fake-cuda-memory"


def _descendants(root: int) -> Iterator[int]:
    yield root
    children: list[str] = []
    with suppress(OSError):  # the process ends meanwhile
        for task in list(Path(f"/proc/{root}/task").iterdir()):
            with suppress(OSError):  # the thread ends meanwhile
                children += (task / "children").read_text().split()
    for child in children:
        yield from _descendants(int(child))


def environment(library: Path, **settings: str) -> Mapping[str, str]:
    """Return the environment of a process with this driver. fake_cuda.hpp lists the `settings`."""
    return {**os.environ, "LD_LIBRARY_PATH": str(library.parent), **settings}


def run(source: str, variables: Mapping[str, str], *arguments: str) -> str:
    """Run this source in a process with these variables. Return its output."""
    done = subprocess.run(
        [sys.executable, "-c", source, *arguments],
        env=variables,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
