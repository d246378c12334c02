"""The losses of trainings, by name, for rows that count the same or have weights.

Targets come packed with the weights of their rows (packed_targets.py). The loss of a batch is the sum of the weighted
losses divided by the number of rows, not by the sum of their weights. So a row counts the same in every batch, and a
batch that is computed in parts has the gradients of the whole batch.
"""

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from indb_tensile.job import Task
from indb_tensile.learning.encoding.forecast_encoding import ForecastValues, PinballLoss
from indb_tensile.learning.networks.autoencoder import ReconstructionLoss
from indb_tensile.learning.networks.ensemble import Ensemble, EnsembleLoss
from indb_tensile.learning.networks.hyperparams import TrainingSettings
from indb_tensile.learning.networks.tabm import MemberLoss, TabM
from indb_tensile.learning.networks.two_towers import InBatchSoftmax
from indb_tensile.request.loss_rules import DEFAULT_LOSSES


def loss_for(
    module: nn.Module,
    task: Task,
    settings: TrainingSettings,
    *,
    weighted: bool,
    forecast: ForecastValues | None = None,
) -> nn.Module:
    """Return the loss that training this network minimises. `forecast` are the values that a forecast has."""
    if forecast is not None:
        loss = PinballLoss(forecast)
        if isinstance(module, Ensemble):
            return EnsembleLoss(loss)
        return MemberLoss(loss) if isinstance(module, TabM) else loss
    if task is Task.ANOMALY:
        return ReconstructionLoss()
    if task is Task.PAIRS:
        return InBatchSoftmax(settings.batch_size)
    if isinstance(module, Ensemble):
        return EnsembleLoss(loss_of(task, settings, weighted=weighted))
    return loss_of(task, settings, weighted=weighted, members=isinstance(module, TabM))


def loss_of(task: Task, settings: TrainingSettings, *, weighted: bool, members: bool = False) -> nn.Module:
    """Return the loss that training minimises. With `members` the network is one of several members, as TabM."""
    if members:
        return MemberLoss(loss_of(task, settings, weighted=weighted))
    if settings.mixup is not None:
        return MixedLoss(_unmixed_loss(task, settings, weighted=True))
    return _unmixed_loss(task, settings, weighted=weighted)


def _unmixed_loss(task: Task, settings: TrainingSettings, *, weighted: bool) -> nn.Module:
    name = settings.loss or DEFAULT_LOSSES[task]
    if name == "cross_entropy" and not settings.label_smoothing:
        return WeightedCrossEntropy() if weighted else nn.CrossEntropyLoss()
    if name == "mse":
        return WeightedSquares() if weighted else nn.MSELoss()
    return MeanLoss(_ROW_LOSSES[name](settings), classes=task is Task.CLASSIFICATION, weighted=weighted)


class WeightedCrossEntropy(nn.Module):
    """The cross entropy of classes."""

    def forward(self, outputs: Tensor, packed: Tensor) -> Tensor:
        """Return the mean for outputs (rows, classes)."""
        losses = functional.cross_entropy(outputs, packed[:, 0].long(), reduction="none")
        return (losses * packed[:, 1]).mean()


class WeightedSquares(nn.Module):
    """The squared error of values."""

    def forward(self, outputs: Tensor, packed: Tensor) -> Tensor:
        """Return the mean for outputs (rows, values)."""
        values = outputs.shape[1]
        errors = outputs - packed[:, :values]
        return (errors * errors * packed[:, values:]).mean()


class MixedLoss(nn.Module):
    """The sum of the losses of both classes of mixed rows. `loss` takes packed classes and weights."""

    def __init__(self, loss: nn.Module) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, outputs: Tensor, pairs: Tensor) -> Tensor:
        """Return the mean for outputs (rows, classes) and pairs (rows, 4): class, weight, class, weight."""
        return cast(Tensor, self.loss(outputs, pairs[:, :2]) + self.loss(outputs, pairs[:, 2:]))


class MeanLoss(nn.Module):
    """The mean of a loss of rows.

    `rows` maps float32 outputs and targets to the loss of each row: outputs (rows, classes) and class numbers (rows,)
    to (rows,), or outputs and values (rows, values) to (rows, values), likewise for labels.
    """

    def __init__(self, rows: nn.Module, *, classes: bool, weighted: bool) -> None:
        super().__init__()
        self.rows = rows
        self.classes = classes
        self.weighted = weighted

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean for targets, or for targets and weights if the rows are weighted."""
        outputs = outputs.float()  # half precision has too few bits for exponentials and small errors
        if not self.weighted:
            return cast(Tensor, self.rows(outputs, targets)).mean()
        if self.classes:
            return cast(Tensor, self.rows(outputs, targets[:, 0].long()) * targets[:, 1]).mean()
        values = outputs.shape[1]
        return cast(Tensor, self.rows(outputs, targets[:, :values]) * targets[:, values:]).mean()


class SmoothedCrossEntropy(nn.Module):
    """The cross entropy with a share of each row's target spread over all classes (Szegedy and others 2016)."""

    def __init__(self, smoothing: float) -> None:
        super().__init__()
        self.smoothing = smoothing

    def forward(self, outputs: Tensor, classes: Tensor) -> Tensor:
        """Return the loss of each row."""
        return functional.cross_entropy(outputs, classes, reduction="none", label_smoothing=self.smoothing)


class Focal(nn.Module):
    """The cross entropy times (1 - p) ** gamma for the probability p of the row's class (Lin and others 2017)."""

    def __init__(self, gamma: float) -> None:
        super().__init__()
        self.gamma = gamma

    def forward(self, outputs: Tensor, classes: Tensor) -> Tensor:
        """Return the loss of each row."""
        logarithms = outputs.log_softmax(dim=1).gather(1, classes.unsqueeze(1)).squeeze(1)
        # The power of 0 has no finite gradient for a gamma below 1.
        doubt = (1 - logarithms.exp()).clamp(min=_LEAST_DOUBT)
        return -doubt.pow(self.gamma) * logarithms


class Absolute(nn.Module):
    """The absolute error."""

    def forward(self, outputs: Tensor, values: Tensor) -> Tensor:
        """Return the loss of each row."""
        return (outputs - values).abs()


class Huber(nn.Module):
    """Half of the squared error up to an error of one standard deviation of the target, and linear beyond (1964)."""

    def forward(self, outputs: Tensor, values: Tensor) -> Tensor:
        """Return the loss of each row."""
        return functional.huber_loss(outputs, values, reduction="none")


class Poisson(nn.Module):
    """The negative logarithm of Poisson's likelihood, without its constant, for outputs that are logarithms."""

    def forward(self, outputs: Tensor, values: Tensor) -> Tensor:
        """Return the loss of each row."""
        return outputs.exp() - values * outputs


class Quantile(nn.Module):
    """The pinball loss, whose minimum is a quantile of the target (Koenker and Bassett 1978)."""

    def __init__(self, quantile: float) -> None:
        super().__init__()
        self.quantile = quantile

    def forward(self, outputs: Tensor, values: Tensor) -> Tensor:
        """Return the loss of each row."""
        errors = values - outputs
        return torch.maximum(self.quantile * errors, (self.quantile - 1) * errors)


class BinaryCrossEntropy(nn.Module):
    """The cross entropy of each label by itself, for outputs that are the logarithms of the labels' odds."""

    def forward(self, outputs: Tensor, memberships: Tensor) -> Tensor:
        """Return the loss of each label of each row."""
        return functional.binary_cross_entropy_with_logits(outputs, memberships, reduction="none")


_LEAST_DOUBT = 1e-7  # about the distance from 1 to the next smaller float32
_ROW_LOSSES: dict[str, Callable[[TrainingSettings], nn.Module]] = {
    "cross_entropy": lambda settings: SmoothedCrossEntropy(settings.label_smoothing or 0.0),
    "focal": lambda settings: Focal(cast(float, settings.gamma)),
    "binary_cross_entropy": lambda _: BinaryCrossEntropy(),
    "mae": lambda _: Absolute(),
    "huber": lambda _: Huber(),
    "poisson": lambda _: Poisson(),
    "quantile": lambda settings: Quantile(cast(float, settings.quantile)),
}
