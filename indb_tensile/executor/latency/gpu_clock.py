"""Clocks for operators that run on a GPU asynchronously to the host.

A clock records a moment as an event in the computing stream, which costs about half a microsecond. The time of the
moment is known once the device has passed the event. The executor therefore times only some iterations, the sampled
ones.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

_CALLS = 16  # queued at a time, well below the number that blocks the host (about 1,000 for a stream)
_BATCHES = 5  # the fastest is used: another process's time slice may have interrupted the device during others
# Cycles of the device's clock for which the device is kept busy per queued call: 20 us at 2 GHz, which is longer than
# the host takes to queue a call of one kernel.
_STALL_CYCLES_PER_CALL = 40_000


class EventClock:
    """Records moments of the computing stream. A call returns the moment's number; `read` returns the times."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._events: list[torch.cuda.Event] = []
        self._marked = 0

    def __call__(self) -> int:
        """Record this moment of the computing stream, and return its number."""
        if self._marked == len(self._events):
            self._events.append(torch.cuda.Event(enable_timing=True, blocking=True))  # type: ignore[no-untyped-call]
        self._events[self._marked].record(torch.cuda.current_stream(self._device))
        self._marked += 1
        return self._marked - 1

    def read(self, moments: Sequence[int]) -> list[int]:
        """Return the nanoseconds of each of these moments after the first of them, and forget all moments.

        `moments` are in the order in which they were recorded. Waits until the device has passed the last.
        """
        events = [self._events[number] for number in moments]
        events[-1].synchronize()
        self._marked = 0
        return [round(events[0].elapsed_time(event) * 1_000_000) for event in events]


class DeviceQueue(Protocol):
    """Work that the device does in order, asynchronously to the host."""

    def stall(self, cycles: int) -> None:
        """Queue a kernel that runs for this many cycles of the device's clock."""
        ...

    def mark(self) -> Any:
        """Queue a record of the moment, and return it."""
        ...

    def passed_ns(self, start: Any, end: Any) -> float:
        """Wait until the device has passed the moment `end`, and return the nanoseconds since `start`."""
        ...


class StreamQueue:
    """The computing stream of a GPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def stall(self, cycles: int) -> None:
        """Queue torch's kernel that only runs for a known time."""
        sleep: Any = torch.cuda._sleep  # noqa: SLF001 - torch has no public name for it
        sleep(cycles)

    def mark(self) -> torch.cuda.Event:
        """Record an event. A thread that waits for it sleeps."""
        make: Any = torch.cuda.Event  # torch gives it no type
        event: torch.cuda.Event = make(enable_timing=True, blocking=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def passed_ns(self, start: torch.cuda.Event, end: torch.cuda.Event) -> float:
        """Return the time between two events."""
        end.synchronize()
        passed_ms: float = start.elapsed_time(end)
        return passed_ms * 1_000_000


class QueueTimer:
    """Times calls as the device runs them back to back, without the host's time for launching them.

    The device is kept busy while the calls are queued. If the host takes less than 20 us to queue a call, all calls
    are queued when the first one starts, and the time between the moments before and after the calls is the kernels'
    own.
    """

    def __init__(self, queue: DeviceQueue) -> None:
        self._queue = queue

    def time_ns(self, run: Callable[[], object]) -> int:
        """Return the mean nanoseconds of a call in the fastest of several batches. Discards the calls' results."""
        return min(self._batch_ns(run) for _ in range(_BATCHES))

    def _batch_ns(self, run: Callable[[], object]) -> int:
        self._queue.stall(_CALLS * _STALL_CYCLES_PER_CALL)
        start = self._queue.mark()
        for _ in range(_CALLS):
            run()
        return round(self._queue.passed_ns(start, self._queue.mark()) / _CALLS)
