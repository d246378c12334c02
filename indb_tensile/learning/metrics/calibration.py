"""Calibration of a classification: how often predictions of a given probability are right.

Rows are put into bins of equal width by the probability of the predicted class. In a calibrated model, the share of
right predictions of each bin equals the mean probability there. The expected calibration error is the mean distance
of the two, weighted by rows (Naeini et al. 2015; Guo et al. 2017, "On Calibration of Modern Neural Networks").
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

BINS = 15  # the number of bins of Guo et al.
_BLOCK_NUMBERS = 1 << 20  # probabilities that are processed at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationBin:
    """The rows whose predicted class has a probability within one bin; bins are counted from 1."""

    bin: int
    mean_predicted: float
    observed_share: float
    rows: int


def calibration(
    class_probabilities: npt.NDArray[Any], right: npt.NDArray[np.bool_], bins: int = BINS
) -> tuple[CalibrationBin, ...]:
    """Return the bins that have rows. `right` tells for each row whether the predicted class occurred.

    A bin contains its upper end and not its lower one.
    """
    rows, hits, sums = np.zeros(bins, np.int64), np.zeros(bins, np.int64), np.zeros(bins)
    step = max(1, _BLOCK_NUMBERS // max(1, class_probabilities.shape[1]))
    for start in range(0, len(right), step):
        predicted = np.asarray(class_probabilities[start : start + step].max(axis=1), np.float64)
        places = np.clip(np.ceil(predicted * bins).astype(np.int64) - 1, 0, bins - 1)
        rows += np.bincount(places, minlength=bins)
        hits += np.bincount(places[right[start : start + step]], minlength=bins)
        sums += np.bincount(places, weights=predicted, minlength=bins)
    return tuple(
        CalibrationBin(
            bin=int(place) + 1,
            mean_predicted=float(sums[place] / rows[place]),
            observed_share=float(hits[place] / rows[place]),
            rows=int(rows[place]),
        )
        for place in np.flatnonzero(rows)
    )


def merged(calibrations: Iterable[Sequence[CalibrationBin]]) -> tuple[CalibrationBin, ...]:
    """Return the bins of several calibrations together, which have equal bins."""
    sums: dict[int, list[float]] = {}
    for each in (part for parts in calibrations for part in parts):
        total = sums.setdefault(each.bin, [0.0, 0.0, 0])
        total[0] += each.mean_predicted * each.rows
        total[1] += round(each.observed_share * each.rows)
        total[2] += each.rows
    return tuple(
        CalibrationBin(bin=number, mean_predicted=chances / rows, observed_share=right / rows, rows=int(rows))
        for number, (chances, right, rows) in sorted(sums.items())
    )


def calibration_error(bins: Sequence[CalibrationBin]) -> float:
    """Return the expected calibration error. There must be at least one row."""
    distances = sum(part.rows * abs(part.mean_predicted - part.observed_share) for part in bins)
    return distances / sum(part.rows for part in bins)
