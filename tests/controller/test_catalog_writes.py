"""Check that pending catalog writes keep their order within a job, and that one locked job delays no other job."""

from indb_tensile.controller.catalog_writes import CatalogWrites
from indb_tensile.job import ClaimedJob, WorkerId
from indb_tensile.scheduler.admission.admission_orders import CancelJob, RecordMeasurement, SetWaitsFor
from indb_tensile.scheduler.admission.events import Measurement
from indb_tensile.scheduler.admission.pool import TrainerId
from tests.controller.fakes import FakeClock, FakeRecords, LockedRecords


def claim_jobs(records: FakeRecords, count: int) -> list[ClaimedJob]:
    worker = records.register()
    for _ in range(count):
        records.enqueue("train")
    jobs = [records.claim(worker, frozenset()) for _ in range(count)]
    return [job for job in jobs if isinstance(job, ClaimedJob)]


def set_waits_for(job: ClaimedJob, text: str) -> SetWaitsFor:
    return SetWaitsFor(job=job.job, claim=job.claim, text=text)


def cancel_job(job: ClaimedJob) -> CancelJob:
    return CancelJob(job=job.job, claim=job.claim)


def record_measurement(job: ClaimedJob) -> RecordMeasurement:
    measurement = Measurement(
        trainer=TrainerId(1), generation=1, latency_ns=(), iteration_ns=1, stall_ns=0, peak_bytes=1
    )
    return RecordMeasurement(job=job.job, claim=job.claim, measurement=measurement)


def test_locked_job_delays_only_its_own_writes_and_keeps_their_order() -> None:
    records, clock = LockedRecords(), FakeClock()
    locked_job, other_job = claim_jobs(records, 2)
    writes = CatalogWrites(records, clock)
    records.locked = {locked_job.job}
    for writing in (
        set_waits_for(locked_job, "memory"),
        cancel_job(locked_job),
        set_waits_for(other_job, "memory"),
        cancel_job(other_job),
    ):
        writes.put(writing)
    assert records.written == [set_waits_for(other_job, "memory"), cancel_job(other_job)]
    records.locked.clear()
    clock.now_s += 10.0
    assert writes.flush()
    assert records.written[2:] == [set_waits_for(locked_job, "memory"), cancel_job(locked_job)]
    assert writes.empty


def test_writes_of_a_locked_job_are_retried_after_growing_pauses() -> None:
    records, clock = LockedRecords(), FakeClock()
    (job,) = claim_jobs(records, 1)
    writes = CatalogWrites(records, clock)
    records.locked = {job.job}
    writes.put(cancel_job(job))
    attempts_s = []
    for step in range(200):
        clock.now_s = step / 8
        before = records.attempts[job.job]
        writes.flush()
        if records.attempts[job.job] > before:
            attempts_s.append(clock.now_s)
    assert attempts_s == [0.25, 0.75, 1.625, 3.25, 6.5, 11.5, 16.5, 21.5]


def test_flush_waits_for_two_locks_and_the_next_flush_continues_with_other_jobs() -> None:
    records, clock = LockedRecords(), FakeClock()
    jobs = claim_jobs(records, 6)
    writes = CatalogWrites(records, clock)
    records.away = True
    for job in jobs:
        writes.put(cancel_job(job))
    records.away = False
    records.locked = {job.job for job in jobs[:5]}
    records.attempts.clear()
    writes.flush()
    assert records.attempts.total() == 2
    writes.flush()
    assert records.attempts.total() == 4
    writes.flush()
    assert records.written == [cancel_job(jobs[5])]


def test_measurements_are_dropped_during_an_outage_and_behind_a_lock() -> None:
    records, clock = LockedRecords(), FakeClock()
    locked_job, other_job = claim_jobs(records, 2)
    writes = CatalogWrites(records, clock)
    records.locked = {locked_job.job}
    writes.put(set_waits_for(locked_job, "memory"))
    for _ in range(3):
        writes.put(record_measurement(locked_job))
        clock.now_s += 10.0
        writes.flush()
    records.away = True
    writes.put(record_measurement(other_job))
    assert writes.claims == {locked_job.claim}
    records.away = False
    records.locked.clear()
    clock.now_s += 10.0
    writes.flush()
    assert (records.written, writes.empty) == ([set_waits_for(locked_job, "memory")], True)


def test_writes_of_a_former_claim_are_dropped_after_another_worker_takes_the_job() -> None:
    records, clock = LockedRecords(), FakeClock()
    (job,) = claim_jobs(records, 1)
    writes = CatalogWrites(records, clock)
    records.locked = {job.job}
    writes.put(cancel_job(job))
    assert writes.claims == {job.claim}
    records.take_over(job.job)
    records.locked.clear()
    clock.now_s += 10.0
    writes.flush()
    assert (records.written, writes.empty) == ([], True)
    assert WorkerId(1) in records.alive
