"""Lowers the learning rate when the validation loss no longer falls. The state is part of each checkpoint."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

_THRESHOLD = 1e-4  # share of the best loss; the default of torch.optim.lr_scheduler.ReduceLROnPlateau


@dataclass(frozen=True, slots=True, kw_only=True)
class Plateau:
    """The lowest validation loss so far, the epochs since then, and how often the rate was lowered.

    Equal losses in equal order give equal states, so a training that resumes has the rates of an undisturbed one.
    """

    best: float | None = None
    stale_epochs: int = 0
    reductions: int = 0

    def observe(self, loss: float, patience: int) -> "Plateau":
        """Return the state after an epoch with this validation loss. A loss that is not finite is no improvement.

        After more than `patience` epochs without improvement the rate is lowered, and the count begins again.
        """
        if math.isfinite(loss) and (self.best is None or loss < self.best - _THRESHOLD * abs(self.best)):
            return replace(self, best=loss, stale_epochs=0)
        if self.stale_epochs < patience:
            return replace(self, stale_epochs=self.stale_epochs + 1)
        return replace(self, stale_epochs=0, reductions=self.reductions + 1)

    def to_json(self) -> dict[str, Any]:
        """Return the state as plain data for a checkpoint."""
        return asdict(self)

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "Plateau":
        """Restore the state that `to_json` returned, or the first one from a checkpoint that has none."""
        return cls(**stored)
