"""Check what a registered worker claims and writes while the database answers, is away, or has declared it dead."""

import logging

import pytest

from indb_tensile.catalog.jobs import ObservedWorker
from indb_tensile.controller.worker_registration import WorkerRegistration
from indb_tensile.errors import DatabaseError
from indb_tensile.job import Blame, ClaimedJob, WorkerId
from indb_tensile.scheduler.admission.admission_orders import FailJob, RequeueJob
from indb_tensile.scheduler.admission.pool import Fault
from tests.controller.fakes import FakeClock, FakeRecords, LockedRecords


def _register(records: FakeRecords, clock: FakeClock | None = None) -> WorkerRegistration:
    registration = WorkerRegistration(records) if clock is None else WorkerRegistration(records, clock)
    registration.join()
    return registration


def _claim_job(records: FakeRecords, registration: WorkerRegistration) -> ClaimedJob:
    records.enqueue("train")
    job = registration.claim()
    assert job is not None
    return job


def _requeue(job: ClaimedJob, reason: str = "test", blame: Blame = Blame.OTHERS) -> RequeueJob:
    return RequeueJob(job=job.job, claim=job.claim, reason=reason, blame=blame)


def test_heartbeat_reply_from_before_a_claim_requeues_no_job() -> None:
    """The heartbeat was sent before the claim, and its reply arrived after the job's end."""
    records = FakeRecords()
    registration = _register(records)
    job = _claim_job(records, registration)
    registration.give_back([(job.job, job.claim)], claims=set())
    assert records.written == []


def test_only_a_job_whose_claim_was_never_answered_is_requeued() -> None:
    records = FakeRecords()
    registration = _register(records)
    worker = registration.worker
    assert worker is not None
    for _ in range(2):
        records.enqueue("train")
    held_job, stray_job = (records.claim(worker, frozenset()) for _ in range(2))  # no answer arrives
    assert isinstance(held_job, ClaimedJob)
    assert isinstance(stray_job, ClaimedJob)
    registration.give_back([(job.job, job.claim) for job in (held_job, stray_job)], claims={held_job.claim})
    assert records.written == [_requeue(stray_job, "the answer to its claim was lost", Blame.NOBODY)]


def test_unreadable_jobs_fail_one_per_claim_in_turn_with_jobs_of_other_owners() -> None:
    records = FakeRecords()
    registration = _register(records)
    for owner in (10, 10, 10, 20, 20):
        records.enqueue("unreadable", owner=owner)
    readable_jobs = [records.enqueue("train", owner=30) for _ in range(2)]
    progress = []
    for _ in range(14):
        job = registration.claim()
        progress.append((job and job.job, sum(s == "failed" for s in records.states.values())))
        if not (registration.take_more_to_claim() or job):
            break
    # A claim fails at most one job. A readable job is claimed after one job of each other owner.
    assert progress == [
        (None, 1),
        (None, 2),
        (readable_jobs[0], 2),
        (None, 3),
        (None, 4),
        (readable_jobs[1], 4),
        (None, 5),
        (None, 5),
        (None, 5),
    ]


def test_lock_on_a_job_delays_no_claim() -> None:
    records = LockedRecords()
    registration = _register(records)
    job = _claim_job(records, registration)
    records.locked = {job.job}
    registration.write(_requeue(job))
    records.enqueue("train")
    assert registration.claim() is not None
    assert not registration.written


def test_nothing_is_claimed_while_the_database_is_away() -> None:
    records = FakeRecords()
    registration = _register(records)
    job = _claim_job(records, registration)
    records.enqueue("train")
    records.away = True
    registration.write(_requeue(job))
    assert (registration.written, registration.claim()) == (False, None)
    records.away = False
    assert registration.claim() is not None
    assert (registration.written, records.written) == (True, [_requeue(job)])


def test_expired_worker_drops_its_writes_and_leaves_the_catalog_at_the_next_registration() -> None:
    records = FakeRecords()
    registration = _register(records)
    job = _claim_job(records, registration)
    records.away = True
    registration.write(_requeue(job))
    registration.expire()
    assert (registration.worker, registration.claim()) == (None, None)
    with pytest.raises(DatabaseError):
        registration.join()
    records.away = False
    registration.join()
    assert (registration.worker, records.alive, records.written) == (2, {WorkerId(2)}, [])


def test_start_and_end_of_an_outage_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    records = FakeRecords()
    registration = _register(records)
    caplog.clear()
    for records.away in (True, True, False, False):
        registration.rescue()
    assert [(r.levelname, r.message) for r in caplog.records] == [
        ("WARNING", "the database is away"),
        ("INFO", "the database is back"),
    ]


def test_job_whose_end_cannot_be_written_is_requeued() -> None:
    records = FakeRecords()
    registration = _register(records)
    job = _claim_job(records, registration)
    records.refuses = True
    registration.write(FailJob(job=job.job, claim=job.claim, fault=Fault(sqlstate="22000", message="a\0b")))
    records.refuses = False
    registration.give_back([(job.job, job.claim)], claims=set())
    assert records.written == [_requeue(job, "its end could not be written", Blame.NOBODY)]


def test_worker_without_a_new_heartbeat_for_its_lease_is_declared_dead() -> None:
    records, clock = FakeRecords(), FakeClock(now_s=100.0)
    registration = WorkerRegistration(records, clock)
    registration.join()
    records.others = (ObservedWorker(worker=WorkerId(8), beats=5, lease_s=15.0),)
    for clock.now_s in (100.0, 114.9):
        registration.rescue()
    assert records.declared == []
    clock.now_s = 115.0
    registration.rescue()
    assert records.declared == [ObservedWorker(worker=WorkerId(8), beats=5, lease_s=15.0)]


def test_every_other_worker_gets_a_whole_lease_after_an_outage() -> None:
    records, clock = FakeRecords(), FakeClock(now_s=100.0)
    registration = WorkerRegistration(records, clock)
    registration.join()
    records.others = (ObservedWorker(worker=WorkerId(8), beats=5, lease_s=15.0),)
    registration.rescue()
    records.away, clock.now_s = True, 160.0
    registration.rescue()
    records.away = False
    for clock.now_s in (161.0, 175.9):
        registration.rescue()
    assert records.declared == []


def test_job_that_another_worker_ends_earlier_is_offered_once_and_claimed_after_a_wait() -> None:
    records, clock = FakeRecords(), FakeClock()
    registration = _register(records, clock)
    records.enqueue("train")
    (job,) = records.states
    records.better_elsewhere = {job}
    assert [registration.claim(), registration.claim()] == [None, None]
    clock.now_s += 2.9
    assert registration.claim() is None
    assert records.offered == [job]
    clock.now_s += 0.2
    claimed = registration.claim()
    assert claimed is not None
    assert claimed.job == job


def test_wait_for_a_better_worker_begins_anew_with_each_job() -> None:
    records, clock = FakeRecords(), FakeClock()
    registration = _register(records, clock)
    for _ in range(2):
        records.enqueue("train")
    first, other = records.states
    records.better_elsewhere = {first, other}
    assert registration.claim() is None
    clock.now_s += 5.0
    records.states[first] = "claimed"  # by another worker
    assert registration.claim() is None
    assert records.offered == [first, other]
