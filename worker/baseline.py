"""The process that computes baselines: fits gradient boosting to the rows that trainers have left, and ends.

It runs on one thread and only when a processor is idle. It stores its figure with the version, which is published
long before. Exit codes are those of the controller.
"""

import logging
import os
from functools import partial
from pathlib import Path

import psycopg
import torch

from indb_tensile import settings_loader
from indb_tensile.catalog import models, stored_checkpoints
from indb_tensile.catalog.baseline_files import BaselineFiles
from indb_tensile.catalog.connection import WORK_LOCK_TIMEOUT_MS, Session
from indb_tensile.controller.parent_death import die_with_parent
from indb_tensile.errors import TensileError
from indb_tensile.learning.training.boosted_baseline import BaselineRows, baseline_figure, rows_digest
from indb_tensile.log import start_log

from .baseline_warning import warn_if_better

log = logging.getLogger("baseline")


def main() -> int:
    """Compute every baseline whose rows wait. Returns the exit code."""
    settings = settings_loader.load(os.environ)
    start_log("baseline", settings.log_level.upper())
    try:
        die_with_parent()
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        torch.set_num_threads(1)
        with Session(
            settings.dsn, application_name="tensile baseline", lock_timeout_ms=WORK_LOCK_TIMEOUT_MS
        ) as session:
            installation = session.run(stored_checkpoints.installation)
            compute(session, BaselineFiles.of(Path(settings.state_dir), installation))
    except (TensileError, psycopg.Error, OSError) as error:
        log.error("no baseline was computed: %s", error)  # noqa: TRY400 - no traceback needed
        return error.exit_code if isinstance(error, TensileError) else 1
    return 0


def compute(session: Session, files: BaselineFiles) -> int:
    """Compute and store the waiting baselines, and those that arrive meanwhile. Returns their number."""
    files.clear_unfinished()
    computed = 0
    while waiting := files.waiting():
        for version in waiting:
            stored = files.take(version)
            if stored is None:
                continue
            # Versions that were published together left equal rows before any of them had a baseline.
            if not session.run(partial(models.repeat_baseline, version=version, digest=rows_digest(stored))):
                figure = baseline_figure(BaselineRows.from_bytes(stored))
                session.run(partial(models.add_figure, version=version, name="baseline", figure=figure))
                computed += 1
                log.info("baseline of version_id %s: %s", version, figure)
            warn_if_better(session, version)
    return computed


if __name__ == "__main__":
    raise SystemExit(main())
