"""Check when the heartbeat thread renews a worker's lease, and that it stops the trainers when the lease ends."""

import queue
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest

from indb_tensile.catalog.connection import UnreachableError
from indb_tensile.catalog.jobs import HeartbeatReply
from indb_tensile.controller.heartbeat import BeatAnswered, Heartbeat, LeaseOver, Outdated
from indb_tensile.errors import CatalogVersionError
from indb_tensile.job import ClaimToken, JobId, WorkerId

CLAIMS = {JobId(7): ClaimToken(70)}
ALIVE = HeartbeatReply(cancelled=(JobId(7),), lost=(), alive=True)


class FakePulse:
    """A catalog that gives one answer to every heartbeat, or raises UnreachableError. It hangs while `answering` is
    not set.
    """

    def __init__(self, answer: HeartbeatReply | CatalogVersionError | None) -> None:
        self.answer = answer
        self.requests: list[tuple[WorkerId, Mapping[JobId, ClaimToken]]] = []
        self.answering = threading.Event()
        self.answering.set()

    def beat(self, worker: WorkerId, claims: Mapping[JobId, ClaimToken]) -> HeartbeatReply:
        self.requests.append((worker, claims))
        self.answering.wait()
        if self.answer is None:
            raise UnreachableError("the database is away")
        if isinstance(self.answer, CatalogVersionError):
            raise self.answer
        return self.answer


class HeartbeatHarness:
    """A heartbeat thread, and the events that it reported."""

    def __init__(self, pulse: FakePulse, beat_s: float, lease_s: float) -> None:
        self.events: queue.SimpleQueue[BeatAnswered | LeaseOver | Outdated | str] = queue.SimpleQueue()
        self.heartbeat = Heartbeat(
            pulse=pulse,
            beat_s=beat_s,
            lease_s=lease_s,
            claims=lambda: CLAIMS,
            tell=self.events.put,
            stop_trainers=lambda: self.events.put("stopped"),
        )

    def next(self) -> BeatAnswered | LeaseOver | Outdated | str:
        return self.events.get(timeout=120.0)


@contextmanager
def heartbeat_harness(pulse: FakePulse, beat_s: float = 0.02, lease_s: float = 0.3) -> Iterator[HeartbeatHarness]:
    harness = HeartbeatHarness(pulse, beat_s, lease_s)
    try:
        yield harness
    finally:
        pulse.answering.set()
        harness.heartbeat.close()


def test_heartbeat_reply_is_reported_with_the_claims_of_its_request() -> None:
    pulse = FakePulse(ALIVE)
    with heartbeat_harness(pulse, lease_s=5000.0) as harness:
        harness.heartbeat.serve(WorkerId(3), time.monotonic())
        assert harness.next() == BeatAnswered(beat=ALIVE, claims=CLAIMS)
        assert pulse.requests[0] == (WorkerId(3), CLAIMS)


def test_no_heartbeat_is_sent_before_a_worker_is_registered() -> None:
    pulse = FakePulse(ALIVE)
    with heartbeat_harness(pulse) as harness, pytest.raises(queue.Empty):
        harness.events.get(timeout=0.1)
    assert pulse.requests == []


def test_beat_now_sends_a_heartbeat_at_once() -> None:
    with heartbeat_harness(FakePulse(ALIVE), beat_s=1000.0, lease_s=5000.0) as harness:
        harness.heartbeat.serve(WorkerId(3), time.monotonic())
        harness.heartbeat.beat_now()
        assert isinstance(harness.next(), BeatAnswered)


@pytest.mark.parametrize("hangs", [False, True])
def test_trainers_are_stopped_before_the_end_of_the_lease_is_reported(hangs: bool) -> None:
    pulse = FakePulse(ALIVE if hangs else None)
    if hangs:
        pulse.answering.clear()
    with heartbeat_harness(pulse) as harness:
        registered_s = time.monotonic()
        harness.heartbeat.serve(WorkerId(3), registered_s)
        assert harness.next() == "stopped"
        assert time.monotonic() - registered_s >= 0.27
        lease_over = harness.next()
        assert lease_over == LeaseOver(worker=WorkerId(3), reason="it could not renew its lease for 0.28 s")


def test_worker_that_was_declared_dead_stops_its_trainers_at_once() -> None:
    declared_dead = HeartbeatReply(cancelled=(), lost=(), alive=False)
    with heartbeat_harness(FakePulse(declared_dead), lease_s=5000.0) as harness:
        harness.heartbeat.serve(WorkerId(3), time.monotonic())
        assert harness.next() == "stopped"
        assert harness.next() == LeaseOver(worker=WorkerId(3), reason="other workers declared it dead")


def test_next_worker_sends_heartbeats_after_a_lost_lease() -> None:
    pulse = FakePulse(None)
    with heartbeat_harness(pulse) as harness:
        harness.heartbeat.serve(WorkerId(3), time.monotonic())
        assert harness.next() == "stopped"
        assert isinstance(harness.next(), LeaseOver)
        pulse.answer = ALIVE
        # Its lease begins later, so that it cannot be over before a slow machine sends the first heartbeat.
        harness.heartbeat.serve(WorkerId(4), time.monotonic() + 1000.0)
        assert isinstance(harness.next(), BeatAnswered)
        assert pulse.requests[-1][0] == 4


def test_catalog_of_another_version_is_reported() -> None:
    error = CatalogVersionError("the catalog has version 9.9.9")
    with heartbeat_harness(FakePulse(error), lease_s=5000.0) as harness:
        harness.heartbeat.serve(WorkerId(3), time.monotonic())
        assert harness.next() == Outdated(error=error)
