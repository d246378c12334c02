"""Draws numbers for the rows of an epoch, which depend on the seed, the epoch and the row, not on batch or thread.

So a training that goes on after a kill draws the numbers that it would have drawn.
"""

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.int64]
Draws = npt.NDArray[np.float64]


def draw(seed: int, epoch: int, purpose: int, rows: Rows) -> Draws:
    """Return a number from 0 to 1 for each row, by the finalizer of splitmix64 of all arguments.

    Numbers that are drawn for different purposes are independent.
    """
    words = np.full(len(rows), np.uint64(seed), np.uint64)
    for value in (np.uint64(epoch), np.uint64(purpose), rows.astype(np.uint64)):
        words = _mixed(words ^ value)
    return (words >> np.uint64(11)).astype(np.float64) / 2.0**53


def _mixed(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    words = words + np.uint64(0x9E37_79B9_7F4A_7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58_476D_1CE4_E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D0_49BB_1331_11EB)
    return words ^ (words >> np.uint64(31))
