"""Trains a job as a trainer would, and reads off every bit of what came of it."""

import torch

from indb_tensile.executor.run.runner import Runner
from tests.executor.eager import RATES, Eager
from tests.executor.models import Job


def drive(trainer: Runner | Eager, job: Job, epochs: int = 2) -> list[torch.Tensor]:
    """Epochs with a tail batch and an evaluation in between; every loss and output on the way."""
    torch.manual_seed(99)
    seen: list[torch.Tensor] = []
    for _ in range(epochs):
        for index, (x, y) in enumerate(job.batches):
            seen.append(trainer.train(x, y, RATES[index]))
            if index == 1:
                seen += trainer.evaluate(*job.held_out)
    return seen


def bits(values: list[torch.Tensor]) -> list[bytes]:
    """Every bit of these, in their order."""
    return [value.contiguous().numpy().tobytes() for value in values]


def state_bits(state: dict[str, torch.Tensor]) -> dict[str, bytes]:
    """Every bit of an exported state."""
    return {name: value.contiguous().numpy().tobytes() for name, value in sorted(state.items())}
