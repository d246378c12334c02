"""Reports the result of a training: the metric on the test rows, beside that of a constant answer."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from indb_tensile.job import Task
from indb_tensile.learning.encoding.preprocessor import Preprocessor
from indb_tensile.learning.evaluation.model_metrics import HIGHER_IS_BETTER, evaluate
from indb_tensile.learning.reports.report_facts import Fact

_SLIGHT = 0.01  # smaller differences of r2, and relative differences of a metric to minimise, are ignored


def report_result(
    metric: str, values: Mapping[str, float], preprocessor: Preprocessor, train: Any, test: Any
) -> tuple[Fact, ...]:
    """Compare the metric on the test rows with the metric of a constant answer.

    `train` and `test` are encoded targets.
    """
    if metric not in values:
        undefined = f"{metric} cannot be computed on the test rows, so versions cannot be compared"
        return (
            Fact(section="result", subject=metric, fact="on the test rows", value="undefined", warning=undefined),
        )
    anomalies = preprocessor.target.anomaly is not None  # no constant answer has a reconstruction error
    constant = None if anomalies else _constant_answer(preprocessor, train, test).get(metric)
    fact = Fact(section="result", subject=metric, fact="on the test rows", value=f"{values[metric]:.4g}")
    if constant is None:
        return (fact,)
    warning: str | None = None
    if _no_better(metric, values[metric], constant, len(test)):
        classifies = preprocessor.target.task is Task.CLASSIFICATION
        predicts_values = preprocessor.target.task is Task.REGRESSION
        shares = "the shares of the classes" if classifies else "the shares of the labels"
        answer = "the most frequent class" if metric == "accuracy" else shares
        warning = (
            f"{metric} {values[metric]:.4g} is no better than always answering "
            f"{'the mean' if predicts_values else answer} of the training rows ({constant:.4g}): the model has "
            "learned nothing that helps to predict the test rows"
        )
    value = f"{constant:.4g}"
    return (fact, Fact(section="result", subject=metric, fact="of a constant answer", value=value, warning=warning))


def _constant_answer(preprocessor: Preprocessor, train: Any, test: Any) -> dict[str, float]:
    """Return the metrics of a model that gives every row the same answer.

    The answer is the mean of the training targets, or the shares of the classes or labels in the training rows.
    """
    target = preprocessor.target
    if target.task is Task.REGRESSION:
        means = train.mean(axis=0) if target.values else float(train.mean())
        outputs = np.tile(target.constant_output(means), (len(test), 1))
        return evaluate(target.task, outputs, test, preprocessor)
    if target.task is Task.MULTILABEL:
        share = train.mean(axis=0, dtype=np.float64).clip(1e-9, 1 - 1e-9)
        return evaluate(target.task, np.tile(np.log(share / (1 - share)), (len(test), 1)), test, preprocessor)
    counts = np.bincount(train, minlength=target.outputs)
    shares = np.log((counts + 1e-9) / counts.sum())
    return evaluate(target.task, np.tile(shares, (len(test), 1)), test, preprocessor)


def _no_better(metric: str, value: float, constant: float, rows: int) -> bool:
    """Return whether a metric is no better than that of a constant answer.

    A metric to maximise, except r2, counts as better if it exceeds the constant answer's by more than the binomial
    standard error. r2 must be better by more than `_SLIGHT`; a metric to minimise, by more than `_SLIGHT` of the
    constant answer's.
    """
    if not HIGHER_IS_BETTER[metric]:
        return value >= (1 - _SLIGHT) * constant
    if metric == "r2":
        return value <= max(constant, 0.0) + _SLIGHT
    error = (max(constant * (1 - constant), 0.0) / rows) ** 0.5 if 0 <= constant <= 1 else 0.0
    return value <= constant + error
