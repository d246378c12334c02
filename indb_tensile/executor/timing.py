"""A clock for operators that run on a GPU while the host is ahead of them. Has not run on a GPU yet.

A reading is an event in the computing stream, about half a microsecond; when it was passed is known once the device
has come so far. Only sampled iterations are timed.
"""

from collections.abc import Sequence

import torch


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
