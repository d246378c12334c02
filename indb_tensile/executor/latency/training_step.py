"""The reference training step, by which the contention of jobs with long steps is measured.

It is a whole step of a network like those that people train: convolutions, normalisation and a wide layer, forward,
backward and update. So it is bound by arithmetic and by memory bandwidth in the proportions of a training, and its
tensors are longer than a core's own cache. docs/developer/sharing.md has the measurements that led to it.
"""

from collections.abc import Callable

import torch
from torch import nn

# About 50 ms on one core, with 60 MiB of activations, parameters and their state.
_ROWS, _CHANNELS, _PIXELS, _BLOCKS, _WIDTH = 128, 64, 8, 3, 512
_GPU_FACTOR = 16  # times the rows, so that every operator keeps all units of a GPU busy


def training_step(place: torch.device) -> Callable[[], None]:
    """Return a training step that runs on torch's device `place`. Its batch is there already."""
    layers: list[nn.Module] = []
    for _ in range(_BLOCKS):
        layers += [nn.Conv2d(_CHANNELS, _CHANNELS, 3, padding=1), nn.BatchNorm2d(_CHANNELS), nn.ReLU()]
    layers += [nn.Flatten(), nn.Linear(_CHANNELS * _PIXELS**2, _WIDTH), nn.ReLU(), nn.Linear(_WIDTH, 1)]
    network = nn.Sequential(*layers).to(place)
    rows = _ROWS * (_GPU_FACTOR if place.type == "cuda" else 1)
    batch, labels = torch.randn(rows, _CHANNELS, _PIXELS, _PIXELS, device=place), torch.randn(rows, 1, device=place)
    loss = nn.MSELoss()
    optimizer = torch.optim.Adam(network.parameters(), fused=True)

    def train() -> None:
        optimizer.zero_grad()
        loss(network(batch), labels).backward()
        optimizer.step()

    return train
