"""The mean loss of an epoch so far, however many batches it has: each batch's loss is read once."""

import torch


class Losses:
    """The batches' mean losses of an epoch; a loss is read when the mean is asked for."""

    def __init__(self) -> None:
        self._unread: list[tuple[torch.Tensor, int]] = []
        self._total = 0.0
        self._rows = 0

    def add(self, loss: torch.Tensor, rows: int) -> None:
        """A batch of so many rows."""
        self._unread.append((loss, rows))

    def mean(self) -> float:
        """Mean over the rows so far."""
        for loss, rows in self._unread:
            self._total += float(loss) * rows
            self._rows += rows
        self._unread.clear()
        return self._total / self._rows if self._rows else float("nan")
