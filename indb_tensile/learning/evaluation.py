"""How good a model is: metrics by scikit-learn, each with the direction in which it is better."""

import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn import metrics

from indb_tensile.errors import RequestError
from indb_tensile.job import Task
from indb_tensile.learning.features import Preprocessor

HIGHER_IS_BETTER: dict[str, bool] = {
    "loss": False,  # what training minimises
    "accuracy": True,
    "balanced_accuracy": True,
    "f1_macro": True,
    "log_loss": False,
    "roc_auc": True,
    "r2": True,
    "rmse": False,
    "mae": False,
}

METRICS: dict[Task, tuple[str, ...]] = {
    Task.CLASSIFICATION: ("accuracy", "balanced_accuracy", "f1_macro", "log_loss", "roc_auc"),
    Task.REGRESSION: ("r2", "rmse", "mae"),
}

Array = npt.NDArray[Any]

_METRIC_BLOCK_NUMBERS = 1 << 20  # of outputs: what is computed at once
_MOST_IN_MEMORY = 1 << 25  # chances: 256 MB


def evaluate(task: Task, outputs: Array, targets: Array, preprocessor: Preprocessor) -> dict[str, float]:
    """Every metric that these rows define, regression in the target's own unit.

    `outputs` are the network's, (rows, outputs); `targets` the encoded ones. With more than two classes `roc_auc` is
    the mean over the classes that occur of each one against all others. Undefined, and left out: `roc_auc` where a
    single class occurs, `r2` unless the targets differ; everything for no rows.
    """
    if not len(targets):
        return {}
    if task is Task.CLASSIFICATION:
        return _classification(outputs, targets)
    target = preprocessor.target
    return _regression(target.restore(outputs), target.restore(targets))


def default_metric(task: Task) -> str:
    """The metric by which versions are compared when none is named."""
    return METRICS[task][0]


def check_metric(task: Task, metric: str | None) -> str:
    """The metric to compare by; raises RequestError for one that the task does not have."""
    if metric is None:
        return default_metric(task)
    if metric not in METRICS[task]:
        hint = f"Metrics of {task}: {', '.join(METRICS[task])}."
        raise RequestError(f'unknown metric "{metric}" for {task}', hint=hint)
    return metric


def better(metric: str, new: Mapping[str, float], old: Mapping[str, float]) -> bool:
    """Whether `new` beats `old` in this metric; an undefined or non-finite value beats nothing."""
    ours, theirs = new.get(metric, np.nan), old.get(metric, np.nan)
    if not np.isfinite(theirs):
        return bool(np.isfinite(ours))
    return bool(ours > theirs) if HIGHER_IS_BETTER[metric] else bool(ours < theirs)


def probabilities(outputs: Array) -> npt.NDArray[np.float64]:
    """Softmax of each row. What is too large for memory is kept in a file without a name."""
    if outputs.size <= _METRIC_BLOCK_NUMBERS:
        return _softmax(outputs)
    if outputs.size <= _MOST_IN_MEMORY:
        chance = np.empty(outputs.shape)
    else:
        with tempfile.TemporaryFile(prefix="tensile-chance-") as file:  # the mapping outlives it
            chance = np.memmap(file, np.float64, "w+", shape=outputs.shape)
    for rows in _blocks(outputs):
        chance[rows] = _softmax(outputs[rows])
    return chance


def _softmax(outputs: Array) -> npt.NDArray[np.float64]:
    shifted = np.exp(outputs.astype(np.float64) - outputs.max(axis=1, keepdims=True))
    normal: npt.NDArray[np.float64] = shifted / shifted.sum(axis=1, keepdims=True)
    return normal


def _blocks(outputs: Array) -> Iterator[slice]:
    """All rows, some at a time."""
    step = max(1, _METRIC_BLOCK_NUMBERS // max(1, outputs.shape[1]))
    return (slice(start, start + step) for start in range(0, len(outputs), step))


def _log_loss(chance: Array, targets: Array) -> float:
    """The mean of -log of the chance that each row's own class has, as scikit-learn's `log_loss` has it.

    That makes some copies of all chances.
    """
    least = np.finfo(np.float64).eps
    own = np.array(chance[np.arange(len(targets)), targets], np.float64)
    return float(-np.log(own.clip(least, 1 - least)).mean())


def _classification(outputs: Array, targets: Array) -> dict[str, float]:
    if not all(np.isfinite(outputs[rows]).all() for rows in _blocks(outputs)):
        # A network that diverged tells nothing apart; scikit-learn would refuse it.
        outputs = np.broadcast_to(np.zeros((1, outputs.shape[1]), np.float32), outputs.shape)
    chance = probabilities(outputs)
    said = outputs.argmax(axis=1)
    present = np.unique(targets)
    values = {
        "accuracy": float(metrics.accuracy_score(targets, said)),
        # The mean recall of the classes that occur, which is scikit-learn's, without its warning about the others.
        "balanced_accuracy": float(
            metrics.recall_score(targets, said, labels=present, average="macro", zero_division=0)
        ),
        "f1_macro": float(metrics.f1_score(targets, said, average="macro", zero_division=0)),
        "log_loss": _log_loss(chance, targets),
    }
    if len(present) > 1:
        # Of two classes the second one alone is asked for: the first one's figure is the same.
        asked = present[1:] if outputs.shape[1] == 2 else present
        values["roc_auc"] = float(np.mean([_one_against_rest(chance[:, c], targets == c) for c in asked]))
    return values


def _one_against_rest(chance: Array, positive: Array) -> float:
    """How probably a row of the class has a higher chance than another row, an equal one counting half.

    That is the area under the ROC curve, as scikit-learn's `roc_auc_score` has it, without its checks: those take a
    millisecond for each class.
    """
    ours, others = chance[positive], np.sort(chance[~positive])
    below = np.searchsorted(others, ours, "left") + np.searchsorted(others, ours, "right")
    return float(below.sum() / (2 * len(ours) * len(others)))


def _regression(predicted: Array, targets: Array) -> dict[str, float]:
    varied = len(targets) > 1 and targets.min() != targets.max()
    if not np.isfinite(predicted).all():
        worst = {"rmse": float("inf"), "mae": float("inf")}
        return {"r2": float("-inf"), **worst} if varied else worst
    values = {
        "rmse": float(metrics.root_mean_squared_error(targets, predicted)),
        "mae": float(metrics.mean_absolute_error(targets, predicted)),
    }
    if varied:
        values = {"r2": float(metrics.r2_score(targets, predicted)), **values}
    return values
