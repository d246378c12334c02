"""Renews the worker's lease, and stops its trainers in time if the lease cannot be renewed.

One thread sends heartbeats on a connection of its own; a second thread watches the lease. Other workers take over
this worker's jobs when they have seen no new heartbeat for the duration of the lease, each by its own monotonic clock
(observer.py). This worker counts its lease from the moment before a heartbeat was sent, which is earlier than any
other worker can have seen it, and stops one heartbeat period before the end. So its trainers are dead before another
worker may start their jobs, even if a heartbeat hangs on a dead network or a clock is set.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from indb_tensile.catalog.jobs import HeartbeatReply
from indb_tensile.controller.records import HeartbeatRecords
from indb_tensile.errors import CatalogVersionError, DatabaseError
from indb_tensile.job import ClaimToken, JobId, WorkerId

log = logging.getLogger("controller")

Claims = Mapping[JobId, ClaimToken]


@dataclass(frozen=True, slots=True, kw_only=True)
class BeatAnswered:
    """The answer to a heartbeat, and the claims that the heartbeat reported."""

    beat: HeartbeatReply
    claims: Claims


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseOver:
    """The lease has ended: other workers may claim the jobs. The trainers were killed before this was posted."""

    worker: WorkerId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Outdated:
    """The catalog was upgraded or dropped while the controller runs."""

    error: CatalogVersionError


class Heartbeat:
    """Renews the lease of one worker at a time. `claims`, `tell` and `stop_trainers` are called from its threads."""

    def __init__(
        self,
        *,
        pulse: HeartbeatRecords,
        beat_s: float,
        lease_s: float,
        claims: Callable[[], Claims],
        tell: Callable[[BeatAnswered | LeaseOver | Outdated], None],
        stop_trainers: Callable[[], None],
    ) -> None:
        self._pulse = pulse
        self._beat_s = beat_s
        self._safe_s = lease_s - beat_s
        self._claims = claims
        self._tell = tell
        self._stop_trainers = stop_trainers
        self._worker: WorkerId | None = None
        self._renewed_s = 0.0
        self._changed = threading.Condition()
        self._beat_asked = False
        self._missed = False
        self._closed = False
        self._threads = (
            threading.Thread(target=self._run, name="heartbeat", daemon=True),
            threading.Thread(target=self._watch, name="lease", daemon=True),
        )
        for thread in self._threads:
            thread.start()

    def serve(self, worker: WorkerId, registered_s: float) -> None:
        """Renew the lease of this worker, which registered at or just after `registered_s` of the monotonic clock."""
        with self._changed:
            self._worker, self._renewed_s = worker, registered_s
            self._changed.notify_all()

    def beat_now(self) -> None:
        """Send a heartbeat at once. A job was cancelled, and the answer names it."""
        with self._changed:
            self._beat_asked = True
            self._changed.notify_all()

    def close(self) -> None:
        """Stop the threads."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(timeout=self._beat_s)

    def _run(self) -> None:
        while not self._closed:
            worker = self._worker
            if worker is not None:
                self._beat(worker)
            with self._changed:
                self._changed.wait_for(lambda: self._beat_asked or self._closed, timeout=self._beat_s)
                self._beat_asked = False

    def _beat(self, worker: WorkerId) -> None:
        claims, sent_s = self._claims(), time.monotonic()
        try:
            beat = self._pulse.beat(worker, claims)
        except CatalogVersionError as error:
            self._tell(Outdated(error=error))
            return
        except DatabaseError as error:
            log.log(logging.DEBUG if self._missed else logging.WARNING, "no heartbeat: %s", error.message)
            self._missed = True
            return
        except Exception:  # the thread's outermost loop: without it the lease would end without a message
            if not self._missed:
                log.exception("no heartbeat")
            self._missed = True
            return
        self._missed = False
        if not beat.alive:
            self._end_lease(worker, "other workers declared it dead")
            return
        with self._changed:
            if self._worker != worker:
                return
            self._renewed_s = sent_s
            self._changed.notify_all()
        self._tell(BeatAnswered(beat=beat, claims=claims))

    def _watch(self) -> None:
        while True:
            with self._changed:
                if self._closed:
                    return
                worker, left_s = self._worker, self._renewed_s + self._safe_s - time.monotonic()
                if worker is None or left_s > 0:
                    self._changed.wait(timeout=None if worker is None else left_s)
                    continue
            self._end_lease(worker, f"it could not renew its lease for {self._safe_s:g} s")

    def _end_lease(self, worker: WorkerId, reason: str) -> None:
        with self._changed:
            if self._worker != worker:
                return
            self._worker = None
        self._stop_trainers()
        self._tell(LeaseOver(worker=worker, reason=reason))
