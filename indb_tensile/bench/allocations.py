"""What a training step of PyTorch's own really needs: every allocation of torch's allocator, from its own events.

The profiler reports each allocation and release with its address, of operators' results and workspaces alike, so the
sum of what is held is exact at every moment. What stood before is not among them: parameters, buffers and optimizer
state are counted by their storages. On a CPU there is no caching allocator, so what PyTorch would reserve on a GPU
comes from replaying the same allocations by its rules (bench/caching.py). On a GPU that allocator says both itself.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from indb_tensile.bench.caching import replayed_bytes
from indb_tensile.executor.calibrate import allocation_profiler
from indb_tensile.executor.state import HOST


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The most that is held at once, and what an allocator reserves for it."""

    allocated_bytes: int
    reserved_bytes: int


def measure_memory(
    iterate: Callable[[], None], standing: Iterable[torch.Tensor], place: torch.device = HOST
) -> Memory:
    """Run one iteration, which leaves nothing behind, beside tensors that stand all the time."""
    if place.type == "cuda":
        return _measure_gpu(iterate, place)
    with allocation_profiler() as profiler:
        iterate()
    changes = sorted(_changes(profiler))
    held = highest = 0
    for _, _, size_bytes in changes:
        held += size_bytes
        highest = max(highest, held)
    stands = [
        storage.nbytes()
        for storage in {t.untyped_storage().data_ptr(): t.untyped_storage() for t in standing}.values()
    ]
    return Memory(
        allocated_bytes=sum(stands) + highest,
        reserved_bytes=replayed_bytes(stands, [(address, size_bytes) for _, address, size_bytes in changes]),
    )


def _measure_gpu(iterate: Callable[[], None], place: torch.device) -> Memory:
    """By torch's own counters; what others than this iteration left reserved is given back before."""
    torch.cuda.synchronize(place)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(place)
    iterate()
    torch.cuda.synchronize(place)
    return Memory(
        allocated_bytes=torch.cuda.max_memory_allocated(place), reserved_bytes=torch.cuda.max_memory_reserved(place)
    )


def _changes(profiler: Any) -> Iterator[tuple[int, int, int]]:
    """When, where and how many bytes the allocator gave or, negative, took back."""
    waiting = list(profiler.profiler.kineto_results.experimental_event_tree())
    while waiting:
        event = waiting.pop()
        if event.tag.name == "Allocation":
            yield event.start_time_ns, event.extra_fields.ptr, event.extra_fields.alloc_size
        waiting.extend(event.children)
