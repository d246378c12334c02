"""Writes a trainer's progress to the catalog, at limited intervals and without stopping the training.

A write that fails because of the database is queued and done later, in order, while the training continues. No result
of these writes affects the training, except that a lost claim ends it.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg

from indb_tensile.backoff import Backoff
from indb_tensile.catalog import jobs
from indb_tensile.catalog.connection import Connection, is_transient
from indb_tensile.catalog.fault_origin import is_database_fault, server_message
from indb_tensile.catalog.jobs import Progress
from indb_tensile.errors import DatabaseError, LostClaimError
from indb_tensile.job import ClaimedJob, Phase
from indb_tensile.learning.reports.report_facts import Fact

from .progress_signs import ProgressSigns
from .retrying_session import RetryingSession

log = logging.getLogger("trainer")

PROGRESS_S = 0.5
FIRST_PAUSE_S = 0.5
# Longest pause between two attempts: on a dead network each attempt stops the training for 10 s.
LONGEST_PAUSE_S = 30.0
_MAX_ENTRIES = 10_000  # queued writes at most: the epochs of some hours


@dataclass(frozen=True, slots=True, kw_only=True)
class _QueuedWrite:
    """One queued write. `kind` names what is written."""

    kind: str
    write: Callable[[Connection], Any]


class ProgressWriter:
    """Writes phases, progress and events under the job's claim."""

    def __init__(
        self,
        session: RetryingSession,
        signs: ProgressSigns,
        job: ClaimedJob,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.session = session
        self.signs = signs
        self.job = job
        self._clock_s = clock_s
        self._phase: Phase | None = None
        self._due_s = 0.0
        self._entries: deque[_QueuedWrite] = deque(maxlen=_MAX_ENTRIES)
        self._backoff = Backoff(first_s=FIRST_PAUSE_S, longest_s=LONGEST_PAUSE_S)
        self._retry_s = 0.0
        self.trace_requested_at: datetime | None = None  # the owner's open request for a trace, at the last report

    def enter(self, phase: Phase) -> None:
        """Record that the job is in this phase now. Repeated calls with the same phase write once."""
        if phase is self._phase:
            return
        self._phase = self.signs.phase = phase
        self._put("phase", lambda c: jobs.set_phase(c, self.job.job, self.job.claim, phase))

    def enter_again(self) -> None:
        """Record the present phase once more, after the controller has written another phase."""
        phase, self._phase = self._phase, None
        if phase is not None:
            self.enter(phase)

    def start(self) -> None:
        """Record that the job runs from now on."""
        self._put("start", lambda c: jobs.start_running(c, self.job.job, self.job.claim))

    def report(self, progress: Progress, *, at_once: bool = False) -> None:
        """Write the progress if the interval has passed or `at_once` is set.

        A queued entry with the figures of an epoch is never replaced by a later entry.
        """
        self.signs.epoch, self.signs.step = progress.epoch, progress.step
        self.signs.give()
        now_s = self._clock_s()
        if now_s < self._due_s and not at_once:
            return
        self._due_s = now_s + PROGRESS_S
        kind = "epoch" if progress.figures else "progress"
        self._put(kind, lambda c: self._report(c, progress))

    def tell(self, kind: str, detail: Mapping[str, Any]) -> None:
        """Add an event to the job's history."""
        self._put("event", lambda c: jobs.record_event(c, self.job.job, self.job.claim, kind, detail))

    def describe(self, report: Sequence[Fact]) -> None:
        """Store the report on the data of the job's table."""
        facts = [fact.to_json() for fact in report]
        self._put("report", lambda c: jobs.save_report(c, self.job.job, self.job.claim, facts))

    def remember(self, write: Callable[[Connection], Any]) -> None:
        """Write measurements for other jobs. If they cannot be written now, they are dropped."""
        if self._entries:
            return  # earlier writes are still queued, so the database is away or blocked
        try:
            self.session.attempt(write)
        except (psycopg.Error, DatabaseError) as error:
            log.log(
                logging.DEBUG if is_transient(error) else logging.WARNING, "not written: %s", server_message(error)
            )

    def keep(self, kind: str, write: Callable[[Connection], Any]) -> None:
        """Write what later jobs and attempts need. If it cannot be written now, it is queued."""
        self._put(kind, write)

    def settle(self) -> None:
        """Write all queued entries before the job ends, and wait for the database without limit."""
        while self._entries:
            entry = self._entries.popleft()
            try:
                self.session.run(entry.write)
            except LostClaimError:
                raise
            except (psycopg.Error, DatabaseError) as error:
                log.warning("not written (%s): %s", entry.kind, server_message(error))

    def _report(self, connection: Connection, progress: Progress) -> None:
        self.trace_requested_at = jobs.report_progress(connection, self.job.job, self.job.claim, progress)

    def _put(self, kind: str, write: Callable[[Connection], Any]) -> None:
        if kind in ("phase", "progress"):  # only the latest entry of these kinds matters
            self._entries = deque((e for e in self._entries if e.kind != kind), maxlen=_MAX_ENTRIES)
        self._entries.append(_QueuedWrite(kind=kind, write=write))
        if self._clock_s() >= self._retry_s:
            self._write()

    def _write(self) -> None:
        """Write queued entries in order, until one must be put off. Raises LostClaimError."""
        while self._entries:
            entry = self._entries[0]
            try:
                self.session.attempt(entry.write)
            except LostClaimError:
                raise
            except (psycopg.Error, DatabaseError) as error:
                if is_database_fault(error):
                    self._put_off(error)
                    return
                log.warning("not written (%s): %s", entry.kind, server_message(error))
            else:
                self._backoff.succeed()
            self._entries.popleft()

    def _put_off(self, error: Exception) -> None:
        if not self._backoff.failures:
            log.warning("progress is written later, and training continues: %s", server_message(error))
        self._retry_s = self._clock_s() + self._backoff.fail()
