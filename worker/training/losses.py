"""Computes the mean loss of an epoch so far. Each batch's loss is read from the device only once."""

from collections.abc import Mapping
from typing import Any, Self

import torch


class Losses:
    """The mean losses of an epoch's batches. They are read from the device when the mean is requested."""

    def __init__(self) -> None:
        self._unread: list[tuple[torch.Tensor, int]] = []
        self._total = 0.0
        self._rows = 0

    def add(self, loss: torch.Tensor, rows: int) -> None:
        """Add the mean loss of a batch with this number of rows."""
        self._unread.append((loss, rows))

    def to_json(self) -> dict[str, Any]:
        """Return the sums, for a checkpoint within an epoch. A hexadecimal sum has every bit, and JSON has no NaN."""
        self.mean()
        return {"total": self._total.hex(), "rows": self._rows}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Self:
        """Continue from the sums of a checkpoint."""
        losses = cls()
        losses._total, losses._rows = float.fromhex(stored["total"]), int(stored["rows"])
        return losses

    def mean(self) -> float:
        """Return the mean over all rows so far."""
        for loss, rows in self._unread:
            self._total += float(loss) * rows
            self._rows += rows
        self._unread.clear()
        return self._total / self._rows if self._rows else float("nan")
