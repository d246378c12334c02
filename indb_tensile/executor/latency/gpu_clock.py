"""Clocks for operators that run on a GPU while the host is ahead of them.

A reading is an event in the computing stream, about half a microsecond; when it was passed is known once the device
has come so far. Only sampled iterations are timed.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

_CALLS = 16  # queued at a time, well below what a stream holds before the host has to wait (about 1,000)
_BATCHES = 5  # the fastest counts: in the others the device may have been another process's for a time slice
_LAUNCH_CYCLES = 40_000  # of the device's clock, at 2 GHz 20 us: longer than the host takes to queue a call


class EventClock:
    """Called, it marks a moment and returns its number; `read` tells when the marked moments were."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._events: list[torch.cuda.Event] = []
        self._marked = 0

    def __call__(self) -> int:
        """Mark this moment of the computing stream."""
        if self._marked == len(self._events):
            self._events.append(torch.cuda.Event(enable_timing=True, blocking=True))  # type: ignore[no-untyped-call]
        self._events[self._marked].record(torch.cuda.current_stream(self._device))
        self._marked += 1
        return self._marked - 1

    def read(self, moments: Sequence[int]) -> list[int]:
        """Nanoseconds after the first of these at which each was; waits for the last. The marks are spent."""
        events = [self._events[number] for number in moments]
        events[-1].synchronize()
        self._marked = 0
        return [round(events[0].elapsed_time(event) * 1_000_000) for event in events]


class QueueTimer:
    """Times a call as the device runs it, one behind the other: without the host's part in launching it.

    The device is kept busy while calls are queued, so that it has them all when it starts on the first; the time
    between an event before and one behind them is then the kernels' own.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def time_ns(self, run: Callable[[], object]) -> int:
        """Nanoseconds of one call; whatever it returns is let go."""
        return min(self._batch_ns(run) for _ in range(_BATCHES))

    def _batch_ns(self, run: Callable[[], object]) -> int:
        make: Any = torch.cuda.Event  # torch gives it no type
        start, end = make(enable_timing=True), make(enable_timing=True)
        stream = torch.cuda.current_stream(self._device)
        stall: Any = torch.cuda._sleep  # noqa: SLF001 - the one kernel that does nothing for a known time
        stall(_CALLS * _LAUNCH_CYCLES)
        start.record(stream)
        for _ in range(_CALLS):
            run()
        end.record(stream)
        end.synchronize()
        passed_ms: float = start.elapsed_time(end)
        return round(passed_ms * 1_000_000 / _CALLS)
