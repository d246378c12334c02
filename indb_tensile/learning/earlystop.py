"""When to stop before the last epoch: a small state machine, checkpointed with the rest."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from indb_tensile.errors import RequestError
from indb_tensile.job import Task
from indb_tensile.learning.evaluation import HIGHER_IS_BETTER, METRICS
from indb_tensile.learning.parameters import Specification, check_parameters

EARLY_STOP: dict[str, Specification] = {
    "patience": {"type": "integer", "minimum": 1, "maximum": 100000, "default": 10},
    "min_delta": {"type": "number", "minimum": 0, "default": 0.0},
    "metric": {"type": "text", "default": "loss"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyStop:
    """Epochs without an improvement of the validation rows' `metric` by more than `min_delta` so far.

    `loss` is the mean validation loss. With `patience` None it only remembers the best epoch.
    """

    patience: int | None
    min_delta: float = 0.0
    metric: str = "loss"
    best: float | None = None
    best_epoch: int = -1
    stale_epochs: int = 0

    @classmethod
    def parse(cls, given: Mapping[str, Any] | None, task: Task) -> "EarlyStop":
        """Raises RequestError for an unknown name or metric, or a value out of range; None never stops."""
        if given is None:
            return cls(patience=None)
        values = check_parameters("early_stop", given, EARLY_STOP)
        known = ("loss", *METRICS[task])
        if values["metric"] not in known:
            hint = f"Known for {task}: {', '.join(known)}."
            raise RequestError(f'early_stop: unknown metric "{values["metric"]}"', hint=hint)
        return cls(**values)

    def observe(self, epoch: int, value: float | None) -> "EarlyStop":
        """The state after this epoch (from 0); a value that is not finite is no improvement.

        None, for a metric that the rows do not define, says nothing: the epoch does not count.
        """
        if value is None:
            return self
        if self._improves(value):
            return replace(self, best=value, best_epoch=epoch, stale_epochs=0)
        return replace(self, stale_epochs=self.stale_epochs + 1)

    @property
    def stopped(self) -> bool:
        """Whether training should end now."""
        return self.patience is not None and self.stale_epochs >= self.patience

    def earliest_end(self, epochs_done: int) -> int | None:
        """After how many epochs in all training would end if none improved from now on; None where nothing ends it.

        The first epoch improves on nothing.
        """
        if self.patience is None:
            return None
        return epochs_done + max(0, self.patience - self.stale_epochs) + (self.best is None)

    def to_json(self) -> dict[str, Any]:
        """Plain data for a checkpoint."""
        return asdict(self)

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "EarlyStop":
        """The state that `to_json` described."""
        return cls(**stored)

    def _improves(self, value: float) -> bool:
        if not math.isfinite(value):
            return False
        if self.best is None:
            return True
        gain = value - self.best if HIGHER_IS_BETTER[self.metric] else self.best - value
        return gain > self.min_delta
