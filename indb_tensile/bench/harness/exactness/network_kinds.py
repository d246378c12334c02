"""Kinds of small networks that together cover what a captured step must compute exactly, under any plan.

Networks of the literature appear as one or two of their blocks; each architecture that a request may name is whole.
Those of timm are kinds where timm is installed.
Each kind is trained by one of the optimizers, some of them in micro-batches, in half precision, with clipped
gradients or with averages of their weights. Each loss of rows that a training may name trains the members of a `tabm`
on weighted rows, and each schedule of the learning rate trains a perceptron. tests/bench/test_exact.py compares the
kinds with the tables of what a request may name.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from indb_tensile.bench.harness.exactness import (
    convolutional,
    declared_networks,
    embedded_networks,
    small_networks,
    timm_networks,
)
from indb_tensile.bench.harness.execution.trial import RATE, TrainingSubject
from indb_tensile.errors import MissingError
from indb_tensile.executor.capture.optimizer import OptimizerSettings
from indb_tensile.executor.capture.passes import WHOLE, Passes
from indb_tensile.executor.capture.step_trace import Loss
from indb_tensile.job import Task
from indb_tensile.learning.encoding.forecast_encoding import PinballLoss
from indb_tensile.learning.encoding.packed_targets import pack
from indb_tensile.learning.networks import architectures
from indb_tensile.learning.networks.autoencoder import ReconstructionLoss
from indb_tensile.learning.networks.ensemble import EnsembleLoss
from indb_tensile.learning.networks.hyperparams import TrainingSettings, learning_rate
from indb_tensile.learning.networks.tabm import MemberLoss
from indb_tensile.learning.networks.two_towers import InBatchSoftmax
from indb_tensile.learning.networks.weighted_losses import loss_of
from indb_tensile.request.hyperparam_rules import HYPERPARAMS
from indb_tensile.request.loss_rules import LOSSES

ROWS = 4
CLASSES = 10
TOKENS = 50

_SGD = OptimizerSettings(kind="sgd", momentum=0.9, nesterov=True, weight_decay=1e-4)
_ADAM = OptimizerSettings(kind="adam")
_ADAMW = OptimizerSettings(kind="adamw", weight_decay=0.01)
_ADAGRAD = OptimizerSettings(kind="adagrad", eps=1e-10)
_LION = OptimizerSettings(kind="lion", betas=(0.9, 0.99), weight_decay=0.1, decays_all=False)
_RMSPROP = OptimizerSettings(kind="rmsprop", momentum=0.9, centered=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkKind:
    """One kind of network: how to build it, its batches, and its optimizer.

    `x` and `y` draw the given number of rows. `architecture` is the type by which a request names the network, if
    that is not the kind's name.
    """

    name: str
    build: Callable[[], nn.Module]
    x: Callable[[int], torch.Tensor]
    y: Callable[[int], torch.Tensor]
    loss: Loss
    settings: OptimizerSettings = _ADAM
    passes: Passes = WHOLE
    rows: int = ROWS
    rates: tuple[float, ...] = (RATE,)
    architecture: str = ""

    def subject(self, seed: int = 0) -> TrainingSubject:
        """Return a subject with weights and rows drawn from `seed`."""
        torch.manual_seed(seed)
        return TrainingSubject(
            name=self.name,
            module=self.build().train(),
            loss=self.loss,
            x=self.x(self.rows),
            y=self.y(self.rows),
            settings=self.settings,
            passes=self.passes,
            rates=self.rates,
        )


def find_kind(name: str) -> NetworkKind:
    """Return the kind of this name. Raises MissingError if there is none."""
    if name not in KINDS:
        raise MissingError(f"there is no kind of network '{name}'", hint=f"Kinds are: {', '.join(KINDS)}.")
    return KINDS[name]


def _normal(*row: int) -> Callable[[int], torch.Tensor]:
    return lambda rows: torch.randn(rows, *row)


def _integers(below: int, *row: int) -> Callable[[int], torch.Tensor]:
    return lambda rows: torch.randint(below, (rows, *row))


def _cross_entropy(predicted: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the cross-entropy over the last dimension, with one label for each position of the others."""
    return functional.cross_entropy(predicted.flatten(0, -2), y.flatten())


def _mean(predicted: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    """Return the mean of `predicted`, for a network that computes the loss of each row itself."""
    return predicted.mean()


_CLASSIFIED: Mapping[str, Any] = {"y": _integers(CLASSES), "loss": _cross_entropy}
_LABELLED: Mapping[str, Any] = {"x": _integers(TOKENS, 12), "y": _integers(TOKENS, 12), "loss": _cross_entropy}
_FORECAST: Mapping[str, Any] = {
    "x": declared_networks.encoded_windows,
    "y": declared_networks.forecast_targets,
    "settings": _ADAMW,
}
_OWN_LOSS: Mapping[str, Any] = {"y": _normal(1), "loss": _mean}

_LOSS_OPTIONS: dict[str, Mapping[str, Any]] = {
    "cross_entropy": {"label_smoothing": 0.1},
    "focal": {"gamma": 1.5},
    "quantile": {"quantile": 0.9},
}


def _loss_kind(task: Task, name: str, values: int = 1) -> NetworkKind:
    """Return the kind that trains with the loss of this name, to predict classes, labels, or this many values."""
    settings = TrainingSettings.parse({"loss": name, **_LOSS_OPTIONS.get(name, {})}, ROWS)
    classified = task is Task.CLASSIFICATION
    outputs = values if task is Task.REGRESSION else CLASSES

    def weighted_targets(rows: int) -> torch.Tensor:
        # Poisson's loss is for values of 0 or more.
        if task is Task.MULTILABEL:
            return pack(torch.randint(2, (rows, outputs)), torch.rand(rows))
        return pack(torch.randint(CLASSES, (rows,)) if classified else torch.rand(rows, outputs), torch.rand(rows))

    return NetworkKind(
        name=name if values == 1 else f"{name}_of_{values}",
        build=embedded_networks.builders(outputs)["tabm"],
        x=embedded_networks.encoded_rows,
        y=weighted_targets,
        loss=loss_of(task, settings, weighted=True, members=True),
        settings=_LION if name == "huber" else _ADAM,
    )


def _mixed_targets(rows: int) -> torch.Tensor:
    """Return pairs of classes with the weights of rows that are mixed with one another."""
    classes, shares = torch.randint(CLASSES, (2, rows)), torch.rand(rows)
    return torch.cat([pack(classes[0], shares), pack(classes[1], 1 - shares)], dim=1)


def _ensemble() -> nn.Module:
    declared = {"type": "mlp", "hidden": [48, 48], "batch_norm": True, "dropout": 0.1}
    return architectures.build(declared, (24,), CLASSES, task=Task.CLASSIFICATION, ensemble=3)


def _autoencoder() -> nn.Module:
    declared = {"type": "autoencoder", "hidden": [48], "widths": [1] * 10 + [6, 8], "divisors": [1] * 11 + [8]}
    return architectures.build(declared, (24,), 24, task=Task.ANOMALY)


def _schedule_kind(schedule: str) -> NetworkKind:
    """Return the kind whose learning rates are those of the schedule of this name."""
    settings = TrainingSettings.parse({"schedule": schedule, "warmup": 0.3, "learning_rate": RATE}, ROWS)
    steps = 8
    return NetworkKind(
        name=schedule,
        build=small_networks.Perceptron,
        x=_normal(24),
        rates=tuple(learning_rate(settings, step, steps, reductions=step // 3) for step in range(steps)),
        **_CLASSIFIED,
    )


_ALL = (
    NetworkKind(name="residual", build=convolutional.residual, x=_normal(3, 16, 16), settings=_SGD, **_CLASSIFIED),
    NetworkKind(
        name="depthwise", build=convolutional.depthwise, x=_normal(3, 16, 16), settings=_RMSPROP, **_CLASSIFIED
    ),
    NetworkKind(name="dense", build=convolutional.dense, x=_normal(3, 16, 16), **_CLASSIFIED),
    NetworkKind(name="cells", build=convolutional.Cells, x=_normal(3, 12, 12), **_CLASSIFIED),
    NetworkKind(
        name="unet", build=convolutional.UNet, x=_normal(3, 16, 16), y=_normal(1, 16, 16), loss=functional.l1_loss
    ),
    NetworkKind(name="volumes", build=convolutional.Volumes, x=_normal(2, 4, 8, 8), **_CLASSIFIED),
    NetworkKind(
        name="normalised", build=convolutional.normalised, x=_normal(4, 8, 8), settings=_ADAMW, **_CLASSIFIED
    ),
    NetworkKind(name="windows", build=small_networks.Windows, x=_normal(3, 16, 16), settings=_ADAMW, **_CLASSIFIED),
    NetworkKind(name="decoder", build=small_networks.DecoderNetwork, settings=_ADAMW, **_LABELLED),
    NetworkKind(
        name="averaged",
        build=small_networks.Encoder,
        settings=OptimizerSettings(kind="adamw", average_decay=0.9),
        **_LABELLED,
    ),
    NetworkKind(
        name="experts", build=small_networks.Experts, x=_normal(6, 16), y=_normal(6, 16), loss=functional.mse_loss
    ),
    NetworkKind(
        name="embeddings",
        build=small_networks.Recommender,
        x=_integers(5_000, 8),
        y=_normal(1),
        loss=functional.mse_loss,
        settings=_ADAGRAD,
    ),
    NetworkKind(name="towers", build=small_networks.Towers, x=_integers(1_000, 12), settings=_ADAGRAD, **_OWN_LOSS),
    NetworkKind(name="graph", build=small_networks.GraphConvolution, x=_normal(9, 5), **_CLASSIFIED),
    NetworkKind(
        name="recurrent", build=small_networks.RecurrentNetwork, x=_normal(7, 6), settings=_RMSPROP, **_CLASSIFIED
    ),
    NetworkKind(
        name="unrolled",
        build=small_networks.Unrolled,
        settings=OptimizerSettings(kind="sgd", momentum=0.9, clip_norm=0.1),
        **_LABELLED,
    ),
    NetworkKind(
        name="complex",
        build=small_networks.Spectral,
        x=_normal(2, 16),
        y=_normal(2, 16),
        loss=functional.huber_loss,
        settings=_RMSPROP,
    ),
    NetworkKind(name="adversarial", build=small_networks.Adversarial, x=_normal(8), **_OWN_LOSS),
    NetworkKind(name="diffusion", build=small_networks.Diffusion, x=_normal(1, 8, 8), **_OWN_LOSS),
    NetworkKind(
        name="accumulated",
        build=small_networks.Perceptron,
        x=_normal(24),
        settings=OptimizerSettings(kind="adamw", clip_norm=0.5),
        passes=Passes(micro_batch_size=3, precision="bfloat16"),
        rows=8,
        **_CLASSIFIED,
    ),
    *(
        NetworkKind(
            name=name,
            build=build,
            x=embedded_networks.encoded_rows,
            y=_integers(CLASSES),
            loss=MemberLoss(nn.CrossEntropyLoss()),
            settings=_ADAMW,
        )
        for name, build in embedded_networks.builders(CLASSES).items()
    ),
    NetworkKind(
        name="ensemble",
        build=_ensemble,
        x=_normal(24),
        y=_integers(CLASSES),
        loss=EnsembleLoss(nn.CrossEntropyLoss()),
        settings=_SGD,
    ),
    *(
        NetworkKind(name=name, build=build, x=embedded_networks.narrow_texts, settings=_ADAMW, **_CLASSIFIED)
        for name, build in embedded_networks.text_builders(CLASSES).items()
    ),
    *(
        NetworkKind(
            name=name,
            build=build,
            x=embedded_networks.narrow_texts,
            settings=_SGD if name == "pretrained_head" else _ADAMW,  # as jobs by default
            architecture="pretrained",
            **_CLASSIFIED,
        )
        for name, build in embedded_networks.pretrained_builders(CLASSES).items()
    ),
    *(
        NetworkKind(
            name=f"short_{name}", build=build, x=embedded_networks.short_texts, settings=_ADAMW, **_CLASSIFIED
        )
        for name, build in (
            embedded_networks.text_builders(CLASSES) | embedded_networks.pretrained_builders(CLASSES)
        ).items()
    ),
    *(
        NetworkKind(name=name, build=build, x=embedded_networks.encoded_images, settings=_ADAMW, **_CLASSIFIED)
        for name, build in embedded_networks.image_builders(CLASSES).items()
    ),
    *(
        NetworkKind(name=name, build=build, x=_normal(3, 12, 12), settings=_ADAMW, **_CLASSIFIED)
        for name, build in embedded_networks.picture_builders(CLASSES).items()
    ),
    *(
        NetworkKind(
            name=name,
            build=build,
            x=_normal(*timm_networks.SHAPE),
            settings=_ADAMW,
            architecture="timm",
            **_CLASSIFIED,
        )
        for name, build in timm_networks.builders(CLASSES).items()
    ),
    NetworkKind(
        name="mixup",
        build=convolutional.residual,
        x=_normal(3, 16, 16),
        y=_mixed_targets,
        loss=loss_of(
            Task.CLASSIFICATION, TrainingSettings.parse({"mixup": 0.4, "label_smoothing": 0.1}, 8), weighted=False
        ),
        settings=_ADAMW,
        passes=Passes(micro_batch_size=3),
        rows=8,
    ),
    *(_schedule_kind(schedule) for schedule in HYPERPARAMS["schedule"]["values"]),
    *(
        NetworkKind(
            name=name,
            build=build,
            x=_normal(*shape),
            architecture="layers" if name in declared_networks.LAYERS_OF_KINDS else name,
            **_CLASSIFIED,
        )
        for name, (shape, build) in declared_networks.layer_builders(CLASSES).items()
    ),
    *(
        NetworkKind(name=name, build=build, loss=PinballLoss(declared_networks.FORECAST), **_FORECAST)
        for name, build in declared_networks.forecast_builders().items()
    ),
    NetworkKind(
        name="pinball",
        build=declared_networks.forecast_builders(ensemble=2)["window_mlp"],
        loss=EnsembleLoss(PinballLoss(declared_networks.FORECAST)),
        architecture="window_mlp",
        **_FORECAST,
    ),
    # The losses of a forecast, of an anomaly and of pairs are not those of rows, and belong to their networks.
    *(
        _loss_kind(Task(task), name)
        for task, names in LOSSES.items()
        if task not in ("forecast", "anomaly", "pairs")
        for name in names
    ),
    NetworkKind(
        name="reconstruction",
        build=_autoencoder,
        x=_normal(24),
        y=_integers(2, 1),
        loss=ReconstructionLoss(),
        settings=_ADAMW,
        architecture="autoencoder",
    ),
    NetworkKind(
        name="in_batch_softmax",
        build=embedded_networks.towers,
        x=embedded_networks.encoded_texts,
        y=embedded_networks.item_targets,
        loss=InBatchSoftmax(8),
        settings=_ADAMW,
        rows=8,
        architecture="two_towers",
    ),
    *(_loss_kind(Task.REGRESSION, name, values=3) for name in ("mse", "poisson")),
)
KINDS: Mapping[str, NetworkKind] = MappingProxyType({kind.name: kind for kind in _ALL})
