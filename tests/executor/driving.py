"""Train a job as a trainer does, and collect every bit of its losses, outputs and state."""

from collections.abc import Sequence
from typing import Protocol

import torch

from tests.executor.eager import RATES
from tests.executor.models import Job


class Trains(Protocol):
    """The methods of a runner that training uses."""

    def train(self, x: torch.Tensor, y: torch.Tensor, lr: float) -> torch.Tensor: ...
    def evaluate(self, x: torch.Tensor, y: torch.Tensor) -> Sequence[torch.Tensor]: ...


def drive(trainer: Trains, job: Job, epochs: int = 2) -> list[torch.Tensor]:
    """Train some epochs with a tail batch and an evaluation in each. Return every loss and output, in order."""
    torch.manual_seed(99)
    results: list[torch.Tensor] = []
    for _ in range(epochs):
        for index, (x, y) in enumerate(job.batches):
            results.append(trainer.train(x, y, RATES[index]))
            if index == 1:
                results += trainer.evaluate(*job.held_out)
    return results


def bits(values: list[torch.Tensor]) -> list[bytes]:
    """Return the bytes of these tensors, in their order."""
    return [value.contiguous().numpy().tobytes() for value in values]


def state_bits(state: dict[str, torch.Tensor]) -> dict[str, bytes]:
    """Return the bytes of every value of an exported state, by name."""
    return {name: value.contiguous().numpy().tobytes() for name, value in sorted(state.items())}
