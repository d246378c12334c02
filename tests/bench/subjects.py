"""A network so small that a benchmark of it takes no time: what can be seen of one in a test."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from indb_tensile.bench.harness.trial import TrainingSubject


def tiny(seed: int = 0, rows: int = 256) -> TrainingSubject:
    """Three layers wide enough to be worth moving, with dropout, which draws numbers in each iteration."""
    torch.manual_seed(seed)
    layers = [nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.1)] * 2
    module = nn.Sequential(*layers, nn.Linear(64, 3)).train()
    x, y = torch.randn(rows, 64), torch.randint(3, (rows,))
    return TrainingSubject(name="tiny", module=module, loss=functional.cross_entropy, x=x, y=y)


@dataclass(frozen=True, slots=True)
class Tiny:
    """Where it comes from, also in another process."""

    network: None = None

    def subject(self, seed: int = 0) -> TrainingSubject:
        """With weights and rows of this seed."""
        return tiny(seed)
