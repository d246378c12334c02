"""The fake CUDA driver (fake_cuda.cpp) as a library that a process may be started with."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = ("tests/native/fake_cuda.cpp", "tests/native/fake_queues.cpp", "native/fault.cpp")


def build(directory: Path) -> Path:
    """Compile it into this directory as libcuda.so.1."""
    library = directory / "libcuda.so.1"
    subprocess.run(
        ["c++", "-std=c++20", "-O1", "-shared", "-fPIC", "-Inative", "-Itests/native", *SOURCES, "-o", str(library)],
        cwd=ROOT,
        check=True,
        timeout=250,
    )
    return library


def environment(library: Path, **settings: str) -> Mapping[str, str]:
    """For a process whose driver it is; `settings` are those that fake_cuda.hpp lists."""
    return {**os.environ, "LD_LIBRARY_PATH": str(library.parent), **settings}
