"""Hyper-parameters: names, ranges and defaults, and the learning rate as a function of the step."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from indb_tensile.errors import RequestError
from indb_tensile.learning import training_length
from indb_tensile.learning.parameters import Specification, check_parameters

# None as default means that the value is computed: epochs and batch_size from the number of rows, others from the
# optimizer.
HYPERPARAMS: dict[str, Specification] = {
    "epochs": {"type": "integer", "minimum": 1, "maximum": 100000, "default": None},
    "batch_size": {"type": "integer", "minimum": 1, "maximum": 1048576, "default": None},
    "micro_batch_size": {"type": "integer", "minimum": 1, "maximum": 1048576, "default": None},
    "precision": {"type": "choice", "values": ["torch", "float32", "tf32", "bfloat16"], "default": "torch"},
    "optimizer": {"type": "choice", "values": ["sgd", "adam", "adamw", "adagrad", "rmsprop"], "default": "adamw"},
    "learning_rate": {"type": "number", "above": 0, "maximum": 100, "default": None},
    "schedule": {"type": "choice", "values": ["constant", "cosine", "step"], "default": "cosine"},
    "warmup": {"type": "number", "minimum": 0, "below": 1, "default": 0.0},
    "decay": {"type": "number", "above": 0, "maximum": 1, "default": 0.1},
    "decay_at": {"type": "numbers", "above": 0, "below": 1, "length": [1, 16], "default": [0.5, 0.75]},
    "momentum": {"type": "number", "minimum": 0, "below": 1, "default": None},
    "nesterov": {"type": "boolean", "default": False},
    "betas": {"type": "numbers", "minimum": 0, "below": 1, "length": [2, 2], "default": [0.9, 0.999]},
    "alpha": {"type": "number", "minimum": 0, "below": 1, "default": 0.99},
    "centered": {"type": "boolean", "default": False},
    "eps": {"type": "number", "above": 0, "maximum": 1, "default": None},
    "weight_decay": {"type": "number", "minimum": 0, "maximum": 100, "default": None},
    "clip_norm": {"type": "number", "above": 0, "default": None},
    "average_decay": {"type": "number", "above": 0, "below": 1, "default": None},
    "seed": {"type": "integer", "minimum": 0, "maximum": 2147483647, "default": 0},
}

# Parameters that have an effect only if another parameter has one of these values. Otherwise they are refused.
ONLY_WITH = {
    "momentum": ("optimizer", ("sgd", "rmsprop")),
    "nesterov": ("optimizer", ("sgd",)),
    "betas": ("optimizer", ("adam", "adamw")),
    "alpha": ("optimizer", ("rmsprop",)),
    "centered": ("optimizer", ("rmsprop",)),
    "eps": ("optimizer", ("adam", "adamw", "adagrad", "rmsprop")),
    "decay": ("schedule", ("step",)),
    "decay_at": ("schedule", ("step",)),
}
_LEARNING_RATE = {"sgd": 0.05, "adam": 2e-3, "adamw": 2e-3, "adagrad": 1e-2, "rmsprop": 1e-3}
_WEIGHT_DECAY = {"adamw": 1e-2}  # torch's default for adamw; 0 for all other optimizers
_EPS = {"adagrad": 1e-10}  # torch.optim's default; 1e-8 for all other optimizers


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSettings:
    """The hyper-parameters of a training, with defaults filled in.

    `warmup` and `decay_at` are shares of the whole run. `clip_norm` limits the norm of all gradients together; None
    means no limit. If `average_decay` is set, a moving average of the weights is validated and published. A step
    processes its batch in parts of at most `micro_batch_size` rows; None means the whole batch at once. `precision`
    applies to matrix products and convolutions (executor/run/precision.py); parameters, gradients and optimizer state
    are always float32.
    """

    epochs: int
    batch_size: int
    micro_batch_size: int | None
    precision: str
    optimizer: str
    learning_rate: float
    schedule: str
    warmup: float
    decay: float
    decay_at: tuple[float, ...]
    momentum: float
    nesterov: bool
    betas: tuple[float, float]
    alpha: float
    centered: bool
    eps: float
    weight_decay: float
    clip_norm: float | None
    average_decay: float | None
    seed: int

    @classmethod
    def parse(cls, hyperparams: Mapping[str, Any], rows: int) -> "TrainingSettings":
        """Return the settings of a training on `rows` training rows.

        Raises RequestError as `check_hyperparams` does.
        """
        values = check_hyperparams(hyperparams)
        if values["batch_size"] is None:
            values["batch_size"] = training_length.batch_size(rows)
        if values["epochs"] is None:
            values["epochs"] = training_length.epochs(math.ceil(rows / values["batch_size"]))
        optimizer = values["optimizer"]
        if values["learning_rate"] is None:
            values["learning_rate"] = _LEARNING_RATE[optimizer]
        if values["weight_decay"] is None:
            values["weight_decay"] = _WEIGHT_DECAY.get(optimizer, 0.0)
        if values["eps"] is None:
            values["eps"] = _EPS.get(optimizer, 1e-8)
        if values["momentum"] is None:
            values["momentum"] = 0.9 if optimizer == "sgd" else 0.0
        for name in ("betas", "decay_at"):
            values[name] = tuple(float(value) for value in values[name])
        return cls(**values)

    def to_hyperparams(self) -> dict[str, Any]:
        """Return hyper-parameters that give these settings for any number of rows.

        Values that were chosen by default are explicit in them.
        """
        own = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}
        unused = {name for name, (switch, allowed) in ONLY_WITH.items() if own[switch] not in allowed}
        return {name: value for name, value in own.items() if value is not None and name not in unused}


def check_hyperparams(hyperparams: Mapping[str, Any]) -> dict[str, Any]:
    """Return every hyper-parameter with its requested value or its default.

    Raises RequestError for an unknown name, a wrong type or a value out of range; the HINT lists valid values.
    """
    values = check_parameters("hyperparams", hyperparams, HYPERPARAMS)
    for name, (switch, allowed) in ONLY_WITH.items():
        if hyperparams.get(name) is not None and values[switch] not in allowed:
            hint = f'Leave it out, or set "{switch}" to {" or ".join(allowed)}.'
            raise RequestError(f'hyperparams: "{name}" means nothing with {switch} {values[switch]}', hint=hint)
    if values["nesterov"] and values["momentum"] == 0:
        raise RequestError('hyperparams: "nesterov" needs a momentum above 0', hint='Set "momentum" to 0.9.')
    return values


def learning_rate(settings: TrainingSettings, step: int, total_steps: int) -> float:
    """Return the learning rate of step `step` (from 0) of `total_steps`.

    The rate rises linearly during the warm-up and then follows the schedule.
    """
    warm_steps = math.ceil(settings.warmup * total_steps)
    if step < warm_steps:
        return settings.learning_rate * (step + 1) / warm_steps
    match settings.schedule:
        case "cosine":
            done = (step - warm_steps) / max(1, total_steps - warm_steps)
            return settings.learning_rate * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
        case "step":
            passed = sum(step >= share * total_steps for share in settings.decay_at)
            return float(settings.learning_rate * settings.decay**passed)
        case _:
            return settings.learning_rate
