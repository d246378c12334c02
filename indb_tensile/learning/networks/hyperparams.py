"""Hyper-parameters with their defaults filled in, and the learning rate as a function of the step."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from indb_tensile.job import JobSpec, Task
from indb_tensile.learning.networks import training_length
from indb_tensile.request.hyperparam_rules import HYPERPARAMS, ONLY_WITH, check_hyperparams
from indb_tensile.request.image_rules import AUGMENTATIONS
from indb_tensile.request.loss_rules import LOSS_OPTIONS
from indb_tensile.request.parameter_rules import fill_defaults

# Lion's authors recommend a third to a tenth of adamw's rate, and three to ten times its weight decay.
_LEARNING_RATE = {"sgd": 0.05, "adam": 2e-3, "adamw": 2e-3, "adagrad": 1e-2, "rmsprop": 1e-3, "lion": 3e-4}
_WEIGHT_DECAY = {"adamw": 1e-2, "lion": 1e-1}  # torch's default for adamw; 0 for all other optimizers
_BETAS = {"lion": (0.9, 0.99)}  # the authors' default
# Of a registered network: as in the papers of BERT and of LoRA.
_PRETRAINED_RATE = {"all": 1e-4, "lora": 1e-3}
# Of a head alone. Steps of adamw are as large for numbers of a vector that hardly vary as for others, so a head that
# learns by it from few labels follows noise: docs/results/models.md has the accuracy of both.
_HEAD = {"optimizer": "sgd", "learning_rate": 2.5e-3}
# A request that gives one of these has an optimizer in mind: adamw, unless it names another one.
_OF_OPTIMIZER = ("optimizer", "learning_rate", "betas", "eps", "weight_decay_of")
_PRETRAINED_BATCH = 32  # the papers': a step of an encoder takes far more memory a row than one of a table's network
_ANOMALY_EPOCHS = 50  # of `bench anomalies`: a longer training reconstructs the anomalies of a small table too
_WARMUP = {"one_cycle": 0.3}  # torch's default; 0 for all other schedules
_ONE_CYCLE_START = 25.0  # the highest rate by the first one, and
_ONE_CYCLE_FALL = 1e4  # the first rate by the last one: torch's defaults
_EPS = {"adagrad": 1e-10}  # torch.optim's default; 1e-8 for all other optimizers


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSettings:
    """The hyper-parameters of a training, with defaults filled in.

    `warmup` and `decay_at` are shares of the whole run. `clip_norm` limits the norm of all gradients together; None
    means no limit. The weights of the layers in `freeze` do not change. If `average_decay` is set, a moving average
    of the weights is validated and published. A step processes its batch in parts of at most `micro_batch_size` rows;
    None means the whole batch at once. Batches have texts of like length, of at most `length_buckets` lengths
    (length_buckets.py); None means one. `reduce` says how several devices add up gradients
    (executor/capture/rank_share.py), and `zero_stage` whether they divide the optimizer's state
    (executor/capture/state_division.py). `precision` applies to matrix products and convolutions
    (executor/run/precision.py); parameters, gradients and optimizer state are always float32. `class_weight` and
    `weight` are read by row_weights.py, the loss and its options by weighted_losses.py; without a loss it is the
    task's. `ensemble` is the number of networks that predict together (ensemble.py), and `mixup` the alpha of
    mixup.py. `baseline` says whether the version gets a baseline (boosted_baseline.py).
    """

    epochs: int
    batch_size: int
    micro_batch_size: int | None
    length_buckets: int | None
    reduce: str
    zero_stage: int | None
    precision: str
    optimizer: str
    learning_rate: float
    schedule: str
    warmup: float
    decay: float
    decay_at: tuple[float, ...]
    decay_patience: int | None
    momentum: float
    nesterov: bool
    betas: tuple[float, float]
    alpha: float
    centered: bool
    eps: float
    weight_decay: float
    weight_decay_of: str
    clip_norm: float | None
    average_decay: float | None
    loss: str | None
    label_smoothing: float | None
    gamma: float | None
    quantile: float | None
    class_weight: str | dict[str, float] | None
    weight: str | None
    freeze: tuple[str, ...] | None
    ensemble: int
    augment_flip: bool
    augment_shift: float
    augment_rotation: float
    augment_color: float
    augment_cutout: float
    mixup: float | None
    contamination: float | None
    baseline: bool
    seed: int

    @classmethod
    def parse(cls, hyperparams: Mapping[str, Any], rows: int) -> "TrainingSettings":
        """Return the settings of a training on `rows` training rows.

        Raises RequestError as `check_hyperparams` does.
        """
        values = fill_defaults(check_hyperparams(hyperparams), HYPERPARAMS)
        if values["batch_size"] is None:
            values["batch_size"] = training_length.batch_size(rows)
        if values["epochs"] is None:
            values["epochs"] = training_length.epochs(math.ceil(rows / values["batch_size"]))
        if values["ensemble"] is None:
            values["ensemble"] = 1
        for name, value in _defaults(values).items():
            if values[name] is None:
                values[name] = value
        for name in ("betas", "decay_at"):
            values[name] = tuple(float(value) for value in values[name])
        return cls(**values)

    def to_hyperparams(self) -> dict[str, Any]:
        """Return hyper-parameters that give these settings for any number of rows.

        Values that were chosen by default are explicit in them.
        """
        own = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}
        unused = {name for name, (switch, allowed) in ONLY_WITH.items() if own[switch] not in (None, *allowed)}
        unused |= {name for name in AUGMENTATIONS if not own[name]}
        return {name: value for name, value in own.items() if value is not None and name not in unused}


def settings_of(
    spec: JobSpec, architecture: Mapping[str, Any], rows: int, *, starts: bool = False
) -> TrainingSettings:
    """Return the settings of a job on `rows` training rows, with the network that its `architecture` stands for.

    If the package chooses the network and the length of the training, it also chooses the size of an ensemble of
    `mlp` or `window_mlp`, unless the training `starts` from other weights. If several devices train together, a batch
    is divided into one part for each, unless the request divides it otherwise.
    """
    settings = _settings_of_one(spec, architecture, rows, starts=starts)
    if spec.devices == 1 or settings.micro_batch_size is not None:
        return settings
    return replace(settings, micro_batch_size=max(1, -(-min(settings.batch_size, rows) // spec.devices)))


def _settings_of_one(spec: JobSpec, architecture: Mapping[str, Any], rows: int, *, starts: bool) -> TrainingSettings:
    if architecture["type"] == "pretrained":
        return TrainingSettings.parse(_of_pretrained(architecture, spec.hyperparams, rows) | spec.hyperparams, rows)
    settings = TrainingSettings.parse(spec.hyperparams, rows)
    if spec.task is Task.ANOMALY and spec.hyperparams.get("epochs") is None:
        return replace(settings, epochs=min(settings.epochs, _ANOMALY_EPOCHS))
    requested = spec.architecture["type"] != "auto" or {"epochs", "ensemble", "freeze"} & spec.hyperparams.keys()
    if starts or requested or architecture["type"] not in ("mlp", "window_mlp"):
        return settings
    return replace(settings, ensemble=training_length.members(rows))


def _of_pretrained(architecture: Mapping[str, Any], hyperparams: Mapping[str, Any], rows: int) -> dict[str, Any]:
    """Return the defaults of a network that has learned already: small batches, and few small steps if it goes on."""
    batch = hyperparams.get("batch_size") or _PRETRAINED_BATCH
    epochs = training_length.epochs(math.ceil(rows / batch), training_length.PRETRAINED_STEPS)
    own: dict[str, Any] = {"batch_size": batch, "epochs": epochs}
    part = architecture.get("train") or "head"
    if part == "head":
        return own if any(hyperparams.get(name) is not None for name in _OF_OPTIMIZER) else own | _HEAD
    scales = hyperparams.get("optimizer") in (None, "adam", "adamw")  # the rates are theirs
    return own | ({"learning_rate": _PRETRAINED_RATE[part]} if scales else {})


def _defaults(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the defaults that depend on the optimizer, the schedule or the loss."""
    optimizer, schedule = values["optimizer"], values["schedule"]
    return {
        "learning_rate": _LEARNING_RATE[optimizer],
        "weight_decay": _WEIGHT_DECAY.get(optimizer, 0.0),
        "betas": _BETAS.get(optimizer, (0.9, 0.999)),
        "eps": _EPS.get(optimizer, 1e-8),
        "momentum": 0.9 if optimizer == "sgd" else 0.0,
        "warmup": _WARMUP.get(schedule, 0.0),
        "decay_patience": training_length.decay_patience(values["epochs"]) if schedule == "plateau" else None,
        **{name: value for name, (loss, value) in LOSS_OPTIONS.items() if values["loss"] == loss},
    }


def learning_rate(settings: TrainingSettings, step: int, total_steps: int, reductions: int = 0) -> float:
    """Return the learning rate of step `step` (from 0) of `total_steps`.

    The rate rises linearly during the warm-up and then follows the schedule; with `one_cycle` it rises as half a
    cosine. `reductions` is how often the schedule `plateau` has lowered the rate (plateau.py). If training may stop
    early, `total_steps` is that of all epochs.
    """
    highest = settings.learning_rate
    if settings.schedule == "one_cycle":
        return _one_cycle(highest, settings.warmup * total_steps - 1, step, total_steps - 1)
    warm_steps = math.ceil(settings.warmup * total_steps)
    if step < warm_steps:
        return float(highest * (step + 1) / warm_steps * settings.decay**reductions)
    match settings.schedule:
        case "cosine":
            done = (step - warm_steps) / max(1, total_steps - warm_steps)
            return highest * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
        case "step":
            passed = sum(step >= share * total_steps for share in settings.decay_at)
            return float(highest * settings.decay**passed)
        case "plateau":
            return float(highest * settings.decay**reductions)
        case _:
            return highest


def _one_cycle(highest: float, top: float, step: int, last: int) -> float:
    """Return the rate of `torch.optim.lr_scheduler.OneCycleLR`. It is highest at `top`, which may be between steps.

    Smith and Topin, "Super-Convergence" (2018). The momentum stays as it is.
    """
    first = highest / _ONE_CYCLE_START
    if step < top:
        return _half_cosine(first, highest, step / top)
    top = max(top, 0.0)
    return _half_cosine(highest, first / _ONE_CYCLE_FALL, (step - top) / (last - top)) if last > top else highest


def _half_cosine(start: float, end: float, done: float) -> float:
    return end + (start - end) / 2 * (1 + math.cos(math.pi * done))
