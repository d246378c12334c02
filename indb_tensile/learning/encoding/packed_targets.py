"""Targets and the weights of their rows as one tensor, which a weighted loss takes (weighted_losses.py).

The last column is the weight of the row; a set of labels may come with a weight for each label. A row that is mixed
with another one (mixup.py) has a pair of classes, each with a weight of its own.
"""

import torch
from torch import Tensor


def pack(targets: Tensor, weights: Tensor) -> Tensor:
    """Return targets and weights as float32 (rows, values + weights). A class number is exact up to 2**24."""
    rows = len(targets)
    return torch.cat([targets.reshape(rows, -1).float(), weights.reshape(rows, -1).float()], dim=1)


def pair_of(targets: Tensor) -> Tensor:
    """Return classes (rows,), or packed classes and weights (rows, 2), as pairs whose second class weighs nothing."""
    packed = pack(targets, torch.ones(len(targets))) if targets.dim() == 1 else targets
    return torch.cat([packed, packed[:, :1], torch.zeros(len(packed), 1)], dim=1)
