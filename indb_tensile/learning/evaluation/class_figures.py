"""Figures of a classification or of sets of labels: confusion matrix, ROC curves and calibration, as plain values.

A set of labels has the figures of each of its labels, which a label names. So has a class, against all others.
`stored_figures` returns those that a training stores with its version: counts only, never rows, and at most some
hundred kilobytes.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from indb_tensile.errors import RequestError
from indb_tensile.job import Task
from indb_tensile.learning.evaluation.model_metrics import finite_outputs, probabilities
from indb_tensile.learning.evaluation.single_label import LabelRows, all_label_rows, label_rows
from indb_tensile.learning.metrics.calibration import CalibrationBin, calibration, merged
from indb_tensile.learning.metrics.confusion_matrix import confusion_matrix
from indb_tensile.learning.metrics.roc_curve import roc_curve
from indb_tensile.request.figure_rules import STORED_BINS

MOST_STORED_BYTES = 400_000  # largest size of one stored figure; the catalog refuses 524,288
MOST_CURVES = 30  # most labels whose curves are stored: 200 points of each are 400 kB
MOST_CURVE_NUMBERS = 200_000_000  # largest product of rows and classes, for the curves of all classes: about a minute
MOST_PAIRS = 200_000  # most pairs of labels in one answer
_CURVE_NUMBERS = 1 << 23  # rows times classes that stored curves are made from, so that they take a second or two

Array = npt.NDArray[Any]
Rows = list[tuple[Any, ...]]


def confusion_rows(task: Task, outputs: Array, targets: Array, names: Sequence[str], label: str | None) -> Rows:
    """Return actual label, predicted label and rows of each pair; with a label, whether rows have it: true or false.

    Raises RequestError if there are too many pairs. Sets of labels need a label.
    """
    if label is not None:
        return list(label_rows(task, outputs, targets, names.index(label)).confusion())
    pairs = confusion_matrix(finite_outputs(outputs).argmax(axis=1), targets, names)
    if len(pairs) > MOST_PAIRS:
        raise RequestError(
            f"the confusion matrix has {len(pairs)} pairs of labels, more than {MOST_PAIRS}",
            hint="Name a label with label => '...', or count the predictions in SQL: see tensile_predict_table.",
        )
    return list(pairs)


def roc_rows(task: Task, outputs: Array, targets: Array, names: Sequence[str], label: str | None) -> Rows:
    """Return the points of the curve of a label: label, threshold, two rates and two counts.

    Without a label these are the curves of all labels that some rows have and others lack; of two classes only the
    second's.
    """
    if label is None and len(names) > 2 and outputs.size > MOST_CURVE_NUMBERS:
        raise RequestError(
            f"the ROC curves of {len(names)} labels of {len(targets)} rows take too long",
            hint="Name a label with label => '...', or a sample of the rows with relation => '...'.",
        )
    curves: Rows = []
    for name, own in _labels(task, outputs, targets, names, label):
        if own.actual.any() and not own.actual.all():
            curves += [(name, *point) for point in roc_curve(own.chances, own.actual)]
    if not curves:
        sets = "no label that some have and others lack" if task is Task.MULTILABEL else "one class only"
        subject = sets if label is None else f'rows of label "{label}" only, or none'
        raise RequestError(
            f"there is no ROC curve: the rows have {subject}",
            hint="Name a relation that has rows of the label and of others with relation => '...'.",
        )
    return curves


def calibration_rows(
    task: Task, outputs: Array, targets: Array, names: Sequence[str], label: str | None, bins: int
) -> Rows:
    """Return the bins that have rows: number, mean probability, share of rows for which it came true, and rows.

    The probability is that of the label. Without one it is that of the predicted class, or of each label of a set,
    so that a row counts once for each label.
    """
    if label is not None:
        curve = _label_bins(label_rows(task, outputs, targets, names.index(label)), bins)
    elif task is Task.MULTILABEL:
        curve = merged(_label_bins(own, bins) for own in all_label_rows(task, outputs, targets))
    else:
        outputs = finite_outputs(outputs)
        curve = calibration(probabilities(outputs), np.asarray(outputs.argmax(axis=1) == targets), bins)
    return [(each.bin, each.mean_predicted, each.observed_share, each.rows) for each in curve]


def stored_figures(task: Task, outputs: Array, targets: Array, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the figures of held-out rows by name, each with its `rows`, or with the reason why it is not stored.

    The confusion matrix of sets has the counts of each label.
    """
    if not len(targets):
        return {}
    if task is Task.MULTILABEL:
        sets = zip(names, all_label_rows(task, outputs, targets), strict=True)
        pairs: Rows = [(name, *pair) for name, own in sets for pair in own.confusion()]
    else:
        pairs = list(confusion_matrix(finite_outputs(outputs).argmax(axis=1), targets, names))
    figures: dict[str, dict[str, Any]] = {
        "confusion_matrix": {"rows": pairs},
        "roc_curve": _stored_curves(task, outputs, targets, names),
        "calibration": {"rows": calibration_rows(task, outputs, targets, names, None, STORED_BINS)},
        "label_calibration": _stored_calibrations(task, outputs, targets, names),
    }
    return {name: _bounded(figure, len(names)) for name, figure in figures.items()}


def _labels(
    task: Task, outputs: Array, targets: Array, names: Sequence[str], label: str | None
) -> Iterator[tuple[str, LabelRows]]:
    """Yield the rows of a label, or of all; of two classes, of the second, since the other one mirrors it."""
    if label is not None:
        yield label, label_rows(task, outputs, targets, names.index(label))
    elif task is Task.CLASSIFICATION and len(names) == 2:
        yield names[1], label_rows(task, outputs, targets, 1)
    else:
        yield from zip(names, all_label_rows(task, outputs, targets), strict=True)


def _label_bins(own: LabelRows, bins: int) -> tuple[CalibrationBin, ...]:
    return calibration(own.chances[:, None], own.actual, bins)


def _stored_curves(task: Task, outputs: Array, targets: Array, names: Sequence[str]) -> dict[str, Any]:
    if len(names) > MOST_CURVES:
        return {"reason": f"the model has {len(names)} labels, and the curves of at most {MOST_CURVES} are stored"}
    step = max(1, -(-outputs.size // _CURVE_NUMBERS))
    try:
        rows = roc_rows(task, outputs[::step], targets[::step], names, None)
    except RequestError as error:
        return {"reason": error.message}
    curves: dict[str, list[Any]] = {}
    for name, threshold, _, _, right, wrong in rows:
        curves.setdefault(name, []).append([None if threshold == np.inf else threshold, right, wrong])
    return {"rows": [[name, points] for name, points in curves.items()]}


def _stored_calibrations(task: Task, outputs: Array, targets: Array, names: Sequence[str]) -> dict[str, Any]:
    """Return the bins of each label."""
    if len(names) > MOST_CURVES:
        return {"reason": f"the model has {len(names)} labels, and the bins of at most {MOST_CURVES} are stored"}
    step = max(1, -(-outputs.size // _CURVE_NUMBERS))
    rows = []
    for name, own in zip(names, all_label_rows(task, outputs[::step], targets[::step]), strict=True):
        bins = _label_bins(own, STORED_BINS)
        rows.append([name, [(each.bin, each.mean_predicted, each.observed_share, each.rows) for each in bins]])
    return {"rows": rows}


def _bounded(figure: dict[str, Any], classes: int) -> dict[str, Any]:
    size_bytes = len(json.dumps(figure, ensure_ascii=False).encode())
    if size_bytes <= MOST_STORED_BYTES:
        return figure
    return {"reason": f"of {classes} labels it has {size_bytes} bytes, and at most {MOST_STORED_BYTES} are stored"}
