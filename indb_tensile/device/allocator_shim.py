"""Memory for a step program's tensors from the device's arena, through the preloaded shim (native/shim/shim.c).

A trainer's CPU tensors are the emulated device's, but only while its step program runs: batches, results and
checkpoints are the host's. So serving begins and ends around the program, on its thread.
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
_PRIVATE_BYTES = 1 << 36  # of address space; memory is what is asked for


def preloading(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment for a process whose tensors are to be served: the shim comes before what else is preloaded.

    Unchanged where the shim was not built, or lies where LD_PRELOAD, a list with spaces and colons, cannot name it.
    """
    if not LIBRARY.exists() or not _SEPARATORS.isdisjoint(str(LIBRARY)):
        return dict(environment)
    others = environment.get("LD_PRELOAD", "")
    return {**environment, "LD_PRELOAD": f"{LIBRARY} {others}".strip()}


_SEPARATORS = frozenset(" :")


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What became of the allocations: at their planned address, or why not."""

    planned: int
    unplanned: int  # took what the arena found
    mismatched: int  # of those, of another size than foreseen
    occupied: int  # of those, with something else still at the planned address
    elsewhere: int  # of those, by OpenMP threads
    refused: int  # the arena had no room: ordinary memory
    others: int  # not torch's own, like oneDNN's scratch: ordinary memory
    used_bytes: int
    high_water_bytes: int

    def as_planned_since(self, before: "Served") -> bool:
        """Whether all that was allocated since lies where it was planned, and no more is there than was."""
        return (self.unplanned, self.refused, self.used_bytes) == (
            before.unplanned,
            before.refused,
            before.used_bytes,
        )


@dataclass(frozen=True, slots=True)
class Record:
    """One allocation. Moments count allocations and releases together; None where it is still there."""

    position: int
    size_bytes: int
    address: int
    made_at: int
    released_at: int | None


class Serving:
    """Serves one thread's tensors from one arena. `position[0]` is where the program is.

    Where the block is made of `pieces_address`'s (native/device/pieces.hpp) the arena is a GPU's, and there are no
    tensors in ordinary memory.
    """

    def __init__(self, hook_address: int, shim_address: int, pieces_address: int = 0) -> None:
        self.alone = pieces_address != 0
        self._private_address = 0
        self._script = _native.Script.create(hook_address, shim_address, pieces_address)
        word = (ctypes.c_uint64 * 1).from_address(self._script.position_address())
        self.position = memoryview(word).cast("B").cast("Q")

    @classmethod
    def of(cls, hook_address: int, pieces_address: int = 0) -> "Serving | None":
        """Serve from the arena behind a `tensile_arena_hook`; None, said once, where the shim is not preloaded."""
        shim_address = _exported("tensile_shim_serve")
        if shim_address is None:
            _say_missing()
            return None
        return cls(hook_address, shim_address, pieces_address)

    @classmethod
    def private(cls) -> "Serving | None":
        """Serve from an arena of this process alone; None where the shim is not preloaded."""
        shim_address = _exported("tensile_shim_serve")
        if shim_address is None:
            return None
        address = _native.private_arena(_PRIVATE_BYTES)
        serving = cls(address, shim_address)
        serving._private_address = address
        return serving

    def trim(self) -> None:
        """Give the memory of an arena of this process alone back to the machine, if nothing is in it."""
        if self._private_address:
            _native.trim_private_arena(self._private_address)

    def be_strict(self, who: str) -> None:
        """From now on whoever touches what is away, in the block, ends the process by SIGSEGV.

        What lay there is said on the standard error output before, after `who`.
        """
        self._script.be_strict(who)

    @contextmanager
    def on(self, sheet: _native.Sheet | None = None) -> Iterator[None]:
        """Serve what this thread allocates meanwhile, at the sheet's addresses where it names any.

        Raises DeviceError where another thread is served, and in a forked child.
        """
        self.begin(sheet)
        try:
            yield
        finally:
            self.end()

    def begin(self, sheet: _native.Sheet | None = None) -> None:
        """Serve from now on."""
        failed = self._script.serve(sheet)
        if failed:
            raise DeviceError(f"torch's tensors cannot be served from the device's memory: {os.strerror(failed)}")

    def end(self) -> None:
        """No longer; what was served stays where it is."""
        self._script.rest()

    def reserve(self, size_bytes: int, *, gathers: bool = False) -> bool:
        """Have a block of this size for planned offsets; False where the arena has no room for it.

        Nothing may lie in it beyond what is `kept`. Raises InvariantError where something does. Who gathers has parts
        of it that lie across regions taken anew: what the block does not need of regions can then go to other jobs.
        """
        return self._script.reserve(size_bytes, gathers)

    def kept(self, size_bytes: int, *, gathers: bool = False) -> int:
        """How many bytes from the block's start stay as they are when it is reserved with another size."""
        return self._script.kept(size_bytes, gathers)

    def discard(self, address: int, size_bytes: int) -> None:
        """Return the memory of a range without tensors to the machine. Ignored outside the block and on a GPU.

        Raises InvariantError where a tensor lies in it.
        """
        if not self.alone:
            self._script.discard(address, size_bytes)

    @property
    def block(self) -> int:
        """The block's address, whatever its size."""
        return self._script.block()

    def lend(self, address: int, size_bytes: int) -> None:
        """Few words that no sheet names come from these bytes from now on, and count as nothing that was served.

        0 bytes: such words are served as all else is. An address with 0 bytes: the memory there goes, and no word in
        it is used any more.
        """
        self._script.lend(address, size_bytes)

    def record(self) -> None:
        """Keep every allocation from now on."""
        self._script.record()

    def recorded(self) -> tuple[Record, ...]:
        """What was kept, in order; keeps no more."""
        rows = self._script.recorded()
        return tuple(Record(*row[:4], None if row[4] == _NEVER else row[4]) for row in rows)

    def served(self) -> Served:
        """The counters since the start; what was refused or others' is of the whole process."""
        planned, unplanned, mismatched, occupied, elsewhere, used_bytes, high_water_bytes = self._script.usage()
        counters = _counters()
        return Served(
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

    def reset_high_water(self) -> None:
        """Start a new high-water mark at the present use."""
        self._script.reset_high_water()


_NEVER = (1 << 64) - 1


class _Counters(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("served", "released", "refused", "others", "bytes")]


def _counters() -> _Counters:
    counters = _Counters()
    if _exported("tensile_shim_count") is not None:  # a GPU is served without it
        ctypes.CDLL(None).tensile_shim_count(ctypes.byref(counters))
    return counters


def _exported(name: str) -> int | None:
    try:
        return ctypes.cast(getattr(ctypes.CDLL(None), name), ctypes.c_void_p).value
    except AttributeError:
        return None


@cache
def _say_missing() -> None:
    log.warning("%s is not preloaded: tensors are in ordinary memory, the device only counts them", LIBRARY)
