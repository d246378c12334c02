"""The learner's process: trains the latency predictor of this kind of device if that is due, and ends.

The first time, it measures operators drawn at random (executor/latency/survey.py), which takes about a minute. Later
it trains again, from these and from the measurements of jobs, whenever the latter have grown by a quarter. It runs
only when a processor is idle; measurements during which other processes had the processor are dropped. Exit codes are
those of the controller.
"""

import logging
import os
import zlib
from collections.abc import Callable, Iterable

import psycopg
import torch

from indb_tensile import settings_loader
from indb_tensile.catalog import predictors
from indb_tensile.catalog.connection import WORK_LOCK_TIMEOUT_MS, Session
from indb_tensile.catalog.predictors import StoredPredictor
from indb_tensile.controller.parent_death import die_with_parent
from indb_tensile.device.backend import kind_of
from indb_tensile.device.hardware import PROCESSOR_SPEED
from indb_tensile.errors import DataError, TensileError
from indb_tensile.executor.latency.latency_predictor import (
    MeasuredOperator,
    read_predictor,
    read_samples,
    train,
    write_samples,
)
from indb_tensile.executor.latency.survey import survey
from indb_tensile.log import start_log
from indb_tensile.scheduler.timing.operator_features import read_description

_GROWTH = 1.25  # the measurements of jobs must grow by this factor, and by _GROWTH_LEAST, before training again
_GROWTH_LEAST = 200

log = logging.getLogger("learner")


def main() -> int:
    """Train the predictor once, if that is due. Returns the exit code."""
    settings = settings_loader.load(os.environ)
    start_log("learner", settings.log_level.upper())
    try:
        die_with_parent()
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))  # jobs lose almost no time to the learner
        torch.set_num_threads(settings.threads)
        with Session(
            settings.dsn, application_name="tensile learner", lock_timeout_ms=WORK_LOCK_TIMEOUT_MS
        ) as session:
            learn(
                session,
                kind_of(settings.device, settings.threads),
                lambda: survey(0, device_s=settings.survey_s),
            )
    except (TensileError, psycopg.Error) as error:
        log.error("no predictor was trained: %s", error)  # noqa: TRY400 - no traceback needed
        return error.exit_code if isinstance(error, TensileError) else 1
    return 0


def learn(session: Session, kind: str, measure: Callable[[], Iterable[MeasuredOperator]]) -> bool:
    """Train and store a predictor if that is due. Returns whether it was.

    `measure` returns the measured drawn operators. Raises DataError if too few operators could be measured.
    """
    stored = session.run(lambda c: predictors.load_predictor(c, kind))
    history = session.run(lambda c: predictors.count_history(c, kind))
    drawn = None if stored is None or read_predictor(stored.model) is None else _read_survey(stored.survey)
    if stored is not None and drawn is not None and history < _GROWTH * stored.history + _GROWTH_LEAST:
        return False
    if drawn is None:
        log.info("measuring operators to train the latency predictor")
        drawn = list(measure())
    measured = [
        sample for row in session.run(lambda c: predictors.history(c, kind)) if (sample := _read_sample(*row))
    ]
    predictor = train([*drawn, *measured], PROCESSOR_SPEED)
    renewed = StoredPredictor(
        model=predictor.to_bytes(),
        survey=zlib.compress(write_samples(drawn).encode()),
        samples=predictor.samples,
        history=history,
    )
    session.run(lambda c: predictors.save_predictor(c, kind, renewed))
    log.info(
        "trained the latency predictor from %d operators, %d of them measured by jobs",
        predictor.samples,
        len(measured),
    )
    return True


def _read_survey(data: bytes) -> list[MeasuredOperator] | None:
    """Return the operators of an earlier survey, or None if they can no longer be read."""
    try:
        return read_samples(zlib.decompress(data).decode())
    except (zlib.error, UnicodeError, DataError):
        return None


def _read_sample(description: str, latency_ns: int) -> MeasuredOperator | None:
    """Return an operator that a job ran, or None if its description is of another version."""
    try:
        return MeasuredOperator(description=read_description(description), latency_ns=latency_ns)
    except DataError:
        return None


if __name__ == "__main__":
    raise SystemExit(main())
