"""Reference work for measuring how much jobs slow each other down: a training, and steps that stress one resource.

The step of a training (training_step.py) says what jobs with long steps do to each other. The others show the limits.

Products of matrices keep the arithmetic units busy and need little memory bandwidth. Sums of long vectors do the
opposite. Two jobs of different kinds disturb each other less than two of one kind, so pairs of both are measured.

The vectors are longer than the processor's last cache, as is the memory of a training that needs a plan. If those of
one process fitted into it and those of two did not, the second process would seem to slow down the first by the
difference between the cache and the memory.

A short step (short_step.py) switches between threads.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import torch

from indb_tensile.config import MIB
from indb_tensile.device.hardware import free_memory_bytes, last_cache_bytes
from indb_tensile.executor.latency.short_step import short_step
from indb_tensile.executor.latency.training_step import training_step

_SIDE = 384  # A product of two such matrices takes about a millisecond on one core.
_PRODUCTS = 4
_VECTOR_BYTES = 16 * MIB  # more than the cache of a core; on a processor whose last cache is larger, see below
_CACHES = 2  # a vector is as long as two last caches, so next to nothing of it is left there after a step
_MEMORY_SHARE = 64  # the vectors of 8 processes take at most a quarter of the free memory
_GPU_FACTOR = 8  # A GPU is larger: eight times the side, and vectors of 128 MiB, keep all its units busy.
_WARM_UP = 20  # after 2 steps, short steps of 8 jobs seemed to take a tenth longer than after 20
_WARM_UP_S = 0.2  # enough for longer steps, which have no such effect
_LEAST_WARM_UP = 3


class ReferenceStep(StrEnum):
    """A kind of reference work: bound by one resource, or a step of a training."""

    ARITHMETIC = "arithmetic"
    MEMORY = "memory"
    SWITCHES = "switches"
    TRAINING = "training"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSpeed:
    """The steps a second of processor time (on a GPU, of time), and how many processors they kept busy meanwhile."""

    per_second: float
    processors: float


def contention_step(kind: ReferenceStep, device: str, place: torch.device) -> Callable[[], None]:
    """Return a step of this kind. `device` is the device's name, and `place` torch's device for it."""
    if kind is ReferenceStep.SWITCHES:
        return short_step(device, place)
    if kind is ReferenceStep.TRAINING:
        return training_step(place)
    factor = _GPU_FACTOR if place.type == "cuda" else 1
    if kind is ReferenceStep.ARITHMETIC:
        left, right = (torch.full((_SIDE * factor, _SIDE * factor), 0.5, device=place) for _ in range(2))
        product = torch.empty_like(left)

        def multiply() -> None:
            for _ in range(_PRODUCTS):
                torch.mm(left, right, out=product)

        return multiply
    size_bytes = _VECTOR_BYTES * factor if place.type == "cuda" else vector_bytes(last_cache_bytes())
    first, second = (torch.ones(size_bytes // torch.float32.itemsize, device=place) for _ in range(2))

    def add() -> None:
        torch.add(first, second, out=first)

    return add


def vector_bytes(cache_bytes: int, free_bytes: int | None = None) -> int:
    """Return the size of a vector for a processor with a last cache of `cache_bytes`.

    It is limited by the free memory, by default that of this machine.
    """
    most_bytes = (free_memory_bytes() if free_bytes is None else free_bytes) // _MEMORY_SHARE
    return max(_VECTOR_BYTES, min(_CACHES * cache_bytes, most_bytes))


def warm_up(step: Callable[[], None], place: torch.device) -> None:
    """Run the step until it is as fast as it gets. `place` is torch's device for it."""
    warm_at = time.perf_counter() + _WARM_UP_S
    for count in range(_WARM_UP):
        if count >= _LEAST_WARM_UP and time.perf_counter() > warm_at:
            break
        step()
        _synchronize(place)


def step_speed(step: Callable[[], None], place: torch.device, span_s: float) -> StepSpeed:
    """Run the step for about this long and return how fast it was.

    On a processor, seconds of this process's processor time count. Otherwise any other program on the machine would
    be taken for contention between jobs, and stored. That jobs share the cores is known without a measurement.
    """
    clock = time.perf_counter if place.type == "cuda" else time.process_time
    began_s, started, count = time.perf_counter(), clock(), 0
    while time.perf_counter() < began_s + span_s or count == 0:
        step()
        _synchronize(place)
        count += 1
    spent_s = max(1e-9, clock() - started)
    return StepSpeed(per_second=count / spent_s, processors=spent_s / (time.perf_counter() - began_s))


def _synchronize(place: torch.device) -> None:
    if place.type == "cuda":
        torch.cuda.synchronize(place)
