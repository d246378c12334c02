"""Runs one job that fits a model of scikit-learn: on the processor, without a plan and without memory of the device.

The rows, their parts, the preprocessing, the comparison with the deployed version and the publication are those of a
network's training. A fit cannot be interrupted and resumed: a job whose trainer is killed is fitted from the start.
"""

import logging
import time

import torch

from indb_tensile import config
from indb_tensile.catalog import searches
from indb_tensile.catalog.jobs import Progress
from indb_tensile.device.hardware import free_memory_bytes
from indb_tensile.job import Phase
from indb_tensile.learning.evaluation.model_metrics import evaluate
from indb_tensile.learning.networks.estimators import Estimator, Fitted, require_memory
from indb_tensile.learning.training.prepared_training import Prepared
from indb_tensile.messages import Assign, TrainerLink

from . import niceness
from .baseline_rows import leave_rows
from .progress_signs import ProgressSigns
from .progress_writer import ProgressWriter
from .publication import Trained, publish
from .retrying_session import RetryingSession
from .row_reading import RowReading, trainer_name
from .training_events import tell_columns, tell_fit
from .trial_rungs import EpochFigures, TrialRungs

log = logging.getLogger("trainer")

_MOST_POINTS = 100  # most iterations whose losses are stored, evenly spaced


class EstimatorRun:
    """Reads, fits and publishes. Every write carries the job's claim."""

    def __init__(self, settings: config.Settings, link: TrainerLink, assigned: Assign) -> None:
        self._settings = settings
        self._link = link
        self._assigned = assigned
        self._job = assigned.job
        self._started_s = time.monotonic()

    def run(self) -> None:
        """Run the job. Raises TensileError; the job's row then still belongs to the claim."""
        name, signs = trainer_name(self._job.job), ProgressSigns(self._link, self._job.job)
        with RetryingSession(self._settings.dsn, application_name=name, alive=signs.give) as session:
            writer = ProgressWriter(session, signs, self._job)
            prepared = RowReading(self._settings, self._assigned).read(session, writer)
            writer.describe(prepared.report)
            tell_columns(writer, prepared)
            writer.start()
            writer.enter(Phase.TRAINING)
            fitted = self._fit(prepared)
            tell_fit(writer, prepared, fitted)
            _report(writer, fitted)
            self._report_trial(session, prepared, fitted)
            writer.enter(Phase.PUBLISHING)
            writer.settle()
            weights = prepared.module.state_dict()
            trained = Trained(weights=weights, epochs=fitted.iterations, best_epoch=fitted.iterations)
            version = publish(session, self._job, prepared, trained)
            leave_rows(session, self._settings, prepared, version)

    def _fit(self, prepared: Prepared) -> Fitted:
        niceness.train()
        model = prepared.module
        assert isinstance(model, Estimator)
        require_memory(model.kind, (prepared.train, prepared.valid), free_memory_bytes())
        seed, threads = prepared.settings.seed, torch.get_num_threads()
        fitted = model.fit(prepared.train, prepared.valid, prepared.task, seed=seed, threads=threads)
        log.info("job %s: fitted in %d iterations", self._job.job, fitted.iterations)
        return fitted

    def _report_trial(self, session: RetryingSession, prepared: Prepared, fitted: Fitted) -> None:
        """If the job is a trial of a search, report its metric on the validation rows. A fit has no rungs."""
        trial = session.run(lambda c: searches.find_trial(c, self._job.job))
        if trial is None:
            return
        part, figures = prepared.valid, EpochFigures()
        if part.rows:
            with torch.inference_mode():
                outputs = prepared.module(part.x)
            metrics = evaluate(prepared.task, outputs.numpy(), part.targets.numpy(), prepared.preprocessor)
            loss = float(prepared.loss(outputs, part.y))
            figures = EpochFigures(metric=metrics.get(prepared.metric), valid_loss=loss)
        rungs = TrialRungs(session, self._job, trial, prepared.metric, fitted.iterations, started_s=self._started_s)
        rungs.complete(fitted.iterations, figures)


def _report(writer: ProgressWriter, fitted: Fitted) -> None:
    """Store the losses of evenly spaced iterations, the last one included, as those of epochs."""
    total = fitted.iterations
    step = max(1, -(-len(fitted.losses) // _MOST_POINTS))
    for place in [*range(0, len(fitted.losses) - 1, step), len(fitted.losses) - 1] if fitted.losses else []:
        loss, valid_loss = fitted.losses[place], fitted.valid_losses[place]
        figures = {"loss": loss, "valid_loss": valid_loss}
        report = Progress(
            epoch=place + 1, epochs=total, step=0, steps=0, loss=loss, valid_loss=valid_loss, figures=figures
        )
        writer.report(report, at_once=True)
    if not fitted.losses:
        writer.report(Progress(epoch=total, epochs=total, step=0, steps=0), at_once=True)
