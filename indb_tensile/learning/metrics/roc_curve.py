"""The receiver operating characteristic: how many rows of a class are found at how many false alarms.

The curve of a class is that of the class against all others. scikit-learn computes its corners, of which at most
`POINTS` are kept: those nearest to equal steps along the two axes together, and always both ends. So a curve that is
drawn from the points deviates from the full one by at most one step, 2 / (POINTS - 1).
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from sklearn import metrics

POINTS = 200


class RocPoint(NamedTuple):
    """A row is predicted as the class if the class's probability is at least `threshold`.

    The first threshold of a curve is infinite: no row is predicted as the class.
    """

    threshold: float
    true_positive_rate: float
    false_positive_rate: float
    true_positives: int
    false_positives: int


def roc_curve(scores: npt.NDArray[Any], positive: npt.NDArray[np.bool_], points: int = POINTS) -> list[RocPoint]:
    """Return the curve of one class. `positive` tells which rows are of the class: some, and not all."""
    false_rates, true_rates, thresholds = metrics.roc_curve(positive, scores)
    way = false_rates + true_rates  # rises from 0 to 2, since neither rate falls
    kept = np.unique(np.searchsorted(way, np.linspace(0, 2, points)).clip(max=len(way) - 1))
    kept = np.arange(len(way)) if len(way) <= points else np.unique([0, *kept[: points - 1], len(way) - 1])
    ours = int(np.count_nonzero(positive))
    others = len(positive) - ours
    return [
        RocPoint(
            threshold=float(thresholds[at]),
            true_positive_rate=float(true_rates[at]),
            false_positive_rate=float(false_rates[at]),
            true_positives=round(float(true_rates[at]) * ours),
            false_positives=round(float(false_rates[at]) * others),
        )
        for at in kept
    ]
