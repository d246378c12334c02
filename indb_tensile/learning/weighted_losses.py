"""Losses of weighted rows. The target of a row comes with the weight of the row, as one tensor of two columns.

The loss of a batch is the sum of the weighted losses by the number of rows, not by the sum of their weights. So a row
counts the same in every batch, and a batch that is computed in parts has the gradients of the whole batch.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from indb_tensile.job import Task
from indb_tensile.learning.tabm import MemberLoss


def loss_of(task: Task, *, weighted: bool, members: bool = False) -> nn.Module:
    """Return the loss that training minimises. With `members` the network is an ensemble of members."""
    if members:
        return MemberLoss(loss_of(task, weighted=weighted))
    if task is Task.CLASSIFICATION:
        return WeightedCrossEntropy() if weighted else nn.CrossEntropyLoss()
    return WeightedSquares() if weighted else nn.MSELoss()


class WeightedCrossEntropy(nn.Module):
    """The cross entropy of classes."""

    def forward(self, outputs: Tensor, packed: Tensor) -> Tensor:
        """Return the mean for outputs (rows, classes)."""
        losses = functional.cross_entropy(outputs, packed[:, 0].long(), reduction="none")
        return (losses * packed[:, 1]).mean()


class WeightedSquares(nn.Module):
    """The squared error of values."""

    def forward(self, outputs: Tensor, packed: Tensor) -> Tensor:
        """Return the mean for outputs (rows, 1)."""
        errors = outputs - packed[:, :1]
        return (errors * errors * packed[:, 1:]).mean()


def pack(targets: Tensor, weights: Tensor) -> Tensor:
    """Return targets and weights as float32 (rows, 2). A class number is exact up to 2**24."""
    return torch.stack([targets.reshape(-1).float(), weights.float()], dim=1)
