"""The baseline row that predictions are explained against: what is usual in the training rows.

It has the mean of each number, time and array, and the most frequent value of every other column, all encoded. Means
and counts are of evenly spaced training rows, because a model is explained against what is usual, not to many digits.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from indb_tensile.learning.encoding.preprocessor import Preprocessor

MOST_ROWS = 2_000
MOST_NUMBERS = 1 << 14  # longest baseline that is stored, as numbers of an encoded row


def baseline_input(x: Any, preprocessor: Preprocessor) -> tuple[float, ...] | None:
    """Return the flat baseline of encoded training rows (rows, *input_shape), or None if rows are too wide."""
    width = int(np.prod(preprocessor.input_shape))
    if width > MOST_NUMBERS or not len(x):
        return None
    chosen = min(MOST_ROWS, len(x))
    sample = np.asarray(x[np.arange(chosen, dtype=np.int64) * len(x) // chosen]).reshape(chosen, width)
    baseline = sample.mean(axis=0, dtype=np.float64)
    for part in preprocessor.parts:
        if not part.averaged:
            own = np.ascontiguousarray(sample[:, part.begin : part.end])
            rows, counts = np.unique(own, axis=0, return_counts=True)
            baseline[part.begin : part.end] = rows[counts.argmax()]
    return tuple(_short(baseline.astype(np.float32)))


def _short(numbers: npt.NDArray[np.float32]) -> list[float]:
    """Return the numbers with as few digits as single precision needs."""
    return [float(f"{number:.9g}") for number in numbers]
