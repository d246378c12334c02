"""The reference training step, by which the contention of jobs with long steps is measured.

It is a whole step of a network like those that people train: convolutions, normalisation and a wide layer, forward,
backward and update. So it is bound by arithmetic and by memory bandwidth in the proportions of a training. Its
tensors are as long as those of a training that needs a plan: operators of one job fit into a last cache of 32 MiB,
and those of two jobs do not. docs/developer/sharing.md has the measurements that led to it.
"""

from collections.abc import Callable

import torch
from torch import nn

# About 170 ms on one core, with 130 MiB of activations, parameters and their state. With 128 rows two steps of two
# threads slow each other down twice as much as trainings do, because their operators are short.
_ROWS, _CHANNELS, _PIXELS, _BLOCKS, _WIDTH = 448, 64, 8, 3, 512
_GPU_ROWS = 2048  # so that every operator keeps all units of a GPU busy


def training_step(place: torch.device) -> Callable[[], None]:
    """Return a training step that runs on torch's device `place`. Its batch is there already."""
    layers: list[nn.Module] = []
    for _ in range(_BLOCKS):
        layers += [nn.Conv2d(_CHANNELS, _CHANNELS, 3, padding=1), nn.BatchNorm2d(_CHANNELS), nn.ReLU()]
    layers += [nn.Flatten(), nn.Linear(_CHANNELS * _PIXELS**2, _WIDTH), nn.ReLU(), nn.Linear(_WIDTH, 1)]
    network = nn.Sequential(*layers).to(place)
    rows = _GPU_ROWS if place.type == "cuda" else _ROWS
    batch, labels = torch.randn(rows, _CHANNELS, _PIXELS, _PIXELS, device=place), torch.randn(rows, 1, device=place)
    loss = nn.MSELoss()
    optimizer = torch.optim.Adam(network.parameters(), fused=True)

    def train() -> None:
        optimizer.zero_grad()
        loss(network(batch), labels).backward()
        optimizer.step()

    return train
