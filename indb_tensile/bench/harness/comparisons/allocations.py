"""Measures the memory of an eager PyTorch training step from the events of torch's allocator.

The profiler reports each allocation and release with its address, for operators' results and workspaces alike, so the
allocated bytes are known exactly at every moment. Tensors allocated before are not among the events: parameters,
buffers and optimizer state are counted by their storages. A CPU has no caching allocator, so the bytes that PyTorch
would reserve on a GPU come from replaying the same allocations by its rules (bench/harness/planning/caching.py). On a
GPU that allocator reports both figures itself.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from indb_tensile.bench.harness.planning.caching import replayed_bytes
from indb_tensile.executor.latency.allocation_profile import allocation_profiler
from indb_tensile.executor.run.state import HOST


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMemory:
    """The largest number of bytes allocated at once, and the bytes that an allocator reserves for them."""

    allocated_bytes: int
    reserved_bytes: int


def measure_memory(
    iterate: Callable[[], None], standing: Iterable[torch.Tensor], place: torch.device = HOST
) -> StepMemory:
    """Return the memory of one iteration, which frees all that it allocates. `standing` are the permanent tensors."""
    if place.type == "cuda":
        return _measure_gpu(iterate, place)
    with allocation_profiler() as profiler:
        iterate()
    changes = sorted(_changes(profiler))
    allocated = highest = 0
    for _, _, size_bytes in changes:
        allocated += size_bytes
        highest = max(highest, allocated)
    stands = [
        storage.nbytes()
        for storage in {t.untyped_storage().data_ptr(): t.untyped_storage() for t in standing}.values()
    ]
    return StepMemory(
        allocated_bytes=sum(stands) + highest,
        reserved_bytes=replayed_bytes(stands, [(address, size_bytes) for _, address, size_bytes in changes]),
    )


def _measure_gpu(iterate: Callable[[], None], place: torch.device) -> StepMemory:
    """Measure by torch's own counters, after releasing memory that earlier work left reserved."""
    torch.cuda.synchronize(place)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(place)
    iterate()
    torch.cuda.synchronize(place)
    return StepMemory(
        allocated_bytes=torch.cuda.max_memory_allocated(place), reserved_bytes=torch.cuda.max_memory_reserved(place)
    )


def _changes(profiler: Any) -> Iterator[tuple[int, int, int]]:
    """Yield the time, the address and the bytes of each allocation; bytes are negative for a release."""
    waiting = list(profiler.profiler.kineto_results.experimental_event_tree())
    while waiting:
        event = waiting.pop()
        if event.tag.name == "Allocation":
            yield event.start_time_ns, event.extra_fields.ptr, event.extra_fields.alloc_size
        waiting.extend(event.children)
