"""The fake CUDA driver (fake_cuda.cpp) as a library that a process may be started with."""

import hashlib
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = ("tests/native/fake_cuda.cpp", "tests/native/fake_queues.cpp", "native/device/fault.cpp")


def build(directory: Path) -> Path:
    """Have it in this directory as libcuda.so.1; compiled once for all tests, until what it is made of changes."""
    kept = ROOT / ".build" / f"cuda-double-{_digest()}"
    if not kept.exists():
        kept.parent.mkdir(exist_ok=True)
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
        shutil.move(made, partial := kept.with_suffix(f".{os.getpid()}"))
        partial.replace(kept)  # whole or not at all: others may be starting with it
    library = directory / "libcuda.so.1"
    shutil.copyfile(kept, library)
    return library


def _digest() -> str:
    found = hashlib.sha256()
    for path in sorted(
        {*map(ROOT.joinpath, SOURCES), *ROOT.glob("tests/native/fake_*"), *ROOT.glob("native/**/*.h*")}
    ):
        found.update(path.read_bytes())
    return found.hexdigest()[:16]


def environment(library: Path, **settings: str) -> Mapping[str, str]:
    """For a process whose driver it is; `settings` are those that fake_cuda.hpp lists."""
    return {**os.environ, "LD_LIBRARY_PATH": str(library.parent), **settings}
