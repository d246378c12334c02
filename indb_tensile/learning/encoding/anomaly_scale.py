"""Makes errors of columns comparable: the share of each column, the score of a row, and whether it is an anomaly.

A part of a row has two errors: that of its reconstruction, and its distance from the centre (autoencoder.py). Each is
divided by its usual size, so that a column that no network can tell from the others weighs no more than the rest. The
raw score of a row is the mean of the root of the ratio over both errors of its parts. The root and the second error
were chosen on tables other than those of `bench anomalies` (docs/results/models.md). The score itself is the share of
the rows of reference with a lower raw score: 0.99 is odder than 99 % of them. Rows beyond all of them come closer to
1 the larger their raw score is, so scores keep the order of raw scores.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from indb_tensile.learning.metrics.vector_metrics import area_of

Array = npt.NDArray[Any]
Float64 = npt.NDArray[np.float64]

ERRORS_OF_PART = 2  # of the reconstruction, and of the distance from the centre
_CLIPPED = 0.95  # larger errors of a part count as this quantile in its usual error: they may be anomalies
_LEAST_USUAL = 1e-3  # of a squared standard deviation: a column that is always told exactly has no usual error
_QUANTILES = 1001
_FEWEST_REFERENCE = 100  # rows that validate; with fewer, the training rows are the reference


@dataclass(frozen=True, kw_only=True)
class AnomalyScale:
    """How errors become scores. `parts` has the column of each part; errors are (rows, 2 * parts).

    `usual`, `quantiles` and `rows` are those of the rows of reference, and empty before a training has ended. A row
    whose score is above 1 - `contamination` is an anomaly.
    """

    parts: tuple[str, ...]
    contamination: float
    usual: tuple[float, ...] = ()
    quantiles: tuple[float, ...] = ()
    rows: int = 0

    def fitted(self, valid: Array, train: Array) -> "AnomalyScale":
        """Return the scale for the errors of the rows that validate, or of the training rows if those are few."""
        errors = (valid if len(valid) >= _FEWEST_REFERENCE else train).astype(np.float64)
        errors = errors[np.isfinite(errors).all(axis=1)]
        if not len(errors):
            return self
        usual = np.minimum(errors, np.quantile(errors, _CLIPPED, axis=0)).mean(axis=0)
        own = replace(self, usual=tuple(np.maximum(usual, _LEAST_USUAL).tolist()), rows=len(errors))
        quantiles = np.quantile(own.raw(errors), np.linspace(0, 1, _QUANTILES))
        return replace(own, quantiles=tuple(quantiles.tolist()))

    def shares(self, errors: Array) -> Float64:
        """Return what each part adds to the raw score: (rows, parts)."""
        parts = len(self.parts)
        usual = np.array(self.usual) if self.usual else np.ones(ERRORS_OF_PART * parts)
        added = np.sqrt(errors.astype(np.float64) / usual) / (ERRORS_OF_PART * parts)
        whole: Float64 = added.reshape(len(errors), ERRORS_OF_PART, parts).sum(axis=1)
        return whole

    def raw(self, errors: Array) -> Float64:
        """Return the raw scores: the mean over both errors of all parts."""
        whole: Float64 = self.shares(errors).sum(axis=1)
        return whole

    def scores(self, errors: Array) -> Float64:
        """Return the scores, from 0 to 1."""
        raw, quantiles = self.raw(errors), np.array(self.quantiles or (0.0,))
        top = 1 - 1 / (self.rows + 1)
        inside = np.interp(raw, quantiles, np.linspace(0, 1, len(quantiles))) * top
        highest = quantiles[-1]
        with np.errstate(divide="ignore", invalid="ignore"):
            beyond = 1 - (1 - top) * highest / raw
        return np.where(raw > highest, beyond, inside)

    def flags(self, scores: Float64) -> npt.NDArray[np.bool_]:
        """Return which rows of these scores are anomalies."""
        return scores > 1 - self.contamination

    def contributions(self, errors: Array) -> tuple[list[str], Float64]:
        """Return the columns, and what each adds to the raw score: (rows, columns)."""
        columns = list(dict.fromkeys(self.parts))
        shares = self.shares(errors)
        whole = np.zeros((len(errors), len(columns)))
        for place, name in enumerate(self.parts):
            whole[:, columns.index(name)] += shares[:, place]
        return columns, whole

    def metrics(self, errors: Array, labels: Array) -> dict[str, float]:
        """Return the mean error of reconstructions, and how well scores tell the anomalies, if both have labels."""
        error = float(errors[:, : len(self.parts)].mean(dtype=np.float64))
        figures = {"reconstruction_error": error if np.isfinite(error) else float("inf")}
        return figures | label_metrics(self.raw(errors), labels)


def label_metrics(raw: Float64, labels: Array) -> dict[str, float]:
    """Return ROC AUC and average precision of scores; labels (rows, 1) are 1 for anomalies, and -1 if unknown."""
    own = labels.reshape(-1)
    known = own >= 0
    anomalous, scores = own[known] > 0, raw[known]
    if not anomalous.any() or anomalous.all():
        return {}
    scores = np.nan_to_num(scores, nan=np.inf)
    return {"roc_auc": float(area_of(scores, anomalous)), "average_precision": average_precision(scores, anomalous)}


def average_precision(scores: Float64, anomalous: npt.NDArray[np.bool_]) -> float:
    """Return the mean of the precision at each anomaly, with the bits of scikit-learn's for scores without ties."""
    order = np.argsort(-scores, kind="stable")
    hits = np.cumsum(anomalous[order])
    ends = np.flatnonzero(np.append(np.diff(scores[order]) != 0, True))  # the last row of each score
    precision, recall = hits[ends] / (ends + 1), hits[ends] / hits[-1]
    return float(np.sum(np.diff(recall, prepend=0.0) * precision))
