"""Figures of a classification: its confusion matrix, ROC curves and calibration, as rows of plain values.

`stored_figures` returns those that a training stores with its version: counts only, never rows, and at most some
hundred kilobytes.
"""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from indb_tensile.errors import RequestError
from indb_tensile.learning.calibration import calibration
from indb_tensile.learning.confusion_matrix import confusion_matrix
from indb_tensile.learning.model_metrics import finite_outputs, probabilities
from indb_tensile.learning.roc_curve import roc_curve
from indb_tensile.request.figure_rules import STORED_BINS

MOST_STORED_BYTES = 400_000  # of one figure; the catalog refuses 524,288
MOST_CURVES = 30  # classes whose curves are stored: 200 points of each are 400 kB
MOST_CURVE_NUMBERS = 200_000_000  # rows times classes, for the curves of all classes: about a minute
MOST_PAIRS = 200_000  # of an answer
_CURVE_NUMBERS = 1 << 23  # rows times classes that stored curves are made from, so that they take a second or two

Array = npt.NDArray[Any]
Rows = list[tuple[Any, ...]]


def confusion_rows(outputs: Array, targets: Array, names: Sequence[str]) -> Rows:
    """Return actual label, predicted label and rows of each pair. Raises RequestError if there are too many pairs."""
    pairs = confusion_matrix(finite_outputs(outputs).argmax(axis=1), targets, names)
    if len(pairs) > MOST_PAIRS:
        raise RequestError(
            f"the confusion matrix has {len(pairs)} pairs of labels, more than {MOST_PAIRS}",
            hint="Name a relation of fewer classes, or count the predictions in SQL: see tensile_predict_table.",
        )
    return list(pairs)


def roc_rows(outputs: Array, targets: Array, names: Sequence[str], label: str | None) -> Rows:
    """Return the points of the curve of a label: label, threshold, two rates and two counts.

    Without a label these are the curves of all classes that occur beside others; of two classes only the second's.
    """
    if label is None and len(names) > 2 and outputs.size > MOST_CURVE_NUMBERS:
        raise RequestError(
            f"the ROC curves of {len(names)} labels of {len(targets)} rows take too long",
            hint="Name a label with label => '...', or a sample of the rows with relation => '...'.",
        )
    chances, curves = probabilities(finite_outputs(outputs)), []
    chosen = range(len(names)) if len(names) > 2 else [1]
    for place in chosen if label is None else [names.index(label)]:
        positive = np.asarray(targets == place)
        if positive.any() and not positive.all():
            curves += [(names[place], *point) for point in roc_curve(chances[:, place], positive)]
    if not curves:
        subject = "one class only" if label is None else f'rows of label "{label}" only, or none'
        raise RequestError(
            f"there is no ROC curve: the rows have {subject}",
            hint="Name a relation that has rows of the class and of others with relation => '...'.",
        )
    return curves


def calibration_rows(outputs: Array, targets: Array, bins: int) -> Rows:
    """Return the bins that have rows: number, mean probability, share of right predictions, and rows."""
    outputs = finite_outputs(outputs)
    found = calibration(probabilities(outputs), np.asarray(outputs.argmax(axis=1) == targets), bins)
    return [(each.bin, each.mean_predicted, each.observed_share, each.rows) for each in found]


def stored_figures(outputs: Array, targets: Array, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the figures of held-out rows by name, each with its `rows`, or with the reason why it is not stored."""
    if not len(targets):
        return {}
    figures: dict[str, dict[str, Any]] = {
        "confusion_matrix": {"rows": confusion_matrix(finite_outputs(outputs).argmax(axis=1), targets, names)},
        "roc_curve": _stored_curves(outputs, targets, names),
        "calibration": {"rows": calibration_rows(outputs, targets, STORED_BINS)},
    }
    return {name: _bounded(figure, len(names)) for name, figure in figures.items()}


def _stored_curves(outputs: Array, targets: Array, names: Sequence[str]) -> dict[str, Any]:
    if len(names) > MOST_CURVES:
        return {"reason": f"the model has {len(names)} classes, and the curves of at most {MOST_CURVES} are stored"}
    step = max(1, -(-outputs.size // _CURVE_NUMBERS))
    try:
        rows = roc_rows(outputs[::step], targets[::step], names, None)
    except RequestError as error:
        return {"reason": error.message}
    curves: dict[str, list[Any]] = {}
    for name, threshold, _, _, right, wrong in rows:
        curves.setdefault(name, []).append([None if threshold == np.inf else threshold, right, wrong])
    return {"rows": [[name, points] for name, points in curves.items()]}


def _bounded(figure: dict[str, Any], classes: int) -> dict[str, Any]:
    size_bytes = len(json.dumps(figure, ensure_ascii=False).encode())
    if size_bytes <= MOST_STORED_BYTES:
        return figure
    return {"reason": f"of {classes} classes it has {size_bytes} bytes, and at most {MOST_STORED_BYTES} are stored"}
