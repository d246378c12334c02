"""A worker of the catalog: what it claims and writes, while the database is there, away, or takes it for gone."""

import logging

import pytest

from indb_tensile.catalog.jobs import ObservedWorker
from indb_tensile.controller.worker_registration import WorkerRegistration
from indb_tensile.errors import DatabaseError
from indb_tensile.job import Blame, ClaimedJob, WorkerId
from indb_tensile.scheduler.admission.admission_orders import FailJob, RequeueJob
from indb_tensile.scheduler.admission.pool import Fault
from tests.controller.fakes import FakeRecords
from tests.controller.test_catalog_writes import LockedRecords


def _joined(records: FakeRecords) -> WorkerRegistration:
    membership = WorkerRegistration(records)
    membership.join()
    return membership


def _claimed(records: FakeRecords, membership: WorkerRegistration) -> ClaimedJob:
    records.enqueue("train")
    job = membership.claim()
    assert job is not None
    return job


def _requeue(job: ClaimedJob, reason: str = "test", blame: Blame = Blame.OTHERS) -> RequeueJob:
    return RequeueJob(job=job.job, claim=job.claim, reason=reason, blame=blame)


def test_a_beat_that_overlapped_a_short_job_takes_nothing_back() -> None:
    """It was under way before the claim, and heard of only after the job's end."""
    records = FakeRecords()
    membership = _joined(records)
    job = _claimed(records, membership)
    membership.give_back([(job.job, job.claim)], claims=set())
    assert records.written == []


def test_a_job_claimed_without_our_knowing_goes_back_and_one_that_is_held_does_not() -> None:
    records = FakeRecords()
    membership = _joined(records)
    worker = membership.worker
    assert worker is not None
    for _ in range(2):
        records.enqueue("train")
    held, stray = (records.claim(worker, frozenset()) for _ in range(2))  # neither's answer arrived here
    assert isinstance(held, ClaimedJob)
    assert isinstance(stray, ClaimedJob)
    membership.give_back([(job.job, job.claim) for job in (held, stray)], claims={held.claim})
    assert records.written == [_requeue(stray, "the answer to its claim was lost", Blame.NOBODY)]


def test_unreadable_jobs_fail_one_by_one_and_those_of_other_owners_come_between_them() -> None:
    records = FakeRecords()
    membership = _joined(records)
    for owner in (10, 10, 10, 20, 20):
        records.enqueue("unreadable", owner=owner)
    good = [records.enqueue("train", owner=30) for _ in range(2)]
    heard = []
    for _ in range(14):
        job = membership.claim()
        heard.append((job and job.job, sum(s == "failed" for s in records.states.values())))
        if not (membership.take_more_to_claim() or job):
            break
    # A claim fails one job at most, and finds a good one after one of each other owner.
    assert heard == [
        (None, 1),
        (None, 2),
        (good[0], 2),
        (None, 3),
        (None, 4),
        (good[1], 4),
        (None, 5),
        (None, 5),
        (None, 5),
    ]


def test_another_jobs_lock_holds_up_no_claim() -> None:
    records = LockedRecords()
    membership = _joined(records)
    job = _claimed(records, membership)
    records.locked = {job.job}
    membership.write(_requeue(job))
    records.enqueue("train")
    assert membership.claim() is not None
    assert not membership.written


def test_nothing_is_claimed_while_the_database_is_away() -> None:
    records = FakeRecords()
    membership = _joined(records)
    job = _claimed(records, membership)
    records.enqueue("train")
    records.away = True
    membership.write(_requeue(job))
    assert (membership.written, membership.claim()) == (False, None)
    records.away = False
    assert membership.claim() is not None
    assert (membership.written, records.written) == (True, [_requeue(job)])


def test_what_a_worker_had_to_write_goes_with_its_lease_and_its_next_self_takes_leave_of_it() -> None:
    records = FakeRecords()
    membership = _joined(records)
    job = _claimed(records, membership)
    records.away = True
    membership.write(_requeue(job))
    membership.expire()
    assert (membership.worker, membership.claim()) == (None, None)
    with pytest.raises(DatabaseError):
        membership.join()
    records.away = False
    membership.join()
    assert (membership.worker, records.alive, records.written) == (2, {WorkerId(2)}, [])


def test_an_outage_is_said_once_and_so_is_its_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    records = FakeRecords()
    membership = _joined(records)
    caplog.clear()
    for records.away in (True, True, False, False):
        membership.rescue()
    assert [(r.levelname, r.message) for r in caplog.records] == [
        ("WARNING", "the database is away"),
        ("INFO", "the database is back"),
    ]


def test_a_job_whose_end_the_database_would_not_take_goes_back() -> None:
    records = FakeRecords()
    membership = _joined(records)
    job = _claimed(records, membership)
    records.refuses = True
    membership.write(FailJob(job=job.job, claim=job.claim, fault=Fault(sqlstate="22000", message="a\0b")))
    records.refuses = False
    membership.give_back([(job.job, job.claim)], claims=set())
    assert records.written == [_requeue(job, "its end could not be written", Blame.NOBODY)]


class Clock:
    """A monotonic clock that the test sets."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_a_worker_whose_beats_stand_still_for_its_lease_is_declared_dead() -> None:
    records, clock = FakeRecords(), Clock()
    membership = WorkerRegistration(records, clock)
    membership.join()
    records.others = (ObservedWorker(worker=WorkerId(8), beats=5, lease_s=15.0),)
    for clock.now_s in (100.0, 114.9):
        membership.rescue()
    assert records.declared == []
    clock.now_s = 115.0
    membership.rescue()
    assert records.declared == [ObservedWorker(worker=WorkerId(8), beats=5, lease_s=15.0)]


def test_after_an_outage_every_other_worker_has_a_whole_lease_to_beat_again() -> None:
    records, clock = FakeRecords(), Clock()
    membership = WorkerRegistration(records, clock)
    membership.join()
    records.others = (ObservedWorker(worker=WorkerId(8), beats=5, lease_s=15.0),)
    membership.rescue()
    records.away, clock.now_s = True, 160.0
    membership.rescue()
    records.away = False
    for clock.now_s in (161.0, 175.9):
        membership.rescue()
    assert records.declared == []


def test_what_holds_up_the_queue_is_written_when_it_is_news_and_again_where_it_could_not_be() -> None:
    records = FakeRecords()
    membership = _joined(records)
    membership.record_holdup(None)
    membership.record_holdup("a trainer to start")
    membership.record_holdup("a trainer to start")
    records.away = True
    membership.record_holdup(None)
    records.away = False
    membership.record_holdup(None)
    membership.record_holdup(None)
    worker = membership.worker
    assert records.holdups == [(worker, "a trainer to start"), (worker, None)]
