"""A trainer that computes on the CPU although its device is a GPU: its driver is a double (test_gpu_double.py)."""

import torch

from worker import trainer
from worker.training import run


def main() -> int:
    """What a user's trainer runs, but for where torch computes."""
    vars(run)["torch_device"] = lambda _: torch.device("cpu")
    return trainer.main()
