"""The lease: a thread beats, on a connection of its own; another sees to it that we stop in time when it cannot.

Other workers take our jobs over when they have seen no new beat for the lease, each by its own monotonic clock
(observer.py). We count by ours, from the moment before a beat was sent, which is earlier than anybody can have seen
it, and stop one beat ahead: so our trainers are dead before anybody else may start their jobs again, even while a
beat hangs on a dead network or a clock is set.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from indb_tensile.catalog.jobs import Beat
from indb_tensile.controller.records import Pulse
from indb_tensile.errors import CatalogVersionError, DatabaseError
from indb_tensile.job import ClaimToken, JobId, WorkerId

log = logging.getLogger("controller")

Held = Mapping[JobId, ClaimToken]


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """A beat's answer, and which claims it was about."""

    beat: Beat
    held: Held


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseOver:
    """The worker's jobs are anybody's; its trainers were killed before this was said."""

    worker: WorkerId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Outdated:
    """The catalog was upgraded, or dropped, beneath this controller."""

    error: CatalogVersionError


class Heartbeat:
    """Beats for one worker at a time. `held` and `stop_trainers` are called from its threads."""

    def __init__(
        self,
        *,
        pulse: Pulse,
        beat_s: float,
        lease_s: float,
        held: Callable[[], Held],
        tell: Callable[[Heard | LeaseOver | Outdated], None],
        stop_trainers: Callable[[], None],
    ) -> None:
        self._pulse = pulse
        self._beat_s = beat_s
        self._trusted_s = lease_s - beat_s
        self._held = held
        self._tell = tell
        self._stop_trainers = stop_trainers
        self._worker: WorkerId | None = None
        self._renewed_s = 0.0
        self._changed = threading.Condition()
        self._nudged = False
        self._missed = False
        self._closed = False
        self._threads = (
            threading.Thread(target=self._beat_on, name="heartbeat", daemon=True),
            threading.Thread(target=self._watch, name="lease", daemon=True),
        )
        for thread in self._threads:
            thread.start()

    def serve(self, worker: WorkerId, registered_s: float) -> None:
        """Beat for this worker, who registered at this moment of the monotonic clock, or a little later."""
        with self._changed:
            self._worker, self._renewed_s = worker, registered_s
            self._changed.notify_all()

    def nudge(self) -> None:
        """Beat now: somebody was cancelled."""
        with self._changed:
            self._nudged = True
            self._changed.notify_all()

    def close(self) -> None:
        """Stop beating."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(timeout=self._beat_s)

    def _beat_on(self) -> None:
        while not self._closed:
            worker = self._worker
            if worker is not None:
                self._beat(worker)
            with self._changed:
                self._changed.wait_for(lambda: self._nudged or self._closed, timeout=self._beat_s)
                self._nudged = False

    def _beat(self, worker: WorkerId) -> None:
        held, sent_s = self._held(), time.monotonic()
        try:
            beat = self._pulse.beat(worker, held)
        except CatalogVersionError as error:
            self._tell(Outdated(error=error))
            return
        except DatabaseError as error:
            log.log(logging.DEBUG if self._missed else logging.WARNING, "no heartbeat: %s", error.message)
            self._missed = True
            return
        except Exception:  # the thread's outermost loop: without it the lease ends, and nobody says why
            if not self._missed:
                log.exception("no heartbeat")
            self._missed = True
            return
        self._missed = False
        if not beat.alive:
            self._lose(worker, "other workers took it for gone")
            return
        with self._changed:
            if self._worker != worker:
                return
            self._renewed_s = sent_s
            self._changed.notify_all()
        self._tell(Heard(beat=beat, held=held))

    def _watch(self) -> None:
        while True:
            with self._changed:
                if self._closed:
                    return
                worker, left_s = self._worker, self._renewed_s + self._trusted_s - time.monotonic()
                if worker is None or left_s > 0:
                    self._changed.wait(timeout=None if worker is None else left_s)
                    continue
            self._lose(worker, f"it could not beat for {self._trusted_s:g} s")

    def _lose(self, worker: WorkerId, reason: str) -> None:
        with self._changed:
            if self._worker != worker:
                return
            self._worker = None
        self._stop_trainers()
        self._tell(LeaseOver(worker=worker, reason=reason))
