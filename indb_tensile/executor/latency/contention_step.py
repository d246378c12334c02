"""Reference work for measuring how much jobs slow each other down: bound by arithmetic, by memory, and short.

Products of matrices keep the arithmetic units busy and need little memory bandwidth. Sums of long vectors do the
opposite. Two jobs of different kinds disturb each other less than two of one kind, so pairs of both are measured.

The third kind is a short step (short_step.py), which switches between threads.
"""

import time
from collections.abc import Callable
from enum import StrEnum

import torch

from indb_tensile.executor.latency.short_step import short_step

_SIDE = 384  # A product of two such matrices takes about a millisecond on one core.
_PRODUCTS = 4
_ELEMENTS = 4 << 20  # 16 MiB for each vector, more than the cache of a core
_GPU_FACTOR = 8  # A GPU is larger: eight times the side keeps all its units busy.
_WARM_UP = 20  # after 2 steps, short steps of 8 jobs seemed to take a tenth longer than after 20


class BoundBy(StrEnum):
    """The resource that limits a step."""

    ARITHMETIC = "arithmetic"
    MEMORY = "memory"
    SWITCHES = "switches"


def contention_step(bound_by: BoundBy, device: str, place: torch.device) -> Callable[[], None]:
    """Return a step that is bound by arithmetic, by memory bandwidth, or by switches of threads.

    `device` is the device's name, and `place` torch's device for it.
    """
    if bound_by is BoundBy.SWITCHES:
        return short_step(device, place)
    factor = _GPU_FACTOR if place.type == "cuda" else 1
    if bound_by is BoundBy.ARITHMETIC:
        left, right = (torch.full((_SIDE * factor, _SIDE * factor), 0.5, device=place) for _ in range(2))
        product = torch.empty_like(left)

        def multiply() -> None:
            for _ in range(_PRODUCTS):
                torch.mm(left, right, out=product)

        return multiply
    first, second = (torch.ones(_ELEMENTS * factor, device=place) for _ in range(2))

    def add() -> None:
        torch.add(first, second, out=first)

    return add


def steps_per_second(step: Callable[[], None], place: torch.device, span_s: float) -> float:
    """Run the step for about this long and return how many steps a second were completed.

    On a processor, seconds of this process's processor time count. Otherwise any other program on the machine would
    be taken for contention between jobs, and stored. That jobs share the cores is known without a measurement.
    """
    for _ in range(_WARM_UP):
        step()
    _synchronize(place)
    clock = time.perf_counter if place.type == "cuda" else time.process_time
    ends_at, started, count = time.perf_counter() + span_s, clock(), 0
    while time.perf_counter() < ends_at or count == 0:
        step()
        _synchronize(place)
        count += 1
    return count / max(1e-9, clock() - started)


def _synchronize(place: torch.device) -> None:
    if place.type == "cuda":
        torch.cuda.synchronize(place)
