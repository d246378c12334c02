"""What is to be written to the catalog, in order, kept while the database is away."""

import logging
from collections import deque
from dataclasses import dataclass

from indb_tensile.catalog.connection import UnreachableError
from indb_tensile.controller.records import Records, Writing
from indb_tensile.errors import DatabaseError, LostClaimError
from indb_tensile.job import ClaimToken
from indb_tensile.scheduler.admission.orders import CancelJob, FailJob, RecordMeasurement, RequeueJob

log = logging.getLogger("controller")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    writing: Writing
    planning_ns: int


class Outbox:
    """Every writing carries its claim, so that one that comes too late changes nothing."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self._entries: deque[_Entry] = deque()
        self._refused: set[ClaimToken] = set()

    @property
    def empty(self) -> bool:
        """Everything is written."""
        return not self._entries

    @property
    def claims(self) -> frozenset[ClaimToken]:
        """The claims that something is still to be written for."""
        return frozenset(entry.writing.claim for entry in self._entries)

    @property
    def refused(self) -> frozenset[ClaimToken]:
        """The claims of jobs whose end the database would not take: they still count as this worker's."""
        return frozenset(self._refused)

    def put(self, writing: Writing, *, planning_ns: int = 0) -> None:
        """Write this after all that waits already; now, if the database is there."""
        self._entries.append(_Entry(writing=writing, planning_ns=planning_ns))
        self.flush()

    def flush(self) -> None:
        """Write what waits. Measurements are not worth waiting for a database that is away."""
        while self._entries:
            entry = self._entries[0]
            try:
                self._records.write(entry.writing, planning_ns=entry.planning_ns)
            except UnreachableError:
                self._entries = deque(e for e in self._entries if not isinstance(e.writing, RecordMeasurement))
                return
            except LostClaimError as error:
                log.info("not written: %s", error.message)
            except DatabaseError as error:
                log.error("not written: %s %s", error.message, error.detail)  # noqa: TRY400 - one line says it all
                if isinstance(entry.writing, FailJob | RequeueJob | CancelJob):
                    self._refused.add(entry.writing.claim)
            self._entries.popleft()

    def clear(self) -> None:
        """Forget what waits: it is no longer ours to write."""
        self._entries.clear()
        self._refused.clear()
