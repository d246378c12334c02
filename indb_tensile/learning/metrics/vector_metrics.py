"""Metrics of several values or labels: of a regression of several targets, and of multi-label classification.

scikit-learn's functions take milliseconds for each target, and there may be hundreds.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
MOST_LISTED = 100  # with more targets than this, none has metrics of its own


def value_figures(predicted: Array, targets: Array) -> dict[str, Array]:
    """Return each metric of a regression for each target, shape (targets,); NaN where the rows do not define it."""
    varied = (targets != targets[:1]).any(axis=0)
    if not np.isfinite(predicted).all():
        worst = np.full(targets.shape[1], np.inf)
        figures = {"r2": -worst, "rmse": worst, "mae": worst, "mape": worst, "median_absolute_error": worst}
    else:
        errors = np.abs(targets - predicted)
        squares = np.square(errors).sum(axis=0)
        spread = np.square(targets - targets.mean(axis=0)).sum(axis=0)
        figures = {
            "r2": 1 - squares / np.where(varied, spread, 1.0),
            "rmse": np.sqrt(squares / len(targets)),
            "mae": errors.mean(axis=0),
            "mape": (errors / np.where(targets == 0, 1.0, np.abs(targets))).mean(axis=0),
            "median_absolute_error": np.median(errors, axis=0),
        }
    figures["r2"] = np.where(varied, figures["r2"], np.nan)
    figures["mape"] = np.where((targets != 0).all(axis=0), figures["mape"], np.nan)
    return figures


def mean_figures(figures: dict[str, Array]) -> dict[str, float]:
    """Return the mean of each metric over the targets that define it; a metric that none defines is left out."""
    return {name: float(np.nanmean(own)) for name, own in figures.items() if not np.isnan(own).all()}


def listed_figures(figures: dict[str, Array], names: Sequence[str]) -> dict[str, float]:
    """Return the metrics of each target, such as `rmse(height)`, unless there are too many targets."""
    if len(names) > MOST_LISTED:
        return {}
    return {
        f"{metric}({name})": float(own[place])
        for metric, own in figures.items()
        for place, name in enumerate(names)
        if not np.isnan(own[place])
    }


def label_metrics(outputs: Array, targets: Array) -> dict[str, float]:
    """Return every metric of multi-label classification that these rows define.

    `outputs` are the logarithms of the labels' odds; a label is predicted from a probability of 0.5 on. `f1_macro` is
    the mean over the labels that occur or are predicted, `roc_auc` that over the labels that some rows have and
    others lack. `log_loss` is the mean over all labels of all rows.
    """
    outputs = np.asarray(outputs, np.float64)
    if not np.isfinite(outputs).all():  # of a network that diverged
        outputs = np.zeros_like(outputs)
    actual, predicted = targets > 0.5, outputs >= 0
    right = (actual & predicted).sum(axis=0)
    occurring, answered = actual.sum(axis=0), predicted.sum(axis=0)
    used = occurring + answered > 0
    values = {
        "f1_micro": _share(2 * right.sum(), (occurring + answered).sum()),
        "f1_macro": float((2 * right[used] / (occurring + answered)[used]).mean()) if used.any() else 0.0,
        "precision_micro": _share(right.sum(), answered.sum()),
        "recall_micro": _share(right.sum(), occurring.sum()),
        "subset_accuracy": float((actual == predicted).all(axis=1).mean()),
        "hamming_loss": float((actual != predicted).mean()),
        "log_loss": float((np.logaddexp(0.0, outputs) - outputs * actual).mean()),
    }
    areas = [
        area_of(outputs[:, place], actual[:, place])
        for place in np.flatnonzero((occurring > 0) & (occurring < len(actual))).tolist()
    ]
    return values | ({"roc_auc": float(np.mean(areas))} if areas else {})


def area_of(scores: Array, positive: Array) -> float:
    """Return the area under the ROC curve of one class or label, which has rows and lacks others.

    The area is the probability that a row of the class gets a higher score than another row; ties count half. The
    result equals scikit-learn's `roc_auc_score` without its checks, which take a millisecond per class.
    """
    ours, others = scores[positive], np.sort(scores[~positive])
    ranks = np.searchsorted(others, ours, "left") + np.searchsorted(others, ours, "right")
    return float(ranks.sum() / (2 * len(ours) * len(others)))


def _share(part: Any, whole: Any) -> float:
    return float(part / whole) if whole else 0.0
