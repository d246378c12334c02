"""Check what a registered worker claims and writes while the database answers, is away, or has declared it dead."""

import logging
from dataclasses import replace

import pytest

from indb_tensile.catalog.jobs import ObservedWorker
from indb_tensile.catalog.plans import DeviceUse, JobUse
from indb_tensile.catalog.usage import JobUsage
from indb_tensile.controller.worker_registration import WorkerRegistration
from indb_tensile.errors import DatabaseError
from indb_tensile.job import Blame, ClaimedJob, JobId, WorkerId
from indb_tensile.scheduler.admission.admission_orders import FailJob, RequeueJob
from indb_tensile.scheduler.admission.outlook import Outlook
from indb_tensile.scheduler.admission.overheads import KindOverheads, Overheads
from indb_tensile.scheduler.admission.pool import Fault
from indb_tensile.scheduler.completion.contention import Contention
from indb_tensile.scheduler.completion.set_forecasts import SharedDevice
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


def test_changed_holdup_is_recorded_once_and_again_after_a_failed_write() -> None:
    records = FakeRecords()
    registration = _register(records)
    registration.record_holdup(None)
    registration.record_holdup("a trainer to start")
    registration.record_holdup("a trainer to start")
    records.away = True
    registration.record_holdup(None)
    records.away = False
    registration.record_holdup(None)
    registration.record_holdup(None)
    worker = registration.worker
    assert records.holdups == [(worker, "a trainer to start"), (worker, None)]


def test_contention_that_jobs_have_taught_is_recorded_once_and_again_after_a_failed_write() -> None:
    records = FakeRecords()
    registration = _register(records)
    measured = Contention(points=((1, 1.0), (2, 1.5)))
    taught = measured.observed(2, 1.0)
    for contention in (measured, measured.observed(2, 1.55), taught, taught):
        registration.record_contention(contention)
    relearned = taught.observed(2, 1.0)
    records.away = True
    registration.record_contention(relearned)
    records.away = False
    registration.record_contention(relearned)
    assert records.learned == [taught, relearned]
    registration.record_contention(Contention(points=((1, 1.0), (2, 9.0))))
    assert records.learned == [taught, relearned], "what was measured anew was taught by no job"


def test_cores_that_other_programs_take_are_written_when_they_have_changed() -> None:
    records = FakeRecords()
    registration = WorkerRegistration(records)
    for taken in (0.05, 0.05, 0.08, 0.08):
        registration.record_contention(Contention(points=((1, 1.0),), cores=2, taken_cores=taken))
    assert (records.taken_cores, records.learned) == ([0.08], []), "the first were the catalog's"
    records.away = True
    registration.record_contention(Contention(points=((1, 1.0),), cores=2, taken_cores=0.1))
    records.away = False
    registration.record_contention(Contention(points=((1, 1.0),), cores=2, taken_cores=0.1))
    assert records.taken_cores == [0.08, 0.1], "a failed write is tried again"


def test_overheads_are_recorded_where_they_changed_noticeably_and_again_after_a_failed_write() -> None:
    records = FakeRecords()
    registration = _register(records)
    known = Overheads().closed("a", 1, 100.0).closed("b", 2, 100.0)
    noisy, changed = known.closed("a", 1, 95.0), known.closed("a", 1, 50.0)
    more = changed.started("c", 3, 7.0)
    for overheads in (known, noisy, changed, changed):
        registration.record_overheads(overheads)
    records.away = True
    registration.record_overheads(more)
    records.away = False
    for overheads in (more, more):
        registration.record_overheads(overheads)
    assert records.overheads == [
        (KindOverheads(kind="a", state_bytes=1, closing_ns=50.0),),
        (KindOverheads(kind="c", state_bytes=3, startup_ns=7.0),),
    ]


def test_first_overheads_of_an_empty_catalog_are_recorded() -> None:
    records = FakeRecords()
    registration = _register(records)
    for overheads in (Overheads(), Overheads().started("a", 1, 0.0)):
        registration.record_overheads(overheads)
    assert records.overheads == [(KindOverheads(kind="a", state_bytes=1, startup_ns=0.0),)]


def test_use_of_the_device_while_the_database_is_away_is_written_later() -> None:
    records, clock = FakeRecords(), FakeClock(now_s=100.0)
    registration = WorkerRegistration(records, clock)
    registration.join()
    registration.record_device(_USE, (_SHARE,))
    records.away, clock.now_s = True, 101.0
    registration.record_device(_USE, (_SHARE,))
    records.away, clock.now_s = False, 103.0
    registration.record_device(_USE, ())
    registration.record_device(_USE, ())
    assert records.usages == (JobUsage(job=JobId(1), device_s=1.0, byte_s=5.0, running_s=1.0),)


_USE = DeviceUse(
    kind="x", capacity_bytes=9, budget_bytes=9, granted_bytes=5, used_bytes=5, high_water_bytes=5, host_bytes=0
)
_SHARE = JobUse(job=JobId(1), granted_bytes=5, used_bytes=5, high_water_bytes=5)


def test_changed_outlook_is_recorded_after_some_seconds_and_a_failed_write_is_dropped() -> None:
    records, clock = FakeRecords(), FakeClock(now_s=100.0)
    registration = _register(records, clock)
    device = SharedDevice(budget_bytes=8, region_bytes=1, contention=Contention(points=((1, 1.0),)), max_slowdown=3.0)
    outlooks = [
        Outlook(device=replace(device, budget_bytes=size), running=(), waiting=()) for size in (8, 8, 9, 10, 11)
    ]
    for now_s, outlook in zip((100.0, 110.0, 111.0, 112.0, 120.0), outlooks, strict=True):
        clock.now_s = now_s
        registration.record_outlook(outlook)
    registration.record_outlook(None)
    assert records.outlooks == [(registration.worker, outlooks[k]) for k in (0, 2, 4)]
    records.away, clock.now_s = True, 130.0
    registration.record_outlook(outlooks[0])


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
