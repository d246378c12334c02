"""Compares a trial of a search with the others at its rungs: reports what it has reached, and waits for the decision.

At a rung the trainer saves a checkpoint, stores the result, and waits a moment for the steward of searches. If the
trial may go on, it trains as if there had been no rung. If it may not yet, the job goes back into the queue and keeps
its checkpoint: it holds no memory of the device and no place while others train.
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial

from indb_tensile.catalog import searches
from indb_tensile.catalog.connection import Session
from indb_tensile.catalog.searches import RungDecision, RungReport, Trial
from indb_tensile.errors import HeldTrialError
from indb_tensile.job import ClaimedJob
from indb_tensile.learning.evaluation.model_metrics import HIGHER_IS_BETTER
from indb_tensile.learning.training.earlystop import EarlyStop

_TIMEOUT_S = 1.0  # the steward decides within some tens of milliseconds; without it the trial goes back to the queue
_POLL_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochFigures:
    """The figures on the validation rows of the epoch whose weights would be published now."""

    metric: float | None = None
    valid_loss: float | None = None

    def to_json(self) -> dict[str, float | None]:
        """Return the figures as plain data for a checkpoint."""
        return asdict(self)


class TrialRungs:
    """The rungs of one trial. `epochs` is the largest number of epochs of its training.

    `patience` is that of early stopping, or None. `started_s` is when this trainer got the job, by `clock_s`.
    """

    def __init__(
        self,
        session: Session,
        job: ClaimedJob,
        trial: Trial,
        metric: str,
        epochs: int,
        *,
        patience: int | None = None,
        started_s: float,
        clock_s: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._session = session
        self._job = job
        self._trial = trial
        self._metric = metric
        self._epochs = epochs
        self._clock_s = clock_s
        self._pause = pause
        self._rung_at = rung_epochs(trial.rungs, compared_epochs(epochs, patience))
        self._started_s = started_s
        self.parked_s = 0.0  # of the time since then

    def pass_rung(
        self, epochs_done: int, figures: EpochFigures, save: Callable[[], bool], alive: Callable[[], None]
    ) -> None:
        """Report the rungs that this epoch ends, if any, and wait until the trial may go on.

        `save` saves a checkpoint, from which the trial goes on later. `alive` is called while waiting. Raises
        HeldTrialError if the trial may not go on yet.
        """
        rungs = [rung for rung, epoch in self._rung_at.items() if epoch == epochs_done]
        if not rungs:
            return
        save()
        for rung in rungs:
            decision = self._report(rung, epochs_done, figures, complete=False)
        deadline_s = self._clock_s() + _TIMEOUT_S
        while decision.allowed <= rungs[-1]:
            if decision.held >= rungs[-1] or self._clock_s() >= deadline_s:
                raise HeldTrialError(
                    f"trial {self._trial.number} waits at rung {rungs[-1] + 1} for search {self._trial.search}"
                )
            alive()
            self._pause(_POLL_S)
            decision = self._session.run(partial(searches.rung_decision, claimed=self._job))

    def complete(self, epochs_done: int, figures: EpochFigures) -> None:
        """Report that the training has ended. The search counts the result once the version is published."""
        self._report(len(self._trial.rungs) - 1, epochs_done, figures, complete=True)

    def _report(self, rung: int, epochs_done: int, figures: EpochFigures, *, complete: bool) -> RungDecision:
        report = RungReport(
            rung=rung,
            epoch=epochs_done,
            epochs=self._epochs,
            metric_name=self._metric,
            metric=finite(figures.metric),
            higher_is_better=HIGHER_IS_BETTER[self._metric],
            valid_loss=finite(figures.valid_loss),
            complete=complete,
            worked_s=self._job.worked_s + max(0.0, self._clock_s() - self._started_s - self.parked_s),
        )
        return self._session.run(partial(searches.report_rung, claimed=self._job, report=report))


def published_figures(
    before: EpochFigures, early_stop: EarlyStop, epoch: int, *, metric: float | None, valid_loss: float
) -> EpochFigures:
    """Return the figures of the weights that would be published after this epoch, from 0.

    With early stopping these are those of the best epoch. Until an epoch is the best one, as with a metric that is
    not defined, the last one would be published.
    """
    if early_stop.patience is not None and early_stop.best_epoch not in (-1, epoch):
        return before
    return EpochFigures(metric=metric, valid_loss=valid_loss)


def compared_epochs(epochs: int, patience: int | None) -> int:
    """Return the number of epochs of which the rungs are shares.

    A training that may stop early mostly ends long before its last epoch, and rungs that come when it would have
    stopped by itself save nothing. It has at least `patience` epochs, and one whose best epoch comes late has twice
    as many. On the tables of `bench search` such rungs find trials as good as later ones do (docs/results/models.md).
    """
    return epochs if patience is None else min(epochs, 2 * patience)


def rung_epochs(rungs: tuple[float, ...], epochs: int) -> Mapping[int, int]:
    """Return the epoch that ends each rung but the last one, which is the end of the training.

    A training of few epochs may have several rungs in one epoch, and none after its last one.
    """
    ends = {rung: max(1, round(share * epochs)) for rung, share in enumerate(rungs[:-1])}
    return {rung: epoch for rung, epoch in ends.items() if epoch < epochs}


def finite(value: float | None) -> float | None:
    """Return the value, or None if it is not a finite number."""
    return value if value is not None and math.isfinite(value) else None
