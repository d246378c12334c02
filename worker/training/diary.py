"""What a trainer tells the catalog and its controller while it works: not more often than anybody could read."""

import contextlib
import time

import psycopg

from indb_tensile.catalog import jobs
from indb_tensile.catalog.connection import Session
from indb_tensile.catalog.jobs import Progress
from indb_tensile.job import ClaimedJob, Phase
from indb_tensile.link import Link, Progressed

PROGRESS_S = 0.5


class Diary:
    """Writes phases and progress under the job's claim."""

    def __init__(self, session: Session, link: Link, job: ClaimedJob) -> None:
        self.session = session
        self.link = link
        self.job = job
        self._phase: Phase | None = None
        self._due = 0.0

    def enter(self, phase: Phase) -> None:
        """The job is in this phase now; said once."""
        if phase is self._phase:
            return
        try:
            self.session.run(lambda c: jobs.set_phase(c, self.job.job, self.job.claim, phase), wait_for_locks=False)
        except psycopg.errors.LockNotAvailable:
            return  # somebody holds the job's row: other jobs must not wait for this one's plan meanwhile
        self._phase = phase

    def report(self, progress: Progress, *, at_once: bool = False) -> None:
        """Write how far the job is, if it is time again or `at_once`."""
        now = time.monotonic()
        if now < self._due and not at_once:
            return
        self._due = now + PROGRESS_S
        with contextlib.suppress(psycopg.errors.LockNotAvailable):  # the next report says more
            self.session.run(
                lambda c: jobs.report_progress(c, self.job.job, self.job.claim, progress), wait_for_locks=False
            )
        self.link.send(
            Progressed(
                job=self.job.job,
                phase=self._phase or Phase.TRAINING,
                epoch=progress.epoch,
                step=progress.step,
            )
        )
