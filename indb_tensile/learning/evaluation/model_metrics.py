"""Metrics of a model's quality, and the direction in which each metric is better.

Tests compare them with the metrics of scikit-learn, which most of them equal to the last bit. Its functions are not
used, because they take two milliseconds for the metrics of an epoch, whatever the number of rows, nearly all of it to
check their arguments. The steps of an epoch of a hundred rows take no longer.
"""

import tempfile
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from indb_tensile.job import Task
from indb_tensile.learning.encoding.forecast_encoding import forecast_metrics
from indb_tensile.learning.encoding.preprocessor import Preprocessor
from indb_tensile.learning.metrics.calibration import calibration, calibration_error
from indb_tensile.learning.metrics.vector_metrics import (
    area_of,
    label_metrics,
    listed_figures,
    mean_figures,
    value_figures,
)
from indb_tensile.request.task_rules import METRICS

HIGHER_IS_BETTER: dict[str, bool] = {
    "loss": False,  # the function that training minimises
    "accuracy": True,
    "balanced_accuracy": True,
    "precision_macro": True,
    "recall_macro": True,
    "f1_macro": True,
    "log_loss": False,
    "roc_auc": True,
    "brier": False,
    "calibration_error": False,
    "r2": True,
    "rmse": False,
    "mae": False,
    "mape": False,
    "median_absolute_error": False,
    "f1_micro": True,
    "precision_micro": True,
    "recall_micro": True,
    "subset_accuracy": True,
    "hamming_loss": False,
    "mase": False,
    "smape": False,
    "pinball": False,
    "reconstruction_error": False,
    "average_precision": True,
    "mrr": True,
    "recall_at_1": True,
    "recall_at_10": True,
}

Array = npt.NDArray[Any]

_METRIC_BLOCK_NUMBERS = 1 << 20  # network outputs that are processed at a time
_MOST_IN_MEMORY = 1 << 25  # most probabilities: 256 MB


def evaluate(
    task: Task, outputs: Array, targets: Array, preprocessor: Preprocessor, *, each: bool = False
) -> dict[str, float]:
    """Return every metric that these rows define. Regression metrics are in the target's own unit.

    Of several targets these are the means over the targets; with `each` those of each target follow, such as
    `rmse(height)`.

    `outputs` are the network's, shape (rows, outputs); `targets` are encoded. With more than two classes `roc_auc` is
    the mean, over the classes that occur, of the area for that class against all others. Undefined metrics are left
    out: `roc_auc` if a single class occurs, `r2` if all targets are equal, `mape` if a target is zero, and every
    metric if there are no rows.
    """
    if not len(targets):
        return {}
    if task is Task.CLASSIFICATION:
        return evaluate_classes(outputs, targets)
    if task is Task.MULTILABEL:
        return label_metrics(outputs, targets)
    target = preprocessor.target
    if target.forecast is not None:
        return forecast_metrics(target.forecast, outputs, targets)
    if target.anomaly is not None:
        return target.anomaly.metrics(outputs, targets)
    if target.pair is not None:
        return target.pair.metrics(outputs, targets)
    predicted, actual = target.restore(outputs), target.decode(targets)
    if not target.values:
        return _regression(predicted, actual)
    figures = value_figures(predicted, actual)
    return mean_figures(figures) | (listed_figures(figures, target.values) if each else {})


def default_metric(task: Task) -> str:
    """Return the metric that versions are compared by if the request names none."""
    return METRICS[task][0]


def better(metric: str, new: Mapping[str, float], old: Mapping[str, float]) -> bool:
    """Return whether `new` is better than `old`; an undefined or non-finite value is never better."""
    ours, theirs = new.get(metric, np.nan), old.get(metric, np.nan)
    if not np.isfinite(theirs):
        return bool(np.isfinite(ours))
    return bool(ours > theirs) if HIGHER_IS_BETTER[metric] else bool(ours < theirs)


def probabilities(outputs: Array) -> npt.NDArray[np.float64]:
    """Return the softmax of each row.

    A result that is too large for memory is mapped to a temporary file without a name.
    """
    if outputs.size <= _METRIC_BLOCK_NUMBERS:
        return _softmax(outputs)
    if outputs.size <= _MOST_IN_MEMORY:
        result = np.empty(outputs.shape)
    else:
        with tempfile.TemporaryFile(prefix="tensile-chance-") as file:  # the mapping outlives the open file
            result = np.memmap(file, np.float64, "w+", shape=outputs.shape)
    for rows in _blocks(outputs):
        result[rows] = _softmax(outputs[rows])
    return result


def label_probabilities(outputs: Array) -> npt.NDArray[np.float64]:
    """Return the sigmoid of each output: the probability of each label of a multi-label task."""
    return np.exp(-np.logaddexp(0.0, -outputs.astype(np.float64)))


def finite_outputs(outputs: Array) -> Array:
    """Return the outputs, or equal ones for all classes if the network diverged.

    scikit-learn refuses values that are not finite.
    """
    if all(np.isfinite(outputs[rows]).all() for rows in _blocks(outputs)):
        return outputs
    return np.broadcast_to(np.zeros((1, outputs.shape[1]), np.float32), outputs.shape)


def _softmax(outputs: Array) -> npt.NDArray[np.float64]:
    shifted = np.exp(outputs.astype(np.float64) - outputs.max(axis=1, keepdims=True))
    normal: npt.NDArray[np.float64] = shifted / shifted.sum(axis=1, keepdims=True)
    return normal


def _blocks(outputs: Array) -> Iterator[slice]:
    """Return slices that together cover all rows."""
    step = max(1, _METRIC_BLOCK_NUMBERS // max(1, outputs.shape[1]))
    return (slice(start, start + step) for start in range(0, len(outputs), step))


def _log_loss(class_probabilities: Array, targets: Array) -> float:
    """Return the mean of -log(p), where p is the probability of each row's own class.

    The result equals scikit-learn's `log_loss`, which would make several copies of all probabilities.
    """
    least = np.finfo(np.float64).eps
    own_probabilities = np.array(class_probabilities[np.arange(len(targets)), targets], np.float64)
    return float(-np.log(own_probabilities.clip(least, 1 - least)).mean())


def evaluate_classes(outputs: Array, targets: Array) -> dict[str, float]:
    """Return every metric of a classification that these rows define. The softmax of `outputs` is probabilities."""
    outputs = finite_outputs(outputs)
    accuracy = float((outputs.argmax(axis=1) == targets).mean())
    return {"accuracy": accuracy, **class_means(outputs, targets), **probability_metrics(outputs, targets)}


def probability_metrics(
    outputs: Array, targets: Array, names: Collection[str] = ("log_loss", "roc_auc", "brier", "calibration_error")
) -> dict[str, float]:
    """Return those of these metrics, which need the probabilities of classes, that the rows define."""
    class_probabilities, values = probabilities(outputs), {}
    if "log_loss" in names:
        values["log_loss"] = _log_loss(class_probabilities, targets)
    if "roc_auc" in names and len(present := np.unique(targets)) > 1:
        # Of two classes only the second is scored, since the first has the same area.
        scored = present[1:] if outputs.shape[1] == 2 else present
        areas = [area_of(class_probabilities[:, c], targets == c) for c in scored]
        values["roc_auc"] = float(np.mean(areas))
    if "brier" in names:
        values["brier"] = _brier(class_probabilities, targets)
    if "calibration_error" in names:
        right = outputs.argmax(axis=1) == targets
        values["calibration_error"] = calibration_error(calibration(class_probabilities, right))
    return values


def class_means(outputs: Array, targets: Array) -> dict[str, float]:
    """Return the means over classes. Those named macro are over every class that occurs or is predicted.

    The balanced accuracy is over the classes that occur, as in scikit-learn, whose function also warns about others.
    """
    predicted, classes = outputs.argmax(axis=1), outputs.shape[1]
    right = np.bincount(targets[predicted == targets], minlength=classes)
    occurring, answered = np.bincount(targets, minlength=classes), np.bincount(predicted, minlength=classes)
    used = occurring + answered > 0
    right, occurring, answered = right[used], occurring[used], answered[used]
    recall = right / np.maximum(occurring, 1)
    return {
        "balanced_accuracy": float(recall[occurring > 0].mean()),
        "precision_macro": float((right / np.maximum(answered, 1)).mean()),
        "recall_macro": float(recall.mean()),
        "f1_macro": float((2 * right / (occurring + answered)).mean()),
    }


def _brier(class_probabilities: Array, targets: Array) -> float:
    """Return the Brier score: the mean squared distance of the probabilities from the class that occurred.

    Of two classes only one is counted. The result equals scikit-learn's `brier_score_loss`, which would copy all
    probabilities.
    """
    total = 0.0
    for rows in _blocks(class_probabilities):
        part = np.array(class_probabilities[rows], np.float64)
        part[np.arange(len(part)), targets[rows]] -= 1
        total += float(np.square(part).sum())
    return total / len(targets) / (2 if class_probabilities.shape[1] == 2 else 1)


def _regression(predicted: Array, targets: Array) -> dict[str, float]:
    varied = len(targets) > 1 and targets.min() != targets.max()
    if not np.isfinite(predicted).all():
        names = ("rmse", "mae", "mape", "median_absolute_error")
        worst = {name: float("inf") for name in names if name != "mape" or targets.all()}
        return {"r2": float("-inf"), **worst} if varied else worst
    errors, squares = np.abs(targets - predicted), np.square(targets - predicted)
    values = {
        "rmse": float(np.sqrt(squares.mean())),
        "mae": float(errors.mean()),
        "median_absolute_error": float(np.median(errors)),
    }
    if targets.all():
        values["mape"] = float((errors / np.maximum(np.abs(targets), np.finfo(np.float64).eps)).mean())
    if varied:
        values = {"r2": float(1 - squares.sum() / np.square(targets - targets.mean()).sum()), **values}
    return values
