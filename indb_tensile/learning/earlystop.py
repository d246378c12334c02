"""When to stop before the last epoch: a small state machine, checkpointed with the rest.

It watches the validation rows, so it is off where there are none. Where nothing is said of it, it is on in a training
whose number of epochs is chosen; given epochs are trained as given.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from indb_tensile.errors import RequestError
from indb_tensile.job import Task
from indb_tensile.learning import defaults
from indb_tensile.learning.evaluation import HIGHER_IS_BETTER, METRICS
from indb_tensile.learning.parameters import Specification, check_parameters

EARLY_STOP: dict[str, Specification] = {
    "on": {"type": "boolean", "default": True},
    "patience": {"type": "integer", "minimum": 1, "maximum": 100000, "default": None},  # chosen by the epochs
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
    def parse(cls, given: Mapping[str, Any] | None, task: Task, epochs: int) -> "EarlyStop":
        """The start of a training of at most `epochs` epochs; None never stops.

        Raises RequestError as `check_early_stop` does.
        """
        values: dict[str, Any] = {"on": False} if given is None else check_early_stop(given, task)
        if not values.pop("on"):
            return cls(patience=None)
        if values["patience"] is None:
            values["patience"] = defaults.patience(epochs)
        return cls(**values)

    def to_request(self) -> dict[str, Any]:
        """The request that gives this early stopping whatever the epochs: what was chosen is given in it."""
        if self.patience is None:
            return {"on": False}
        return {"patience": self.patience, "min_delta": self.min_delta, "metric": self.metric}

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


def check_early_stop(given: Mapping[str, Any], task: Task) -> dict[str, Any]:
    """Every parameter as it was given, else its default.

    Raises RequestError for an unknown name or metric, a value out of range, or a parameter beside `"on": false`.
    """
    values = check_parameters("early_stop", given, EARLY_STOP)
    beside = [name for name, value in given.items() if name != "on" and value is not None]
    if beside and not values["on"]:
        hint = f'Leave "{beside[0]}" out, or leave "on" out.'
        raise RequestError(f'early_stop: "{beside[0]}" means nothing with "on" false', hint=hint)
    known = ("loss", *METRICS[task])
    if values["metric"] not in known:
        hint = f"Known for {task}: {', '.join(known)}."
        raise RequestError(f'early_stop: unknown metric "{values["metric"]}"', hint=hint)
    return values
