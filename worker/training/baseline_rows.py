"""Leaves the rows of a published version for the process that computes its baseline.

Trainings of one model on equal rows, such as the trials of a search, have one baseline, which is fitted once.
"""

import logging
from functools import partial
from pathlib import Path

import psycopg

from indb_tensile.catalog import models, stored_checkpoints
from indb_tensile.catalog.baseline_files import BaselineFiles
from indb_tensile.catalog.connection import Session
from indb_tensile.config import Settings
from indb_tensile.errors import TensileError
from indb_tensile.job import ModelVersionId
from indb_tensile.learning.training.boosted_baseline import BaselineRows, rows_digest, why_no_baseline
from indb_tensile.learning.training.prepared_training import Prepared

from ..baseline_warning import warn_if_better

log = logging.getLogger("trainer")


def leave_rows(session: Session, settings: Settings, prepared: Prepared, version: ModelVersionId) -> None:
    """Leave the rows of a version that is to have a baseline. The job has succeeded, so no fault is the job's."""
    if not settings.baseline or why_no_baseline(prepared):
        return
    try:
        installation = session.run(stored_checkpoints.installation)
        files = BaselineFiles.of(Path(settings.state_dir), installation)
        rows = BaselineRows.of(prepared).to_bytes()
        if session.run(partial(models.repeat_baseline, version=version, digest=rows_digest(rows))):
            warn_if_better(session, version)
            return
        left = files.put(version, rows)
    except (OSError, psycopg.Error, TensileError) as error:
        log.warning("version_id %s has no baseline: its rows cannot be stored: %s", version, error)
        return
    if not left:
        log.warning("version_id %s has no baseline: too many others wait to be computed", version)
