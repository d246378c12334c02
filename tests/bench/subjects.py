"""A network so small that a benchmark of it takes no time: what can be seen of one in a test."""

import torch
from torch import nn
from torch.nn import functional

from indb_tensile.bench.trial import Subject


def tiny(seed: int = 0) -> Subject:
    """Three layers wide enough to be worth moving, with dropout, which draws numbers in each iteration."""
    torch.manual_seed(seed)
    layers = [nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.1)] * 2
    module = nn.Sequential(*layers, nn.Linear(64, 3)).train()
    return Subject(
        name="tiny", module=module, loss=functional.cross_entropy, x=torch.randn(256, 64), y=torch.randint(3, (256,))
    )
