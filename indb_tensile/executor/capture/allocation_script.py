"""The allocation script of an operator: what it takes from torch's allocator, in which order, and for how long.

It is the same whenever the operator runs on inputs of the same shapes, so it is recorded once, at calibration. From
it follow the operator's workspace and, with a plan, the address of everything it will ever allocate.
SmartPool (section III-A) reads the same from the requests for memory of one iteration.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import torch

from indb_tensile.device.allocator_shim import Record, Serving
from indb_tensile.executor.capture.record import Call
from indb_tensile.scheduler.graph import OpIndex
from indb_tensile.scheduler.memory.placement import place
from indb_tensile.scheduler.memory.residency import Interval

# Of scratch; a workspace itself is aligned like any tensor. On the processor it is what torch asks for, on a GPU what
# torch's own allocator gives: kernels are chosen by alignment, and so are bits.
ALIGNMENT_BYTES: Final = 64
GPU_ALIGNMENT_BYTES: Final = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """One allocation. `result` says which of the call's results lives in it; without one it is scratch.

    Moments count the operator's allocations and releases: held from `made_at` until before `released_at`.
    """

    size_bytes: int
    result: int | None
    made_at: int
    released_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """What one operator allocates, in order. `steady`: two runs in a row did exactly the same.

    `alignment_bytes`: every scratch lies at a multiple of it.
    """

    allocations: tuple[Allocation, ...]
    steady: bool = True
    alignment_bytes: int = ALIGNMENT_BYTES

    @property
    def workspace_bytes(self) -> int:
        """What the operator needs beside its outputs: room to place its scratch in."""
        return self.packed[1]

    @property
    def packed(self) -> tuple[dict[int, int], int]:
        """Offsets in the workspace by the numbers of the scratch that lies there, and its size."""
        return _packed(self)

    @property
    def lodged(self) -> dict[int, int]:
        """Scratch that is gone before an output is made, and so may lie in its place, by the numbers of both.

        An output's place is the operator's from its start. The largest scratch goes first, to the smallest output
        that holds it; no two are in one output at a time.
        """
        outputs = sorted(
            (one.size_bytes, index) for index, one in enumerate(self.allocations) if one.result is not None
        )
        scratch = sorted((-one.size_bytes, index) for index, one in enumerate(self.allocations) if one.result is None)
        found: dict[int, int] = {}
        for _, index in scratch:
            for _, output in outputs:
                beside = (other for other, host in found.items() if host == output)
                if self._fits(index, output) and not any(self._meet(index, other) for other in beside):
                    found[index] = output
                    break
        return found

    def _fits(self, index: int, output: int) -> bool:
        one, host = self.allocations[index], self.allocations[output]
        return one.size_bytes <= host.size_bytes and one.released_at <= host.made_at

    def _meet(self, index: int, other: int) -> bool:
        one, two = self.allocations[index], self.allocations[other]
        return one.made_at < two.released_at and two.made_at < one.released_at


@lru_cache(maxsize=4096)
def _packed(script: Script) -> tuple[dict[int, int], int]:
    lodged = script.lodged
    scratch = [i for i, one in enumerate(script.allocations) if one.result is None and i not in lodged]
    held = [
        Interval(tensor=None, first=OpIndex(one.made_at), stop=one.released_at, size_bytes=one.size_bytes)
        for one in (script.allocations[i] for i in scratch)
    ]
    placed = place(held, 2 * len(script.allocations) + 1, alignment_bytes=script.alignment_bytes)
    return dict(zip(scratch, placed.offsets, strict=True)), placed.size_bytes


def record_script(serving: Serving, call: Call, run: Callable[[], Any]) -> Script:
    """Run the call until it repeats: twice, and once more where the first run set up what stays.

    cuBLAS is given its workspace by the first product of matrices on a stream, for as long as the process lives.
    """
    last, script = _recorded(serving, call, run), _recorded(serving, call, run)
    if last != script:
        last, script = script, _recorded(serving, call, run)
    alignment_bytes = GPU_ALIGNMENT_BYTES if serving.alone else ALIGNMENT_BYTES
    return Script(allocations=script, steady=last == script, alignment_bytes=alignment_bytes)


def _recorded(serving: Serving, call: Call, run: Callable[[], Any]) -> tuple[Allocation, ...]:
    serving.record()
    with serving.on():
        result = run()
    return tuple(_allocations(serving.recorded(), _owners(call, result)))


def _owners(call: Call, result: Any) -> dict[int, int]:
    """By the address of a storage the first of the new results in it.

    Of results that bear one name a program keeps the last: the others are scratch.
    """
    results = [result] if call.single else list(result or ())
    kept = {name: index for index, name in enumerate(call.results) if name not in call.arguments}
    owners: dict[int, int] = {}
    for index, (name, tensor) in enumerate(zip(call.results, results, strict=False)):
        if isinstance(tensor, torch.Tensor) and name is not None and kept.get(name) == index:
            owners.setdefault(tensor.untyped_storage().data_ptr(), index)
    return owners


def _allocations(records: tuple[Record, ...], owners: dict[int, int]) -> list[Allocation]:
    stop = 2 * len(records)
    return [
        Allocation(
            size_bytes=one.size_bytes,
            result=owners.get(one.address) if one.released_at is None else None,
            made_at=one.made_at,
            released_at=stop if one.released_at is None else one.released_at,
        )
        for one in records
    ]
