"""A process that answers test_allocator_shim.py: it runs with the shim preloaded."""

import contextlib
import ctypes
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from indb_tensile import _native
from indb_tensile.device.allocator_shim import ArenaServing
from indb_tensile.errors import DeviceError
from tests.device.preloaded import answer

_MIB = 1 << 20


class _Arena:
    """A private arena and its range of addresses."""

    def __init__(self, limit_bytes: int = 1 << 30) -> None:
        self.hook_address = _native.private_arena(limit_bytes)
        self._range = (ctypes.c_uint64 * 5).from_address(self.hook_address)[3:5]
        serving = ArenaServing.of(self.hook_address)
        assert serving is not None
        self.serving = serving

    def holds(self, address: int) -> bool:
        return bool(self._range[0] <= address < self._range[1])


_arena = _Arena()


@contextlib.contextmanager
def _served() -> Iterator[_Arena]:
    with _arena.serving.on():
        yield _arena


def environment_of_children() -> list[str | None]:
    """Return LD_PRELOAD of this process, and LD_PRELOAD and the presence of the shim in a new child."""
    shown = subprocess.run((sys.executable, "-c", _SHOW), capture_output=True, text=True, check=True)
    return [os.environ.get("LD_PRELOAD"), *shown.stdout.split()]


_SHOW = """
import ctypes, os
print(os.environ.get("LD_PRELOAD"), hasattr(ctypes.CDLL(None), "tensile_shim_serve"))
"""


def tensors() -> list[bool]:
    """Return whether tensors are in the arena before, while and after they are served."""
    before = torch.ones(1000)
    with _served() as arena:
        made = [torch.ones(1000), torch.ones(30, 40) @ torch.ones(40, 50), torch.arange(5).to(torch.float64)]
    after = torch.ones(1000)
    return [arena.holds(t.data_ptr()) for t in (before, *made, after)]


def another_librarys_scratch() -> dict[str, int]:
    """Return the scratch of a direct call of torch's allocation function, and of a convolution by oneDNN."""
    address = ctypes.c_void_p()
    with _served() as arena:
        before = arena.serving.served()
        ctypes.CDLL(None).posix_memalign(ctypes.byref(address), 64, 4096)
        direct = arena.serving.served()
        torch.nn.functional.conv2d(torch.ones(4, 16, 33, 33), torch.ones(32, 16, 3, 3))
        after = arena.serving.served()
    inside = arena.holds(address.value or 0)
    ctypes.CDLL(None).free(address)
    return {
        "inside": int(inside),
        "direct": direct.others - before.others,
        "direct served": direct.unplanned - before.unplanned,
        "by a convolution": after.others - direct.others,
    }


def resized() -> list[Any]:
    """Grow and shrink a storage. Return each time whether it is in the arena, and the bytes used."""
    results: list[Any] = []
    storage = torch.empty(0, dtype=torch.uint8).untyped_storage()
    before = _arena.serving.served().used_bytes
    for size_bytes in (1000, 0, 70_000, 10, 0):
        with _served() as arena:
            storage.resize_(size_bytes)
        used_bytes = arena.serving.served().used_bytes - before
        results.append([arena.holds(storage.data_ptr()), used_bytes])
    return results


def freed_by_another_thread() -> list[int]:
    """Return the bytes used before a tensor is made, while it lives, and after another thread has freed it."""
    used = [_arena.serving.served().used_bytes]
    with _served():
        owned = [torch.ones(1000)]
        used.append(_arena.serving.served().used_bytes)
        thread = threading.Thread(target=owned.clear)
        thread.start()
        thread.join()
    return [*used, _arena.serving.served().used_bytes]


def allocated_by_another_thread() -> list[Any]:
    """Allocate in another thread while the main thread is served, and let that thread request to be served."""
    results: list[Any] = []

    def load() -> None:
        results.append(_arena.holds(torch.ones(1000).data_ptr()))
        try:
            _arena.serving.begin()
        except DeviceError as error:
            results.append(error.message)

    with _served():
        thread = threading.Thread(target=load)
        thread.start()
        thread.join()
        results.append(_arena.holds(torch.ones(1000).data_ptr()))
    return results


def allocated_by_openmp() -> dict[str, int]:
    """Let four OpenMP threads allocate as torch does, for the served thread and for another thread."""
    maps = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    paths = {name: line.split()[-1] for line in maps for name in ("libgomp", "libc10.so") if f"/{name}" in line}
    parallel = ctypes.CDLL(paths["libgomp"]).GOMP_parallel
    allocate = ctypes.cast(ctypes.CDLL(paths["libc10.so"])._ZN3c109alloc_cpuEm, ctypes.c_void_p)

    def team() -> None:
        parallel(allocate, ctypes.c_void_p(64), 4, 0)

    before = _arena.serving.served()
    team()  # creates the team's threads before they are served
    with _served():
        team()
        served = _arena.serving.served()
        thread = threading.Thread(target=team)
        thread.start()
        thread.join()
    after = _arena.serving.served()
    return {
        "served": served.unplanned - before.unplanned,
        "by workers": served.elsewhere - before.elsewhere,
        "another thread's": after.unplanned - served.unplanned,
    }


def forked() -> list[Any]:
    """Free a tensor, make a tensor and request to be served, all in a forked child. The parent must see no change."""
    with _served():
        parents = [torch.ones(1000)]
        used_bytes = _arena.serving.served().used_bytes
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            parents.clear()
            report = str(_arena.holds(torch.ones(1000).data_ptr()))
            try:
                _arena.serving.begin()
            except DeviceError as error:
                report += f" {error.message}"
            os.write(writer, report.encode())
            os._exit(0)
        _, status = os.waitpid(child, 0)
    report = os.read(reader, 1000).decode()
    same = _arena.serving.served().used_bytes == used_bytes
    return [status, report, same, _arena.holds(parents[0].data_ptr())]


def full() -> dict[str, Any]:
    """Make a tensor of two MiB and a small one in an arena of one MiB."""
    small = _Arena(_MIB)
    before = small.serving.served()
    with small.serving.on():
        large = torch.ones(2 * _MIB, dtype=torch.uint8)
        fits = torch.ones(1000)
    after = small.serving.served()
    return {
        "inside": [small.holds(t.data_ptr()) for t in (large, fits)],
        "sum": int(large.sum()),
        "refused": after.refused - before.refused,
        "counted": asdict(after)["used_bytes"],
    }


if __name__ == "__main__":
    answer(sys.modules["__main__"])
