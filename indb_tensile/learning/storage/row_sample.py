"""A sample of rows that arrive in parts, drawn with equal chances and bounded in memory.

Vitter's algorithm R (1985, "Random Sampling with a Reservoir"): a row that arrives after the sample is full replaces
a random row of the sample, with a probability that falls with the number of rows seen. Equal rows, parts and seed
give the same sample.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

MOST_ROWS = 5_000
MOST_NUMBERS = 1 << 24  # most numbers of all sampled inputs together: 64 MB
FEWEST_ROWS = 100  # rows of a sample even if the inputs are wide


class RowSample:
    """Rows of encoded inputs, with their targets."""

    def __init__(self, seed: int, most_rows: int = MOST_ROWS) -> None:
        self._random = np.random.default_rng(seed)
        self._most_rows = most_rows
        self._seen = 0
        self._rows: list[tuple[npt.NDArray[np.float32], Any]] = []

    def __len__(self) -> int:
        """Return the number of rows that were added, of which the sample holds some."""
        return self._seen

    def add(self, rows: Sequence[tuple[npt.NDArray[np.float32], Any]]) -> None:
        """Add pairs of an encoded row and its target."""
        for x, target in rows:
            most = min(self._most_rows, max(FEWEST_ROWS, MOST_NUMBERS // max(1, x.size)))
            self._seen += 1
            place = len(self._rows) if len(self._rows) < most else int(self._random.integers(self._seen))
            if place < len(self._rows):
                self._rows[place] = (x.copy(), target)
            elif place < most:
                self._rows.append((x.copy(), target))

    def arrays(self) -> tuple[npt.NDArray[np.float32], npt.NDArray[Any]]:
        """Return the inputs and the targets. There must be at least one row."""
        return np.array([x for x, _ in self._rows]), np.array([target for _, target in self._rows])

    def close(self) -> None:
        """Drop the rows."""
        self._rows.clear()
