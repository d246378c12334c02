"""Decides when training stops before the last epoch. The state is part of each checkpoint.

Early stopping needs validation rows, so it is off if there are none. If the request does not mention early stopping,
it is on where the package chooses the number of epochs, and off where the request gives that number.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from indb_tensile.job import Task
from indb_tensile.learning.evaluation.model_metrics import HIGHER_IS_BETTER
from indb_tensile.learning.networks import training_length
from indb_tensile.request.early_stop_rules import EARLY_STOP, check_early_stop
from indb_tensile.request.parameter_rules import fill_defaults


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyStop:
    """The state of early stopping: the best value of `metric` so far and the epochs since then.

    `metric` is computed on the validation rows. An epoch improves on the best one if the metric is better by more
    than `min_delta`. `loss` is the mean validation loss. If `patience` is None, training never stops early and the
    state only records the best epoch.
    """

    patience: int | None
    min_delta: float = 0.0
    metric: str = "loss"
    best: float | None = None
    best_epoch: int = -1
    stale_epochs: int = 0

    @classmethod
    def parse(cls, request: Mapping[str, Any] | None, task: Task, epochs: int) -> "EarlyStop":
        """Return the initial state for a training of at most `epochs` epochs.

        None as request means that training never stops early. Raises RequestError as `check_early_stop` does.
        """
        options = {"on": False} if request is None else check_early_stop(request, task, {})
        values = fill_defaults(options, EARLY_STOP)
        if not values.pop("on"):
            return cls(patience=None)
        if values["patience"] is None:
            values["patience"] = training_length.patience(epochs)
        return cls(**values)

    def to_request(self) -> dict[str, Any]:
        """Return a request that gives this early stopping for any number of epochs.

        Values that were chosen by default are explicit in it.
        """
        if self.patience is None:
            return {"on": False}
        return {"patience": self.patience, "min_delta": self.min_delta, "metric": self.metric}

    def observe(self, epoch: int, value: float | None) -> "EarlyStop":
        """Return the state after this epoch (from 0). A value that is not finite is no improvement.

        The value None means that the validation rows do not define the metric. Such an epoch is not counted.
        """
        if value is None:
            return self
        if self._improves(value):
            return replace(self, best=value, best_epoch=epoch, stale_epochs=0)
        return replace(self, stale_epochs=self.stale_epochs + 1)

    @property
    def stopped(self) -> bool:
        """Return whether training must stop now."""
        return self.patience is not None and self.stale_epochs >= self.patience

    def earliest_end(self, epochs_done: int) -> int | None:
        """Return after how many epochs in all training would end if no further epoch improved.

        Returns None if training never stops early. The first epoch always counts as an improvement.
        """
        if self.patience is None:
            return None
        return epochs_done + max(0, self.patience - self.stale_epochs) + (self.best is None)

    def to_json(self) -> dict[str, Any]:
        """Return the state as plain data for a checkpoint."""
        return asdict(self)

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "EarlyStop":
        """Restore the state that `to_json` returned."""
        return cls(**stored)

    def _improves(self, value: float) -> bool:
        if not math.isfinite(value):
            return False
        if self.best is None:
            return True
        gain = value - self.best if HIGHER_IS_BETTER[self.metric] else self.best - value
        return gain > self.min_delta
