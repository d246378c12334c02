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

HELD = {JobId(7): ClaimToken(70)}
FINE = HeartbeatReply(cancelled=(JobId(7),), lost=(), alive=True)


class FakePulse:
    """Answers as it is told; hangs while `hanging` is not set free."""

    def __init__(self, answer: HeartbeatReply | CatalogVersionError | None) -> None:
        self.answer = answer
        self.asked: list[tuple[WorkerId, Mapping[JobId, ClaimToken]]] = []
        self.free = threading.Event()
        self.free.set()

    def beat(self, worker: WorkerId, held: Mapping[JobId, ClaimToken]) -> HeartbeatReply:
        self.asked.append((worker, held))
        self.free.wait()
        if self.answer is None:
            raise UnreachableError("the database is away")
        if isinstance(self.answer, CatalogVersionError):
            raise self.answer
        return self.answer


class Chest:
    """A heartbeat and what it did."""

    def __init__(self, pulse: FakePulse, beat_s: float, lease_s: float) -> None:
        self.told: queue.SimpleQueue[BeatAnswered | LeaseOver | Outdated | str] = queue.SimpleQueue()
        self.heartbeat = Heartbeat(
            pulse=pulse,
            beat_s=beat_s,
            lease_s=lease_s,
            claims=lambda: HELD,
            tell=self.told.put,
            stop_trainers=lambda: self.told.put("stopped"),
        )

    def next(self) -> BeatAnswered | LeaseOver | Outdated | str:
        return self.told.get(timeout=10.0)


@contextmanager
def chest(pulse: FakePulse, beat_s: float = 0.02, lease_s: float = 0.3) -> Iterator[Chest]:
    made = Chest(pulse, beat_s, lease_s)
    try:
        yield made
    finally:
        pulse.free.set()
        made.heartbeat.close()


def test_what_a_beat_hears_is_told_with_the_claims_it_was_about() -> None:
    pulse = FakePulse(FINE)
    with chest(pulse) as c:
        c.heartbeat.serve(WorkerId(3), time.monotonic())
        assert c.next() == BeatAnswered(beat=FINE, claims=HELD)
        assert pulse.asked[0] == (WorkerId(3), HELD)


def test_nobody_beats_before_there_is_a_worker() -> None:
    pulse = FakePulse(FINE)
    with chest(pulse) as c, pytest.raises(queue.Empty):
        c.told.get(timeout=0.1)
    assert pulse.asked == []


def test_a_nudge_beats_before_its_time() -> None:
    with chest(FakePulse(FINE), beat_s=1000.0, lease_s=5000.0) as c:
        c.heartbeat.serve(WorkerId(3), time.monotonic())
        c.heartbeat.nudge()
        assert isinstance(c.next(), BeatAnswered)


@pytest.mark.parametrize("hangs", [False, True])
def test_without_a_beat_in_time_the_trainers_are_stopped_first(hangs: bool) -> None:
    pulse = FakePulse(FINE if hangs else None)
    if hangs:
        pulse.free.clear()
    with chest(pulse) as c:
        registered_s = time.monotonic()
        c.heartbeat.serve(WorkerId(3), registered_s)
        assert c.next() == "stopped"
        assert time.monotonic() - registered_s >= 0.27
        over = c.next()
        assert over == LeaseOver(worker=WorkerId(3), reason="it could not renew its lease for 0.28 s")


def test_a_worker_that_was_taken_for_gone_stops_its_trainers_at_once() -> None:
    gone = HeartbeatReply(cancelled=(), lost=(), alive=False)
    with chest(FakePulse(gone), lease_s=5000.0) as c:
        c.heartbeat.serve(WorkerId(3), time.monotonic())
        assert c.next() == "stopped"
        assert c.next() == LeaseOver(worker=WorkerId(3), reason="other workers declared it dead")


def test_after_a_lost_lease_another_worker_can_be_served() -> None:
    pulse = FakePulse(None)
    with chest(pulse) as c:
        c.heartbeat.serve(WorkerId(3), time.monotonic())
        assert c.next() == "stopped"
        assert isinstance(c.next(), LeaseOver)
        pulse.answer = FINE
        c.heartbeat.serve(WorkerId(4), time.monotonic())
        assert isinstance(c.next(), BeatAnswered)
        assert pulse.asked[-1][0] == 4


def test_a_catalog_of_another_version_is_told() -> None:
    error = CatalogVersionError("the catalog has version 9.9.9")
    with chest(FakePulse(error), lease_s=5000.0) as c:
        c.heartbeat.serve(WorkerId(3), time.monotonic())
        assert c.next() == Outdated(error=error)
