"""A controller as a worker of the catalog: its registration, the jobs that it claims, and what it writes of them.

A worker whose lease is over is none until it registers anew, and nothing that its former self had still to write is
its own. While the database is away that is said once, and what is to be written waits (outbox.py). A statement that
meets another session's lock is not waited for: it is tried again later.

Users can insert jobs whose specification nobody can read. At most one specification is read for each call of `claim`,
and after an unreadable one the jobs of other owners come first: such jobs delay nobody else.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable

from indb_tensile.catalog.connection import LockedError
from indb_tensile.catalog.jobs import Unreadable
from indb_tensile.catalog.plans import DeviceUse, JobUse
from indb_tensile.controller.observer import Observer
from indb_tensile.controller.outbox import Outbox
from indb_tensile.controller.records import Records, Writing
from indb_tensile.errors import DatabaseError
from indb_tensile.job import Blame, ClaimedJob, ClaimToken, JobId, WorkerId
from indb_tensile.scheduler.admission.orders import FailJob, RequeueJob
from indb_tensile.scheduler.admission.pool import Fault

log = logging.getLogger("controller")

_CLAIMS_REMEMBERED = 1_024  # more than can come and go during one beat


class Membership:
    """One worker at a time. `worker` is None before `join`, and after `expire` until the next."""

    def __init__(self, records: Records, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._records = records
        self._clock_s = clock_s
        self._observer = Observer()
        self._outbox = Outbox(records)
        self._former: WorkerId | None = None
        self._received: deque[ClaimToken] = deque(maxlen=_CLAIMS_REMEMBERED)
        self._away = False
        self._unreadable_of: frozenset[int] = frozenset()
        self._more_to_claim = False
        self._recorded: tuple[WorkerId, str | None] | None = None  # the last holdup that was written
        self.worker: WorkerId | None = None

    @property
    def written(self) -> bool:
        """Whether nothing waits to be written."""
        return self._outbox.empty

    def join(self) -> WorkerId:
        """Become a worker; a former self's jobs need not wait for its lease. Raises DatabaseError."""
        if self._former is not None:
            self._records.leave(self._former)
            self._former = None
        self.worker = self._records.register()
        log.info("registered as worker %s", self.worker)
        return self.worker

    def leave(self, *, in_order: bool = True) -> None:
        """Take leave, so that nobody need wait for the lease. Not `in_order`: the controller ends by a fault."""
        if self.worker is None:
            return
        try:
            self._records.leave(self.worker, in_order=in_order)
        except DatabaseError as error:
            log.warning("could not say farewell: %s", error.message)

    def expire(self) -> None:
        """The lease is over: what is not written yet is no longer ours to write."""
        self._former, self.worker = self.worker, None
        self._outbox.clear()

    def rescue(self) -> None:
        """Give back to the queue what workers had that are gone; so it is seen whether the database is there."""
        try:
            asked_s = self._clock_s()
            others = self._records.other_workers(self.worker)
            dead = self._observer.look(others, asked_s=asked_s, answered_s=self._clock_s())
            rescued = self._records.rescue(dead)
        except LockedError as error:
            log.debug("nothing was rescued now: %s", error.message)
            return
        except DatabaseError as error:
            self._observer.forget()
            self.miss(error)
            return
        for sighting in dead:
            log.warning("worker %s has not beaten for its lease of %g s", sighting.worker, sighting.lease_s)
        if self._away:
            log.info("the database is back")
            self._away = False
        if rescued:
            log.warning("rescued from workers that are gone: %s", ", ".join(f"job {job}" for job in rescued))

    def miss(self, error: DatabaseError) -> None:
        """Say once that the database is away; trainers go on for as long as the lease lasts."""
        log.log(logging.DEBUG if self._away else logging.WARNING, "%s", error.message)
        self._away = True

    def claim(self, passed_over: frozenset[int] = frozenset()) -> ClaimedJob | None:
        """The next job of an owner who is not `passed_over`.

        None where there is none, where it cannot be read, or where the database is away.

        What is still to be written of other jobs does not matter: each of these keeps its claim until it is written.
        """
        unreadable_of, self._unreadable_of = self._unreadable_of, frozenset()
        self._more_to_claim = False
        if not self._outbox.flush() or self.worker is None:
            return None
        try:
            job = self._records.claim(self.worker, passed_over | unreadable_of)
        except LockedError as error:
            log.debug("nothing was claimed now: %s", error.message)
            return None
        except DatabaseError as error:
            self.miss(error)
            return None
        if isinstance(job, Unreadable):
            self._unreadable_of = unreadable_of | {job.owner_oid}
            self._more_to_claim = True
            self._refuse(job)
            return None
        if job is None:
            self._more_to_claim = bool(unreadable_of)
            return None
        self._received.append(job.claim)
        log.info("job %s claimed, attempt %s: model %s", job.job, job.attempt, job.spec.model)
        return job

    def take_more_to_claim(self) -> bool:
        """Whether the queue may hold a job although the last `claim` returned none; said once."""
        more, self._more_to_claim = self._more_to_claim, False
        return more

    @property
    def more_to_claim(self) -> bool:
        """What `take_more_to_claim` will say."""
        return self._more_to_claim

    def _refuse(self, job: Unreadable) -> None:
        """Fail a job whose specification cannot be read."""
        self._received.append(job.claim)
        log.info("job %s fails: %s", job.job, job.error.message)
        self.write(FailJob(job=job.job, claim=job.claim, fault=Fault.of(job.error)))

    def give_back(self, strays: Iterable[tuple[JobId, ClaimToken]], held: set[ClaimToken]) -> None:
        """Requeue jobs that the catalog counts as ours and that we know nothing of; `held` are those that we have.

        A beat that was under way while we claimed does not know the claim, and the job may be over by now. So goes
        back a job whose end could not be written.
        """
        ours = held | self._outbox.claims | (set(self._received) - self._outbox.refused)
        for job, claim in strays:
            if claim not in ours:
                refused = claim in self._outbox.refused
                reason = "its end could not be written" if refused else "the answer to its claim was lost"
                log.warning("job %s goes back to the queue: %s", job, reason)
                self.write(RequeueJob(job=job, claim=claim, reason=reason, blame=Blame.NOBODY))

    def write(self, writing: Writing, *, planning_ns: int = 0) -> None:
        """Write this after everything that waits for the same job; now, if that is possible."""
        self._outbox.put(writing, planning_ns=planning_ns)

    def flush(self) -> None:
        """Write what waits."""
        self._outbox.flush()

    def record_device(self, use: DeviceUse, shares: tuple[JobUse, ...]) -> None:
        """Write who uses how much of the device; it is not worth waiting for."""
        if self.worker is None:
            return
        try:
            self._records.record_device(self.worker, use, shares)
        except DatabaseError as error:
            log.debug("the device's use was not written: %s", error.message)

    def record_holdup(self, holdup: str | None) -> None:
        """Write why no job is claimed now, where that is news; what could not be written is tried again."""
        if self.worker is None or self._recorded == (self.worker, holdup):
            return
        if holdup is None and self._recorded is None:
            return  # as a new worker's row has it
        try:
            self._records.record_holdup(self.worker, holdup)
        except DatabaseError as error:
            log.debug("what holds up the queue was not written: %s", error.message)
        else:
            self._recorded = (self.worker, holdup)
