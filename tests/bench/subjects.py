"""A network so small that a test of a benchmark takes little time."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from indb_tensile.bench.harness.execution.trial import TrainingSubject


def tiny(seed: int = 0, rows: int = 256) -> TrainingSubject:
    """Return layers wide enough to be worth a swap, with dropout, which draws random numbers in each iteration."""
    torch.manual_seed(seed)
    layers = [nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.1)] * 2
    module = nn.Sequential(*layers, nn.Linear(64, 3)).train()
    x, y = torch.randn(rows, 64), torch.randint(3, (rows,))
    return TrainingSubject(name="tiny", module=module, loss=functional.cross_entropy, x=x, y=y)


@dataclass(frozen=True, slots=True)
class Tiny:
    """Makes the tiny network, in this process or in another."""

    network: None = None

    def subject(self, seed: int = 0) -> TrainingSubject:
        """Return the network with weights and rows of this seed."""
        return tiny(seed)
