"""The confusion matrix of a classification: how often each class is predicted as each other one."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Pair = tuple[str, str, int]  # actual label, predicted label, rows


def confusion_matrix(predicted: npt.NDArray[Any], targets: npt.NDArray[Any], names: Sequence[str]) -> list[Pair]:
    """Return the pairs of an actual and a predicted class that occur, in the order of the classes.

    `predicted` and `targets` are class numbers, and `names` the labels of the classes. scikit-learn's function would
    make a matrix of all pairs, which has a million cells for a thousand classes.
    """
    codes = targets.astype(np.int64) * len(names) + predicted
    pairs, rows = np.unique(codes, return_counts=True)
    return [
        (names[code // len(names)], names[code % len(names)], count)
        for code, count in zip(pairs.tolist(), rows.tolist(), strict=True)
    ]
