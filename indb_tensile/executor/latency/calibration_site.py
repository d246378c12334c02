"""Where operators are measured: on the processor, or in a job's own memory on a GPU.

There is one site for the process, because a trainer has one device.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import torch

from indb_tensile.device.allocator_shim import ArenaServing


class Timer(Protocol):
    """Times calls on a device that runs asynchronously to the host."""

    def time_ns(self, run: Callable[[], object]) -> int:
        """Return the nanoseconds of one call."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationSite:
    """The place where operators are measured on a GPU: the job's own memory, which may be too small.

    `refusal` returns two numbers of bytes that the memory would have had to hold, and resets both: the highest of all
    refused allocations, and the highest of those refused allocations that the whole device could hold.
    """

    device: torch.device
    serving: ArenaServing
    timer: Timer
    refusal: Callable[[], tuple[int, int]]


_site: CalibrationSite | None = None


def calibrate_on(place: CalibrationSite | None) -> None:
    """Choose where operators are measured: on a GPU, or on the processor if `place` is None.

    Call this function before any measurement.
    """
    global _site
    _site = place


def site() -> CalibrationSite | None:
    """Return the place on a GPU, or None if operators are measured on the processor."""
    return _site


@cache
def _private_serving() -> ArenaServing | None:
    """Return the process's own serving. Its memory goes back to the system with `trim`."""
    return ArenaServing.private()


def serving() -> ArenaServing | None:
    """Return the arena from which tensors are served, or None if they are not."""
    return _private_serving() if _site is None else _site.serving
