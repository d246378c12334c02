"""Records in the catalog what a controller knows of its device, each figure once it has changed.

These are the use of the device, why no job is claimed, what jobs have taught about contention, what they take besides
their iterations, and what they still need. No failed write is waited for: newer figures follow.
"""

import logging
import time
from collections.abc import Callable

from indb_tensile.catalog.plans import DeviceUse, JobUse
from indb_tensile.controller.records import Records
from indb_tensile.controller.usage_meter import UsageMeter
from indb_tensile.errors import DatabaseError
from indb_tensile.job import WorkerId
from indb_tensile.scheduler.admission.outlook import Outlook, outlook_of
from indb_tensile.scheduler.admission.overheads import MOST_KINDS, Overheads
from indb_tensile.scheduler.admission.pool import Pool
from indb_tensile.scheduler.admission.trainer_assignment import claim_blocker
from indb_tensile.scheduler.completion.contention import Contention, Points

log = logging.getLogger("controller")

_OUTLOOK_S = 3.0  # The steps that are left change all the time.
_NOISE = 0.05  # Contention that changed by less is not written.


class DeviceRecords:
    """The figures of one device. `worker` is the worker that uses it now, or None while none is registered."""

    def __init__(self, records: Records, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._records = records
        self._clock_s = clock_s
        self._meter = UsageMeter()
        # Each is the last that was written, or that the catalog had at the start.
        self._holdup: tuple[WorkerId, str | None] | None = None
        self._contention: Contention | None = None
        self._taken_cores: float | None = None
        self._overheads: Overheads | None = None
        self._outlook: tuple[WorkerId, Outlook] | None = None
        self._outlook_due_s = 0.0

    def record(self, worker: WorkerId | None, pool: Pool, use: DeviceUse, shares: tuple[JobUse, ...]) -> None:
        """Record everything that has changed. `use` is that of the whole device, `shares` that of each job."""
        self.record_use(worker, use, shares)
        self.record_holdup(worker, claim_blocker(pool))
        self.record_contention(pool.contention)
        self.record_overheads(pool.overheads)
        self.record_outlook(worker, outlook_of(pool))

    def record_use(self, worker: WorkerId | None, use: DeviceUse, shares: tuple[JobUse, ...]) -> None:
        """Record the use of the device. A failed write is dropped, because newer figures follow.

        What the jobs have used since the last successful write is kept, and is written with the next one.
        """
        self._meter.measure(self._clock_s(), use.budget_bytes, shares)
        if worker is None:
            return
        try:
            self._records.record_device(worker, use, shares, self._meter.pending)
        except DatabaseError as error:
            log.debug("the device's use was not written: %s", error.message)
        else:
            self._meter.clear()

    def record_holdup(self, worker: WorkerId | None, holdup: str | None) -> None:
        """Record why no job is claimed now, if that has changed. A failed write is tried again at the next call."""
        if worker is None or self._holdup == (worker, holdup):
            return
        if holdup is None and self._holdup is None:
            return  # the row of a new worker has the same value
        try:
            self._records.record_holdup(worker, holdup)
        except DatabaseError as error:
            log.debug("the reason why no job is claimed was not written: %s", error.message)
        else:
            self._holdup = (worker, holdup)

    def record_contention(self, contention: Contention) -> None:
        """Record what running jobs have taught about contention, if it has changed by more than noise."""
        known = self._contention if self._contention is not None and contention.observations else contention
        self._contention = known
        self._record_taken_cores(contention.taken_cores)
        if _is_near(contention.points, known.points) and _is_near(contention.short_points, known.short_points):
            return
        try:
            self._records.learn_contention(contention)
        except DatabaseError as error:
            log.debug("the contention of jobs was not written: %s", error.message)
        else:
            self._contention = contention

    def _record_taken_cores(self, taken_cores: float) -> None:
        """Record the cores that other programs keep busy, if that has changed. The first were the catalog's."""
        known = self._taken_cores if self._taken_cores is not None else taken_cores
        self._taken_cores = known
        if taken_cores == known:
            return
        try:
            self._records.learn_taken_cores(taken_cores)
        except DatabaseError as error:
            log.debug("the cores that other programs take were not written: %s", error.message)
        else:
            self._taken_cores = taken_cores

    def record_overheads(self, overheads: Overheads) -> None:
        """Record what jobs take besides their iterations, where it has changed by more than noise.

        What the first call has is what the catalog had. A failed write is tried again at the next call.
        """
        changed = overheads.changed_since(self._overheads) if self._overheads is not None else ()
        if self._overheads is None:
            self._overheads = overheads
        if not changed:
            return
        try:
            self._records.learn_overheads(changed)
        except DatabaseError as error:
            log.debug("what jobs take besides their iterations was not written: %s", error.message)
        else:
            written = {times.kind for times in changed}
            kept = tuple(times for times in self._overheads.kinds if times.kind not in written)
            self._overheads = Overheads(kinds=(*kept, *changed)[-MOST_KINDS:])

    def record_outlook(self, worker: WorkerId | None, outlook: Outlook | None) -> None:
        """Record what the jobs on the device still need, if that has changed, at most every few seconds.

        A failed write is dropped.
        """
        if worker is None or outlook is None or self._outlook == (worker, outlook):
            return
        now_s = self._clock_s()
        if now_s < self._outlook_due_s:
            return
        self._outlook_due_s = now_s + _OUTLOOK_S
        try:
            self._records.record_outlook(worker, outlook)
        except DatabaseError as error:
            log.debug("the outlook of the device was not written: %s", error.message)
        else:
            self._outlook = (worker, outlook)


def _is_near(points: Points, known: Points) -> bool:
    """Return whether no factor has changed by more than noise."""
    factors = dict(known)
    return all(abs(factor - factors.get(jobs, 0.0)) <= _NOISE * factor for jobs, factor in points)
