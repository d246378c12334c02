"""Represents a controller in the catalog: its registration as a worker, its claims, and its writes about jobs.

A worker whose lease has ended must register again, and the pending writes of its former registration are dropped.
While the database is away, one warning is logged and writes wait (catalog_writes.py). A statement that is blocked by
a lock of another session is not waited for: it is tried again later.

Users can insert jobs whose specification cannot be read. Each call of `claim` reads at most one specification. After
an unreadable one, jobs of other owners are claimed first, so such jobs delay no other owner.

Where there are several workers, a job goes to the one that is done with it earliest, as far as is known. A worker
that is not the best leaves the job to the better one for a while, and then claims it itself.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping

from indb_tensile.catalog.connection import LockedError
from indb_tensile.catalog.jobs import DeferredJob, UnreadableJob
from indb_tensile.controller.catalog_writes import CatalogWrites
from indb_tensile.controller.observer import Observer
from indb_tensile.controller.records import Records, Writing
from indb_tensile.errors import DatabaseError, LostClaimError
from indb_tensile.job import Blame, ClaimedJob, ClaimToken, JobId, WorkerId
from indb_tensile.scheduler.admission.admission_orders import FailJob, RequeueJob
from indb_tensile.scheduler.admission.events import RanksChange
from indb_tensile.scheduler.admission.pool import Fault, Pool

log = logging.getLogger("controller")

# How long a job is left to a better worker that does not claim it. A live worker does so within poll_s, a second.
_PATIENCE_S = 3.0
_CLAIMS_REMEMBERED = 1_024  # more claims than can be made and ended between two heartbeats


class WorkerRegistration:
    """One worker at a time. `worker` is None before `join`, and from `expire` until the next `join`."""

    def __init__(self, records: Records, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._records = records
        self._clock_s = clock_s
        self._observer = Observer()
        self._outbox = CatalogWrites(records)
        self._former: WorkerId | None = None
        self._received: deque[ClaimToken] = deque(maxlen=_CLAIMS_REMEMBERED)
        self._away = False
        self._unreadable_of: frozenset[int] = frozenset()
        self._deferred: tuple[JobId, float] | None = None  # the last one, and since when
        self._more_to_claim = False
        self._steps_read: dict[ClaimToken, int] = {}  # how often they had been published when they were read
        self.worker: WorkerId | None = None

    @property
    def written(self) -> bool:
        """Whether no write is pending."""
        return self._outbox.empty

    def join(self) -> WorkerId:
        """Register as a worker, and end a former registration, whose jobs need not wait then.

        Raises DatabaseError.
        """
        if self._former is not None:
            self._records.leave(self._former)
            self._former = None
        self.worker = self._records.register()
        log.info("registered as worker %s", self.worker)
        return self.worker

    def leave(self, *, in_order: bool = True) -> None:
        """Mark the worker as stopped, so that other workers need not wait for the end of its lease.

        `in_order` is false if the controller stops because of a fault.
        """
        if self.worker is None:
            return
        try:
            self._records.leave(self.worker, in_order=in_order)
        except DatabaseError as error:
            log.warning("the worker could not be marked as stopped: %s", error.message)

    def expire(self) -> None:
        """Record the end of the lease.

        Pending writes are dropped, because the jobs no longer belong to this worker.
        """
        self._former, self.worker = self.worker, None
        self._outbox.clear()

    def rescue(self) -> None:
        """Return the jobs of dead workers to the queue. This also notices whether the database is reachable."""
        try:
            asked_s = self._clock_s()
            others = self._records.other_workers(self.worker)
            dead = self._observer.look(others, asked_s=asked_s, answered_s=self._clock_s())
            rescued = self._records.rescue(dead)
        except LockedError as error:
            log.debug("no job was rescued now: %s", error.message)
            return
        except DatabaseError as error:
            self._observer.forget()
            self.miss(error)
            return
        for sighting in dead:
            log.warning("worker %s sent no heartbeat for its lease of %g s", sighting.worker, sighting.lease_s)
        if self._away:
            log.info("the database is back")
            self._away = False
        if rescued:
            log.warning("rescued from workers that are gone: %s", ", ".join(f"job {job}" for job in rescued))

    def miss(self, error: DatabaseError) -> None:
        """Log once that the database is away. Trainers continue as long as the lease lasts."""
        log.log(logging.DEBUG if self._away else logging.WARNING, "%s", error.message)
        self._away = True

    def claim(self, passed_over: frozenset[int] = frozenset()) -> ClaimedJob | None:
        """Claim the next job whose owner is not in `passed_over`.

        Returns None if there is no job, if its specification cannot be read, or if the database is away. Pending
        writes of other jobs do not prevent a claim: each of these jobs keeps its claim until it is written.
        """
        unreadable_of, self._unreadable_of = self._unreadable_of, frozenset()
        self._more_to_claim = False
        if not self._outbox.flush() or self.worker is None:
            return None
        try:
            job = self._records.claim(self.worker, passed_over | unreadable_of, waited_for=self._waited_for())
            if isinstance(job, DeferredJob):
                self._defer(job.job)
                return None
        except LockedError as error:
            log.debug("no job was claimed now: %s", error.message)
            return None
        except DatabaseError as error:
            self.miss(error)
            return None
        if isinstance(job, UnreadableJob):
            self._unreadable_of = unreadable_of | {job.owner_oid}
            self._more_to_claim = True
            self._fail_unreadable(job)
            return None
        if job is None:
            self._more_to_claim = bool(unreadable_of)
            return None
        self._deferred = None
        self._received.append(job.claim)
        log.info("job %s claimed, attempt %s: model %s", job.job, job.attempt, job.spec.model)
        return job

    def _defer(self, job: JobId) -> None:
        """Leave the job to a worker that would be done with it earlier, and wake that worker the first time."""
        if self._deferred is not None and self._deferred[0] == job:
            return
        log.debug("job %s is left to another worker", job)
        self._deferred = (job, self._clock_s())
        self._records.offer(job)

    def _waited_for(self) -> JobId | None:
        """Return the job that was deferred long ago, and that no other worker has claimed as far as we know."""
        if self._deferred is None:
            return None
        job, since_s = self._deferred
        return job if self._clock_s() >= since_s + _PATIENCE_S else None

    def take_more_to_claim(self) -> bool:
        """Return whether the queue may hold a job although the last `claim` returned none, and clear that state."""
        more_to_claim, self._more_to_claim = self._more_to_claim, False
        return more_to_claim

    @property
    def more_to_claim(self) -> bool:
        """The value that `take_more_to_claim` will return."""
        return self._more_to_claim

    def _fail_unreadable(self, job: UnreadableJob) -> None:
        """Fail a job whose specification cannot be read."""
        self._received.append(job.claim)
        log.info("job %s fails: %s", job.job, job.error.message)
        self.write(FailJob(job=job.job, claim=job.claim, fault=Fault.of(job.error)))

    def give_back(self, strays: Iterable[tuple[JobId, ClaimToken]], claims: set[ClaimToken]) -> None:
        """Return jobs to the queue that the catalog counts as this worker's but that the controller does not know.

        `claims` are the claims that the controller knows. A heartbeat that was under way during a claim does not know
        that claim, and its job may have ended meanwhile; such claims are skipped. A job whose end the database
        refused to record is returned to the queue too.
        """
        known = claims | self._outbox.claims | (set(self._received) - self._outbox.refused)
        for job, claim in strays:
            if claim not in known:
                refused = claim in self._outbox.refused
                reason = "its end could not be written" if refused else "the answer to its claim was lost"
                log.warning("job %s returns to the queue: %s", job, reason)
                self.write(RequeueJob(job=job, claim=claim, reason=reason, blame=Blame.NOBODY))

    def write(self, writing: Writing, *, planning_ns: int = 0) -> None:
        """Write after all pending writes of the same job; at once if that is possible."""
        self._outbox.put(writing, planning_ns=planning_ns)

    def flush(self) -> None:
        """Write all that can be written now."""
        self._outbox.flush()

    def new_steps(self, pool: Pool, published: Mapping[JobId, int]) -> tuple[RanksChange, ...]:
        """Return what ranks of the pool's jobs have let be known since that was read.

        `published` has for each job how often they did. What cannot be read now is asked for again with the next
        heartbeat.
        """
        gangs = [m.job for m in pool.members if m.job.gang is not None]
        claims = {job.claim: job.job for job in gangs if published.get(job.job)}
        self._steps_read = {claim: count for claim, count in self._steps_read.items() if claim in claims}
        read: list[RanksChange] = []
        for claim, job in claims.items():
            if self._steps_read.get(claim) == published[job]:
                continue
            try:
                read.append(RanksChange(claim=claim, steps=self._records.published_steps(job, claim)))
            except (DatabaseError, LostClaimError) as error:
                log.debug("what the ranks of job %s have published was not read: %s", job, error.message)
            else:
                self._steps_read[claim] = published[job]
        return tuple(read)
