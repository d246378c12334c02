"""Warns the user of a version whose baseline predicts clearly better, in the history of the job that trained it."""

from functools import partial

from indb_tensile.catalog import models
from indb_tensile.catalog.connection import Session
from indb_tensile.job import ModelVersionId, Task
from indb_tensile.learning.training.baseline_verdict import JudgedVersion


def warn_if_better(session: Session, version: ModelVersionId) -> None:
    """Add a warning if the baseline of this version is clearly better. It has `baseline`, the metric, as data."""
    row = session.run(partial(models.judged_version, version=version))
    if row is None:
        return
    judged = JudgedVersion(**row | {"task": Task(row["task"])})
    if message := judged.advice():
        detail = {"message": message, "baseline": judged.baseline["metrics"][judged.metric_name]}
        session.run(partial(models.warn_of_version, version=version, detail=detail))
