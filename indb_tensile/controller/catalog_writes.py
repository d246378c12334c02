"""Queue of catalog writes that have not succeeded yet. Writes of one job keep their order.

Two things delay a write. While the database is away, all writes wait. A lock on the row of one job, which the job's
owner may hold for any time, delays only the writes of that job: the writes of other jobs continue, and those of the
locked job are tried again after a pause that doubles up to `_LONGEST_PAUSE_S`.
"""

import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from indb_tensile.backoff import Backoff
from indb_tensile.catalog.connection import LockedError, UnreachableError
from indb_tensile.controller.records import Records, Writing
from indb_tensile.errors import DatabaseError, LostClaimError
from indb_tensile.job import ClaimToken, JobId
from indb_tensile.scheduler.admission.admission_orders import CancelJob, FailJob, RecordMeasurement, RequeueJob

log = logging.getLogger("controller")

_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 5.0
_MAX_BLOCKED = 2  # statements of one flush that may wait for their lock timeout: the loop must not stop for longer


@dataclass(frozen=True, slots=True, kw_only=True)
class _PendingWrite:
    """One pending write."""

    writing: Writing
    planning_ns: int


@dataclass(slots=True)
class _JobQueue:
    """The pending writes of one job, in order.

    The next attempt is at `due_s`.
    """

    entries: deque[_PendingWrite] = field(default_factory=deque)
    due_s: float = 0.0
    backoff: Backoff = field(default_factory=lambda: Backoff(first_s=_FIRST_PAUSE_S, longest_s=_LONGEST_PAUSE_S))

    def block(self, now_s: float) -> None:
        """Put the queue off for a pause. Measurements are dropped, because they are outdated by then."""
        self.entries = _without_measurements(self.entries)
        self.due_s = now_s + self.backoff.fail()


class CatalogWrites:
    """The queue of all jobs. Every write carries its claim, so a write that comes too late changes nothing."""

    def __init__(self, records: Records, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._records = records
        self._clock_s = clock_s
        self._queues: dict[JobId, _JobQueue] = {}
        self._refused: set[ClaimToken] = set()

    @property
    def empty(self) -> bool:
        """Whether no write is pending."""
        return not self._queues

    @property
    def claims(self) -> frozenset[ClaimToken]:
        """The claims with pending writes."""
        return frozenset(entry.writing.claim for queue in self._queues.values() for entry in queue.entries)

    @property
    def refused(self) -> frozenset[ClaimToken]:
        """The claims of jobs whose end the database has refused to record: the jobs still count as this worker's."""
        return frozenset(self._refused)

    def put(self, writing: Writing, *, planning_ns: int = 0) -> None:
        """Write after all pending writes of the same job; at once if that is possible."""
        queue = self._queues.setdefault(writing.job, _JobQueue())
        queue.entries.append(_PendingWrite(writing=writing, planning_ns=planning_ns))
        self.flush()

    def flush(self) -> bool:
        """Write all that can be written now. Returns False if the database is away."""
        blocked = 0
        for job, queue in tuple(self._queues.items()):
            if queue.due_s > self._clock_s():
                continue
            try:
                self._write(queue)
            except UnreachableError:
                self._drop_measurements()
                return False
            except LockedError as error:
                log.debug("job %s: not written now: %s", job, error.message)
                queue.block(self._clock_s())
                blocked += 1
            if not queue.entries:
                del self._queues[job]
            if blocked == _MAX_BLOCKED:
                break
        return True

    def clear(self) -> None:
        """Drop all pending writes, because the jobs no longer belong to this worker."""
        self._queues.clear()
        self._refused.clear()

    def _write(self, queue: _JobQueue) -> None:
        while queue.entries:
            entry = queue.entries[0]
            try:
                self._records.write(entry.writing, planning_ns=entry.planning_ns)
            except LostClaimError as error:
                log.info("not written: %s", error.message)
            except (UnreachableError, LockedError):
                raise
            except DatabaseError as error:
                log.error("not written: %s %s", error.message, error.detail)  # noqa: TRY400 - no traceback needed
                if isinstance(entry.writing, FailJob | RequeueJob | CancelJob):
                    self._refused.add(entry.writing.claim)
            queue.entries.popleft()
            queue.backoff.succeed()

    def _drop_measurements(self) -> None:
        """Drop measurements, which are outdated when the database comes back."""
        for job, queue in tuple(self._queues.items()):
            queue.entries = _without_measurements(queue.entries)
            if not queue.entries:
                del self._queues[job]


def _without_measurements(entries: deque[_PendingWrite]) -> deque[_PendingWrite]:
    return deque(entry for entry in entries if not isinstance(entry.writing, RecordMeasurement))
