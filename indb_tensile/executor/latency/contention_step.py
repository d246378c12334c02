"""Reference work for measuring how much jobs slow each other down: bound by arithmetic, by memory, and short.

Products of matrices keep the arithmetic units busy and need little memory bandwidth. Sums of long vectors do the
opposite. Two jobs of different kinds disturb each other less than two of one kind, so pairs of both are measured.

The short step is a training step of a small network, as a trainer runs it: its operators take some microseconds
each, and its thread hands over to the threads that copy, and waits for them. Measured on two cores: many operators of
a microsecond in one thread need no more processor time beside others, and such a step without hand-overs needs 1.1
times as much.
"""

import threading
import time
from collections.abc import Callable
from enum import StrEnum

import torch
from torch import nn
from torch.nn import functional

_SIDE = 384  # A product of two such matrices takes about a millisecond on one core.
_PRODUCTS = 4
_ELEMENTS = 4 << 20  # 16 MiB for each vector, more than the cache of a core
_GPU_FACTOR = 8  # A GPU is larger: eight times the side keeps all its units busy.
_WARM_UP = 2
_INPUTS, _WIDTH, _ROWS = (
    32,
    512,
    32,
)  # a step of about 1.5 ms on one core, as of the networks of `tensile bench share`
_HAND_OVERS = 3  # copies to the device, of the batch and its labels, and of the results back


class BoundBy(StrEnum):
    """The resource that limits a step."""

    ARITHMETIC = "arithmetic"
    MEMORY = "memory"
    SWITCHES = "switches"


def contention_step(bound_by: BoundBy, place: torch.device) -> Callable[[], None]:
    """Return a step on this device that is bound by arithmetic, by memory bandwidth, or by switches of threads."""
    if bound_by is BoundBy.SWITCHES:
        return _short_step(place)
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


def _short_step(place: torch.device) -> Callable[[], None]:
    """Return a training step of a small network that hands over to another thread, as for its copies."""
    layers = nn.Linear(_INPUTS, _WIDTH), nn.ReLU(), nn.Linear(_WIDTH, _WIDTH), nn.ReLU(), nn.Linear(_WIDTH, 1)
    network = nn.Sequential(*layers).to(place)
    batch, labels = (torch.randn(_ROWS, columns, device=place) for columns in (_INPUTS, 1))
    optimizer = torch.optim.Adam(network.parameters(), fused=True)
    asked, copied = threading.Semaphore(0), threading.Semaphore(0)
    threading.Thread(target=_answer, args=(asked, copied), daemon=True).start()

    def train() -> None:
        for _ in range(_HAND_OVERS):
            asked.release()
            copied.acquire()
        optimizer.zero_grad()
        functional.mse_loss(network(batch), labels).backward()
        optimizer.step()

    return train


def _answer(asked: threading.Semaphore, copied: threading.Semaphore) -> None:
    while True:
        asked.acquire()
        copied.release()


def _synchronize(place: torch.device) -> None:
    if place.type == "cuda":
        torch.cuda.synchronize(place)
