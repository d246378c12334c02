"""Computes one metric alone, for an importance of columns, which needs a metric hundreds of times."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from indb_tensile.job import Task
from indb_tensile.learning.encoding.preprocessor import Preprocessor
from indb_tensile.learning.evaluation.model_metrics import class_means, evaluate, finite_outputs, probability_metrics
from indb_tensile.learning.evaluation.single_label import label_rows
from indb_tensile.learning.metrics.vector_metrics import label_metrics, mean_figures, value_figures
from indb_tensile.request.figure_rules import METRIC_OF_LABEL
from indb_tensile.request.task_rules import METRICS

Array = npt.NDArray[Any]

_CLASS_MEANS = ("balanced_accuracy", "precision_macro", "recall_macro", "f1_macro")


def single_metric(
    metric: str, task: Task, outputs: Array, targets: Array, preprocessor: Preprocessor, *, label: str | None = None
) -> float:
    """Return the metric of a task as `evaluate` does, but NaN if the rows do not define it.

    With `label` it is the metric of a label of a set, or of one of several values, by itself.
    """
    if not len(targets) or metric not in METRICS[task]:
        return float("nan")
    if label is not None:
        return _of_label(metric, task, outputs, targets, preprocessor, label)
    if task is Task.MULTILABEL:
        return label_metrics(outputs, targets).get(metric, float("nan"))
    if task in (Task.FORECAST, Task.ANOMALY, Task.PAIRS):
        return evaluate(task, outputs, targets, preprocessor).get(metric, float("nan"))
    if task is Task.REGRESSION:
        target = preprocessor.target
        if target.values:
            figures = value_figures(target.restore(outputs), target.decode(targets))
            return mean_figures({metric: figures[metric]}).get(metric, float("nan"))
        return _NUMBERS[metric](target.restore(outputs), target.decode(targets))
    outputs = finite_outputs(outputs)
    if metric == "accuracy":
        return float(np.mean(outputs.argmax(axis=1) == targets))
    values = (
        class_means(outputs, targets) if metric in _CLASS_MEANS else probability_metrics(outputs, targets, (metric,))
    )
    return values.get(metric, float("nan"))


def _of_label(
    metric: str, task: Task, outputs: Array, targets: Array, preprocessor: Preprocessor, label: str
) -> float:
    target = preprocessor.target
    if task is Task.REGRESSION:
        place = target.values.index(label)
        predicted, actual = target.restore(outputs)[:, place], target.decode(targets)[:, place]
        return _NUMBERS[metric](predicted, actual)
    own = label_rows(task, outputs, targets, target.names.index(label))
    name = METRIC_OF_LABEL[metric]
    return own.metrics((name,)).get(name, float("nan"))


def _r2(predicted: Array, actual: Array) -> float:
    if actual.min() == actual.max():
        return float("nan")
    return float(1 - np.square(actual - predicted).sum() / np.square(actual - actual.mean()).sum())


def _mape(predicted: Array, actual: Array) -> float:
    return float(np.mean(np.abs((predicted - actual) / actual))) if actual.all() else float("nan")


_NUMBERS: dict[str, Callable[[Array, Array], float]] = {
    "r2": _r2,
    "rmse": lambda predicted, actual: float(np.sqrt(np.mean(np.square(predicted - actual)))),
    "mae": lambda predicted, actual: float(np.mean(np.abs(predicted - actual))),
    "mape": _mape,
    "median_absolute_error": lambda predicted, actual: float(np.median(np.abs(predicted - actual))),
}
