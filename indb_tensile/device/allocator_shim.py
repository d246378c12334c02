"""Serves a step program's tensors from the device's arena, through the preloaded shim (native/shim/shim.c).

A trainer's CPU tensors are in the emulated device's memory only while its step program runs. Batches, results and
checkpoints are in ordinary host memory. Serving therefore begins and ends with the program, on its thread.
"""

import ctypes
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from indb_tensile import _native
from indb_tensile.errors import DeviceError

log = logging.getLogger("executor")

LIBRARY: Final = Path(_native.__file__).with_name("_shim.so")
_PRIVATE_BYTES = 1 << 36  # address space of a private arena; memory is allocated only as it is used


def preload_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a process whose tensors are to be served: LD_PRELOAD starts with the shim.

    Returns a copy of the environment if the shim was not built, or if LD_PRELOAD cannot contain its path, because
    LD_PRELOAD separates paths by spaces and colons.
    """
    if not LIBRARY.exists() or not _SEPARATORS.isdisjoint(str(LIBRARY)):
        return dict(environment)
    others = environment.get("LD_PRELOAD", "")
    return {**environment, "LD_PRELOAD": f"{LIBRARY} {others}".strip()}


_SEPARATORS = frozenset(" :")


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationCounters:
    """Counters of the allocations: those at their planned address, and the reasons for the others."""

    planned: int
    unplanned: int  # placed where the arena found room
    mismatched: int  # unplanned because the size differed from the plan's
    occupied: int  # unplanned because the planned address was still in use
    elsewhere: int  # unplanned because an OpenMP thread allocated
    refused: int  # in ordinary memory, because the arena had no room
    others: int  # in ordinary memory, because not torch's own, like oneDNN's scratch
    used_bytes: int
    high_water_bytes: int

    def as_planned_since(self, before: "AllocationCounters") -> bool:
        """Return whether all allocations since `before` were at planned addresses, and the bytes in use are equal."""
        return (self.unplanned, self.refused, self.used_bytes) == (
            before.unplanned,
            before.refused,
            before.used_bytes,
        )


@dataclass(frozen=True, slots=True)
class AllocationRecord:
    """One allocation.

    Times count allocations and releases together. `released_at` is None while it is not released.
    """

    position: int
    size_bytes: int
    address: int
    made_at: int
    released_at: int | None


class ArenaServing:
    """Serves one thread's tensors from one arena. The program writes its position to `position[0]`.

    If `pieces_address` (native/device/pieces.hpp) is set, the arena is a GPU's, and no tensors are in ordinary
    memory.
    """

    def __init__(self, hook_address: int, shim_address: int, pieces_address: int = 0) -> None:
        self.alone = pieces_address != 0
        self.strict = False
        self._private_address = 0
        self._script = _native.Script.create(hook_address, shim_address, pieces_address)
        word = (ctypes.c_uint64 * 1).from_address(self._script.position_address())
        self.position = memoryview(word).cast("B").cast("Q")

    @classmethod
    def of(cls, hook_address: int, pieces_address: int = 0) -> "ArenaServing | None":
        """Serve from the arena behind a `tensile_arena_hook`. Log a warning once and return None without the shim."""
        shim_address = _exported("tensile_shim_serve")
        if shim_address is None:
            _warn_not_preloaded()
            return None
        return cls(hook_address, shim_address, pieces_address)

    @classmethod
    def private(cls) -> "ArenaServing | None":
        """Serve from an arena of this process alone. Return None if the shim is not preloaded."""
        shim_address = _exported("tensile_shim_serve")
        if shim_address is None:
            return None
        address = _native.private_arena(_PRIVATE_BYTES)
        serving = cls(address, shim_address)
        serving._private_address = address
        return serving

    def trim(self) -> None:
        """Return the memory of a private arena to the machine, if nothing is in it."""
        if self._private_address:
            _native.trim_private_arena(self._private_address)

    def be_strict(self, subject: str) -> None:
        """End the process by SIGSEGV from now on if any code touches a swapped-out tensor's place in the block.

        Before that, a report on the standard error output names what lay there; the report starts with `subject`.
        """
        self.strict = True
        self._script.be_strict(subject)

    @contextmanager
    def on(self, sheet: _native.Sheet | None = None) -> Iterator[None]:
        """Serve this thread's allocations in the context.

        `sheet` lists the planned addresses of each position. Allocations that it does not list are placed where the
        arena has room. Raises DeviceError if another thread is served, and in a forked child.
        """
        self.begin(sheet)
        try:
            yield
        finally:
            self.end()

    def begin(self, sheet: _native.Sheet | None = None) -> None:
        """Start serving this thread's allocations."""
        failed = self._script.serve(sheet)
        if failed:
            raise DeviceError(f"torch's tensors cannot be served from the device's memory: {os.strerror(failed)}")

    def end(self) -> None:
        """Stop serving. Served tensors stay where they are."""
        self._script.rest()

    def reserve(self, size_bytes: int, *, gathers: bool = False) -> bool:
        """Set the size of the block for planned offsets. Return False if the arena has no room for it.

        Only the bytes returned by `kept` may be in use; otherwise raises InvariantError. With `gathers`, parts of the
        block that span several regions are allocated anew, so that regions that the block no longer needs can go to
        other jobs.
        """
        return self._script.reserve(size_bytes, gathers)

    def kept(self, size_bytes: int, *, gathers: bool = False) -> int:
        """Return how many bytes from the block's start keep their place if the block gets another size."""
        return self._script.kept(size_bytes, gathers)

    def discard(self, address: int, size_bytes: int) -> None:
        """Return the memory of a range without tensors to the machine. Ignored outside the block and on a GPU.

        Raises InvariantError if a tensor lies in the range.
        """
        if not self.alone:
            self._script.discard(address, size_bytes)

    @property
    def block(self) -> int:
        """The block's address, which does not depend on the block's size."""
        return self._script.block()

    def extend(self, size_bytes: int) -> None:
        """Let planned addresses lie in this many bytes after the block too, whose memory comes and goes."""
        self._script.extend(size_bytes)

    def lend(self, address: int, size_bytes: int) -> None:
        """Serve small allocations that no sheet contains from these bytes. They are not counted as served.

        With `size_bytes` 0, such allocations are served like all others. If an address is given as well, its memory
        is about to be freed, and no allocation in it is used any more.
        """
        self._script.lend(address, size_bytes)

    def record(self) -> None:
        """Start recording every allocation."""
        self._script.record()

    def recorded(self) -> tuple[AllocationRecord, ...]:
        """Stop recording, and return the recorded allocations in order."""
        rows = self._script.recorded()
        return tuple(AllocationRecord(*row[:4], None if row[4] == _NEVER else row[4]) for row in rows)

    def served(self) -> AllocationCounters:
        """Return the counters since the start. `refused` and `others` count for the whole process."""
        planned, unplanned, mismatched, occupied, elsewhere, used_bytes, high_water_bytes = self._script.usage()
        counters = _counters()
        return AllocationCounters(
            planned=planned,
            unplanned=unplanned,
            mismatched=mismatched,
            occupied=occupied,
            elsewhere=elsewhere,
            refused=counters.refused,
            others=counters.others,
            used_bytes=used_bytes,
            high_water_bytes=high_water_bytes,
        )

    def take_excess(self) -> tuple[tuple[int, int], ...]:
        """Return how far positions of the sheet have exceeded their planned allocations since the last call.

        Each position has the largest number of bytes that were in use at once and had no planned place.
        """
        return tuple(self._script.take_excess())

    def reset_high_water(self) -> None:
        """Restart the high-water mark at the present use."""
        self._script.reset_high_water()


_NEVER = (1 << 64) - 1


class _Counters(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("served", "released", "refused", "others", "bytes")]


def _counters() -> _Counters:
    counters = _Counters()
    if _exported("tensile_shim_count") is not None:  # serving a GPU needs no shim
        ctypes.CDLL(None).tensile_shim_count(ctypes.byref(counters))
    return counters


def _exported(name: str) -> int | None:
    try:
        return ctypes.cast(getattr(ctypes.CDLL(None), name), ctypes.c_void_p).value
    except AttributeError:
        return None


@cache
def _warn_not_preloaded() -> None:
    log.warning("%s is not preloaded: tensors are in ordinary memory, the device only counts them", LIBRARY)
