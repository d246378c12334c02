"""Reads host allocations from torch's profiler."""

import os
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.profiler import ProfilerActivity, profile, record_function

_LABEL = "tensile operator "


@contextmanager
def allocation_profiler() -> Iterator[Any]:
    """Run torch's profiler of the host allocator, without the profiler's output and warnings.

    Its events are the same in every supported version of torch.
    """
    with _silent_error_output(), warnings.catch_warnings():
        # Up to torch 2.12 the first use warns that a second cycle of the same profiler would lose the events of the
        # first.
        warnings.filterwarnings("ignore", "Warning: Profiler clears events", UserWarning)
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            yield profiler


@contextmanager
def _silent_error_output() -> Iterator[None]:
    """Discard the error output: the profiler writes lines there that none of its settings turns off."""
    sys.stderr.flush()
    error_output, null_output = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(null_output, 2)
    try:
        yield
    finally:
        os.dup2(error_output, 2)
        os.close(error_output)
        os.close(null_output)


def highest_per_label(profiler: Any) -> Iterator[tuple[str, int]]:
    """Return the highest sum of allocations in each range that has a `label`."""
    for event in _walk(profiler.profiler.kineto_results.experimental_event_tree()):
        if event.name.startswith(_LABEL):
            yield event.name.removeprefix(_LABEL), _highest_in(event)


def _highest_in(event: Any) -> int:
    current_bytes = highest_bytes = 0
    for _, size_bytes in sorted(allocations([event])):
        current_bytes += size_bytes
        highest_bytes = max(highest_bytes, current_bytes)
    return highest_bytes


def allocations(events: Iterable[Any]) -> Iterator[tuple[int, int]]:
    """Return the time and the bytes of each allocation within profiler events. Frees have negative bytes."""
    for event in _walk(events):
        if event.tag.name == "Allocation":
            yield event.start_time_ns, event.extra_fields.alloc_size


def _walk(events: Iterable[Any]) -> Iterator[Any]:
    waiting = list(events)
    while waiting:
        event = waiting.pop()
        yield event
        waiting.extend(event.children)


def labelled(name: str) -> record_function:
    """Return a context whose allocations `highest_per_label` sums up under this name."""
    return record_function(_LABEL + name)
