"""The hyper-parameters of a training: their names, ranges and defaults, and the combinations that are refused.

A default of None is computed by the worker: epochs, batch_size and ensemble from the number of rows, decay_patience
from the epochs (learning/networks/training_length.py), the loss from the task, and the others from the optimizer, the
schedule or the loss (learning/networks/hyperparams.py).
"""

from collections.abc import Sequence
from typing import Any

from ..errors import RequestError
from .abbreviation import shown
from .loss_rules import LOSS_OPTIONS, LOSSES
from .near_names import did_you_mean
from .parameter_rules import Json, Rule, check_parameters

_SHARE: Rule = {"type": "number", "minimum": 0, "below": 1}
_FLAG: Rule = {"type": "boolean", "default": False}
HYPERPARAMS: dict[str, Rule] = {
    "epochs": {"type": "integer", "minimum": 1, "maximum": 100000, "default": None},
    "batch_size": {"type": "integer", "minimum": 1, "maximum": 1048576, "default": None},
    "micro_batch_size": {"type": "integer", "minimum": 1, "maximum": 1048576, "default": None},
    "length_buckets": {"type": "integer", "minimum": 1, "maximum": 8, "default": None},
    "reduce": {"type": "choice", "values": ["exact", "fast"], "default": "exact"},
    "zero_stage": {"type": "integer", "minimum": 0, "maximum": 1, "default": None},
    "precision": {"type": "choice", "values": ["torch", "float32", "tf32", "bfloat16"], "default": "torch"},
    "optimizer": {
        "type": "choice",
        "values": ["sgd", "adam", "adamw", "adagrad", "rmsprop", "lion"],
        "default": "adamw",
    },
    "learning_rate": {"type": "number", "above": 0, "maximum": 100, "default": None},
    "schedule": {
        "type": "choice",
        "values": ["constant", "cosine", "step", "one_cycle", "plateau"],
        "default": "cosine",
    },
    "warmup": _SHARE | {"default": None},
    "decay": {"type": "number", "above": 0, "maximum": 1, "default": 0.1},
    "decay_at": {"type": "numbers", "above": 0, "below": 1, "length": [1, 16], "default": [0.5, 0.75]},
    "decay_patience": {"type": "integer", "minimum": 0, "maximum": 100000, "default": None},
    "momentum": _SHARE | {"default": None},
    "nesterov": _FLAG,
    "betas": {"type": "numbers", "minimum": 0, "below": 1, "length": [2, 2], "default": None},
    "alpha": _SHARE | {"default": 0.99},
    "centered": _FLAG,
    "eps": {"type": "number", "above": 0, "maximum": 1, "default": None},
    "weight_decay": {"type": "number", "minimum": 0, "maximum": 100, "default": None},
    "weight_decay_of": {"type": "choice", "values": ["all", "weights"], "default": "all"},
    "clip_norm": {"type": "number", "above": 0, "default": None},
    "average_decay": {"type": "number", "above": 0, "below": 1, "default": None},
    "loss": {"type": "choice", "values": [name for names in LOSSES.values() for name in names], "default": None},
    "label_smoothing": _SHARE | {"default": None},
    "gamma": {"type": "number", "minimum": 0, "maximum": 100, "default": None},
    "quantile": {"type": "number", "above": 0, "below": 1, "default": None},
    "class_weight": {"type": "weights", "values": ["balanced"], "minimum": 0, "maximum": 1e6, "default": None},
    "weight": {"type": "text", "default": None},
    "freeze": {"type": "texts", "length": [1, 500], "default": None},
    "ensemble": {"type": "integer", "minimum": 1, "maximum": 32, "default": None},
    "augment_flip": _FLAG,
    "augment_shift": {"type": "number", "minimum": 0, "maximum": 0.5, "default": 0.0},
    "augment_rotation": {"type": "number", "minimum": 0, "maximum": 180, "default": 0.0},
    "augment_color": {"type": "number", "minimum": 0, "maximum": 1, "default": 0.0},
    "augment_cutout": {"type": "number", "minimum": 0, "maximum": 1, "default": 0.0},
    "mixup": {"type": "number", "above": 0, "maximum": 100, "default": None},
    "contamination": {"type": "number", "above": 0, "maximum": 0.5, "default": None},
    "baseline": {"type": "boolean", "default": True},
    "seed": {"type": "integer", "minimum": 0, "maximum": 2147483647, "default": 0},
}
HYPERPARAMS_OF_ESTIMATORS = (
    "seed",
    "class_weight",
    "weight",
)  # of a model of scikit-learn; networks have all of them
_WEIGHT_KINDS = ("integer", "float")  # kinds of the column that "weight" may name
DECAYING = ("adamw", "lion")  # optimizers that have a weight decay by default
# Parameters that have an effect only if another parameter has one of these values. Otherwise they are refused.
ONLY_WITH = {
    "momentum": ("optimizer", ("sgd", "rmsprop")),
    "nesterov": ("optimizer", ("sgd",)),
    "betas": ("optimizer", ("adam", "adamw", "lion")),
    "alpha": ("optimizer", ("rmsprop",)),
    "centered": ("optimizer", ("rmsprop",)),
    "eps": ("optimizer", ("adam", "adamw", "adagrad", "rmsprop")),
    "decay": ("schedule", ("step", "plateau")),
    "decay_at": ("schedule", ("step",)),
    "decay_patience": ("schedule", ("plateau",)),
    **{name: ("loss", (loss,)) for name, (loss, _) in LOSS_OPTIONS.items()},
}


def check_hyperparams(hyperparams: Any) -> Json:
    """Return the hyper-parameters without nulls.

    Raises RequestError for an unknown name, a wrong type, a value out of range, and a parameter that has no effect.
    """
    values = check_parameters("hyperparams", hyperparams, HYPERPARAMS)
    effective = {name: rule["default"] for name, rule in HYPERPARAMS.items()} | values
    for name, (switch, allowed) in ONLY_WITH.items():
        # If the request names no loss, the task decides about it, and loss_rules.py checks this parameter.
        if name in values and effective[switch] not in (None, *allowed):
            hint = f'Leave it out, or set "{switch}" to {" or ".join(allowed)}.'
            raise RequestError(f'hyperparams: "{name}" means nothing with {switch} {effective[switch]}', hint=hint)
    decays = values.get("weight_decay", effective["optimizer"] in DECAYING)
    if effective["weight_decay_of"] == "weights" and not decays:
        hint = f'Set "weight_decay", or "optimizer" to {" or ".join(DECAYING)}.'
        raise RequestError('hyperparams: "weight_decay_of" needs a weight decay above 0', hint=hint)
    if effective["nesterov"] and values.get("momentum") == 0:
        raise RequestError('hyperparams: "nesterov" needs a momentum above 0', hint='Set "momentum" to 0.9.')
    if values.get("zero_stage") == 1 and effective["optimizer"] == "sgd" and values.get("momentum") == 0:
        message = 'hyperparams: "zero_stage" is 1, and sgd without a momentum keeps no state'
        raise RequestError(message, hint='Leave "zero_stage" out, or use a momentum above 0 or another optimizer.')
    return values


def check_schedule(hyperparams: Json, split: Json) -> None:
    """Raise RequestError for a schedule that needs validation rows if the split has none."""
    if hyperparams.get("schedule") == "plateau" and split.get("valid_size") == 0:
        hint = "Give a valid_size above 0, or another schedule."
        raise RequestError("schedule plateau needs validation rows, and the split's valid_size is 0", hint=hint)


def check_weights(hyperparams: Json, task: str, targets: Sequence[str], features: Sequence[str] | None) -> None:
    """Raise RequestError for class weights without classes, and for a weight that is the target or a feature."""
    if task == "regression" and "class_weight" in hyperparams:
        hint = 'Leave it out, or name a column of weights: "weight".'
        raise RequestError('hyperparams: "class_weight" is for classification and multilabel only', hint=hint)
    _check_labels_of_columns(hyperparams.get("class_weight"), task, targets)
    column = hyperparams.get("weight")
    if column is not None and column in (*targets, *(features or ())):
        role = "the target" if column in targets else "a feature"
        hint = "Name a column of weights, which is not learned from."
        raise RequestError(f'hyperparams: the weight "{column}" is also {role}', hint=hint)


def _check_labels_of_columns(by_class: Any, task: str, targets: Sequence[str]) -> None:
    """Raise RequestError for the weight of a label that is none of the boolean columns of the target."""
    if task != "multilabel" or len(targets) < 2 or not isinstance(by_class, dict):
        return
    unknown = [name for name in by_class if name not in targets]
    if unknown:
        raise RequestError(
            f'hyperparams: "class_weight" names {shown(unknown[0])}, which is no column of the target',
            hint=f"The labels are the columns {', '.join(targets)}.",
        )


def check_weighted_classes(by_class: Json, target: str, classes: Sequence[str]) -> None:
    """Raise RequestError for the weight of a class that the target does not have. `target` is for the message."""
    unknown = [name for name in by_class if name not in classes]
    if unknown:
        raise RequestError(
            f'hyperparams: "class_weight" names {shown(unknown[0])}, and {target} has no such class',
            detail=f"The classes are: {', '.join(classes[:20])}{', ...' if len(classes) > 20 else ''}.",
            hint=f"{did_you_mean(unknown[0], classes)}Name classes as the table shows them; a class that is left out "
            "has the weight 1.",
        )


def check_some_weight(by_class: Json, target: str, classes: Sequence[str]) -> None:
    """Raise RequestError if no class has a weight above 0. `target` is for the message."""
    if classes and not any(by_class.get(name, 1) for name in classes):
        raise RequestError(
            f'hyperparams: "class_weight" is 0 for each of the {len(classes)} classes of {target}',
            hint="Give one class a weight above 0: rows of weight 0 are not learned from.",
        )


def check_weight_kind(column: str, kind: str, description: str) -> None:
    """Raise RequestError for a column whose values are no weights."""
    if kind not in _WEIGHT_KINDS:
        message = f"hyperparams: column {column} {description}, which cannot be a weight"
        raise RequestError(message, hint="Name a column of numbers of 0 or more.")
