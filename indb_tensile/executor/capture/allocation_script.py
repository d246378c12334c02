"""The allocation script of an operator: its allocations from torch's allocator, their order, and their lifetimes.

The script is the same whenever the operator runs on inputs of the same shapes, so it is recorded once, at
calibration. It determines the operator's workspace and, with a plan, the address of all its allocations. SmartPool
(section III-A) derives the same information from the memory requests of one iteration.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

import torch

from indb_tensile.device.allocator_shim import AllocationRecord, ArenaServing
from indb_tensile.executor.capture.record import Call
from indb_tensile.scheduler.graph import OpIndex
from indb_tensile.scheduler.memory.residency import Interval
from indb_tensile.scheduler.memory.tensor_placement import place

# The alignment of scratch; a workspace is aligned like any tensor. On the processor it is the alignment that torch
# requests, on a GPU that of torch's own allocator, because kernels, and so bits, are chosen by alignment.
ALIGNMENT_BYTES: Final = 64
GPU_ALIGNMENT_BYTES: Final = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """One allocation. `result` is the index of the call's result in it, or None for scratch.

    Times count the operator's allocations and releases. The memory is in use from `made_at` until before
    `released_at`.
    """

    size_bytes: int
    result: int | None
    made_at: int
    released_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationScript:
    """The allocations of one operator, in order. `steady`: two consecutive runs made exactly the same allocations.

    All scratch lies at multiples of `alignment_bytes`.
    """

    allocations: tuple[Allocation, ...]
    steady: bool = True
    alignment_bytes: int = ALIGNMENT_BYTES

    @property
    def workspace_bytes(self) -> int:
        """The memory that the operator needs in addition to its outputs, in which its scratch is placed."""
        return self.packed[1]

    def with_first_result(self) -> "AllocationScript":
        """Return the script of the same call if its first result is kept, which this call drops.

        Of all scratch, only that result was still in use when the call returned.
        """
        stop = 2 * len(self.allocations)
        kept = (
            replace(allocation, result=0)
            if allocation.result is None and allocation.released_at == stop
            else allocation
            for allocation in self.allocations
        )
        return replace(self, allocations=tuple(kept))

    @property
    def packed(self) -> tuple[dict[int, int], int]:
        """The offset of each scratch allocation in the workspace, by index, and the workspace's size."""
        return _packed(self)

    @property
    def lodged(self) -> dict[int, int]:
        """The scratch that is placed inside an output, by index, with the index of the output.

        Such scratch is released before the output is made, and the output's memory belongs to the operator from its
        start. The largest scratch is placed first, in the smallest output that holds it. Scratch in one output never
        overlaps in time.
        """
        outputs = sorted(
            (allocation.size_bytes, index)
            for index, allocation in enumerate(self.allocations)
            if allocation.result is not None
        )
        scratch = sorted(
            (-allocation.size_bytes, index)
            for index, allocation in enumerate(self.allocations)
            if allocation.result is None
        )
        output_of: dict[int, int] = {}
        for _, index in scratch:
            for _, output in outputs:
                beside = (other for other, host in output_of.items() if host == output)
                if self._fits(index, output) and not any(self._overlap(index, other) for other in beside):
                    output_of[index] = output
                    break
        return output_of

    def _fits(self, index: int, output: int) -> bool:
        scratch, host = self.allocations[index], self.allocations[output]
        return scratch.size_bytes <= host.size_bytes and scratch.released_at <= host.made_at

    def _overlap(self, index: int, other: int) -> bool:
        first, second = self.allocations[index], self.allocations[other]
        return first.made_at < second.released_at and second.made_at < first.released_at


@lru_cache(maxsize=4096)
def _packed(script: AllocationScript) -> tuple[dict[int, int], int]:
    lodged = script.lodged
    scratch = [i for i, allocation in enumerate(script.allocations) if allocation.result is None and i not in lodged]
    lifetimes = [
        Interval(
            tensor=None,
            first=OpIndex(allocation.made_at),
            stop=allocation.released_at,
            size_bytes=allocation.size_bytes,
        )
        for allocation in (script.allocations[i] for i in scratch)
    ]
    placed = place(lifetimes, 2 * len(script.allocations) + 1, alignment_bytes=script.alignment_bytes)
    return dict(zip(scratch, placed.offsets, strict=True)), placed.size_bytes


def record_script(serving: ArenaServing, call: Call, run: Callable[[], Any]) -> AllocationScript:
    """Run the call until it repeats: twice, and a third time if the first two runs differ.

    They differ if the first run sets up lasting state. For example, cuBLAS allocates a workspace at the first matrix
    product on a stream and keeps it for the life of the process.
    """
    last, script = _record_run(serving, call, run), _record_run(serving, call, run)
    if last != script:
        last, script = script, _record_run(serving, call, run)
    alignment_bytes = GPU_ALIGNMENT_BYTES if serving.alone else ALIGNMENT_BYTES
    return AllocationScript(allocations=script, steady=last == script, alignment_bytes=alignment_bytes)


def _record_run(serving: ArenaServing, call: Call, run: Callable[[], Any]) -> tuple[Allocation, ...]:
    serving.record()
    with serving.on():
        result = run()
    return tuple(_allocations(serving.recorded(), _owners(call, result)))


def _owners(call: Call, result: Any) -> dict[int, int]:
    """Map the address of each new storage to the index of the first result in it.

    If several results have one name, the program keeps the last; the others count as scratch.
    """
    results = [result] if call.single else list(result or ())
    last_index = {name: index for index, name in enumerate(call.results) if name not in call.arguments}
    owners: dict[int, int] = {}
    for index, (name, tensor) in enumerate(zip(call.results, results, strict=False)):
        if isinstance(tensor, torch.Tensor) and name is not None and last_index.get(name) == index:
            owners.setdefault(tensor.untyped_storage().data_ptr(), index)
    return owners


def _allocations(records: tuple[AllocationRecord, ...], owners: dict[int, int]) -> list[Allocation]:
    stop = 2 * len(records)
    return [
        Allocation(
            size_bytes=record.size_bytes,
            result=owners.get(record.address) if record.released_at is None else None,
            made_at=record.made_at,
            released_at=stop if record.released_at is None else record.released_at,
        )
        for record in records
    ]
