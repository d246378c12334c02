"""What is still to be written to the catalog: in order for each job, kept while it cannot be written.

Two things delay a write. While the database is away, all writes wait. A lock on one job's row, which the job's owner
may hold for as long as they like, delays only the writes of that job: those of other jobs go on, and the blocked
job's are tried again after a pause that doubles up to `_LONGEST_PAUSE_S`.
"""

import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from indb_tensile.catalog.connection import LockedError, UnreachableError
from indb_tensile.controller.records import Records, Writing
from indb_tensile.errors import DatabaseError, LostClaimError
from indb_tensile.job import ClaimToken, JobId
from indb_tensile.scheduler.admission.orders import CancelJob, FailJob, RecordMeasurement, RequeueJob

log = logging.getLogger("controller")

_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 5.0
_MOST_BLOCKED = 2  # statements of one flush that may wait for their lock timeout: the loop has other work to do


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    writing: Writing
    planning_ns: int


@dataclass(slots=True)
class _Line:
    """One job's writings in order. `due_s` is when to try again, after `pause_s` since a lock blocked the first."""

    entries: deque[_Entry] = field(default_factory=deque)
    due_s: float = 0.0
    pause_s: float = _FIRST_PAUSE_S

    def block(self, now_s: float) -> None:
        """Try again after a pause; measurements are not worth keeping that long."""
        self.entries = _without_measurements(self.entries)
        self.due_s = now_s + self.pause_s
        self.pause_s = min(2 * self.pause_s, _LONGEST_PAUSE_S)


class Outbox:
    """Every writing carries its claim, so that one that comes too late changes nothing."""

    def __init__(self, records: Records, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._records = records
        self._clock_s = clock_s
        self._lines: dict[JobId, _Line] = {}
        self._refused: set[ClaimToken] = set()

    @property
    def empty(self) -> bool:
        """Everything is written."""
        return not self._lines

    @property
    def claims(self) -> frozenset[ClaimToken]:
        """The claims for which something is still to be written."""
        return frozenset(entry.writing.claim for line in self._lines.values() for entry in line.entries)

    @property
    def refused(self) -> frozenset[ClaimToken]:
        """The claims of jobs whose end the database would not take: they still count as this worker's."""
        return frozenset(self._refused)

    def put(self, writing: Writing, *, planning_ns: int = 0) -> None:
        """Write this after everything that waits for the same job; now, if that is possible."""
        line = self._lines.setdefault(writing.job, _Line())
        line.entries.append(_Entry(writing=writing, planning_ns=planning_ns))
        self.flush()

    def flush(self) -> bool:
        """Write what can be written now; False where the database is away."""
        blocked = 0
        for job, line in tuple(self._lines.items()):
            if line.due_s > self._clock_s():
                continue
            try:
                self._write(line)
            except UnreachableError:
                self._drop_measurements()
                return False
            except LockedError as error:
                log.debug("job %s: not written now: %s", job, error.message)
                line.block(self._clock_s())
                blocked += 1
            if not line.entries:
                del self._lines[job]
            if blocked == _MOST_BLOCKED:
                break
        return True

    def clear(self) -> None:
        """Forget everything that waits: it is no longer ours to write."""
        self._lines.clear()
        self._refused.clear()

    def _write(self, line: _Line) -> None:
        while line.entries:
            entry = line.entries[0]
            try:
                self._records.write(entry.writing, planning_ns=entry.planning_ns)
            except LostClaimError as error:
                log.info("not written: %s", error.message)
            except (UnreachableError, LockedError):
                raise
            except DatabaseError as error:
                log.error("not written: %s %s", error.message, error.detail)  # noqa: TRY400 - one line says it all
                if isinstance(entry.writing, FailJob | RequeueJob | CancelJob):
                    self._refused.add(entry.writing.claim)
            line.entries.popleft()
            line.pause_s = _FIRST_PAUSE_S

    def _drop_measurements(self) -> None:
        """Measurements are not worth keeping until a database that is away comes back."""
        for job, line in tuple(self._lines.items()):
            line.entries = _without_measurements(line.entries)
            if not line.entries:
                del self._lines[job]


def _without_measurements(entries: deque[_Entry]) -> deque[_Entry]:
    return deque(entry for entry in entries if not isinstance(entry.writing, RecordMeasurement))
