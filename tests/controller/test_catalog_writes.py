"""What waits to be written: in order for each job, and no job's before another's."""

from collections import Counter

from indb_tensile.catalog.connection import LockedError
from indb_tensile.controller.catalog_writes import CatalogWrites
from indb_tensile.controller.records import Writing
from indb_tensile.job import ClaimedJob, JobId, WorkerId
from indb_tensile.scheduler.admission.admission_orders import CancelJob, RecordMeasurement, SetWaitsFor
from indb_tensile.scheduler.admission.events import Measurement
from indb_tensile.scheduler.admission.pool import TrainerId
from tests.controller.fakes import FakeRecords


class LockedRecords(FakeRecords):
    """Rows of the jobs in `locked` are held by somebody; every attempt to write is counted."""

    def __init__(self) -> None:
        super().__init__()
        self.locked: set[JobId] = set()
        self.attempts: Counter[JobId] = Counter()

    def write(self, writing: Writing, *, planning_ns: int) -> None:
        self.attempts[writing.job] += 1
        if writing.job in self.locked:
            raise LockedError("canceling statement due to lock timeout")
        super().write(writing, planning_ns=planning_ns)


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def claimed(records: FakeRecords, count: int) -> list[ClaimedJob]:
    worker = records.register()
    for _ in range(count):
        records.enqueue("train")
    jobs = [records.claim(worker, frozenset()) for _ in range(count)]
    return [job for job in jobs if isinstance(job, ClaimedJob)]


def waits(job: ClaimedJob, text: str) -> SetWaitsFor:
    return SetWaitsFor(job=job.job, claim=job.claim, text=text)


def cancel(job: ClaimedJob) -> CancelJob:
    return CancelJob(job=job.job, claim=job.claim)


def measured(job: ClaimedJob) -> RecordMeasurement:
    measurement = Measurement(
        trainer=TrainerId(1), generation=1, latency_ns=(), iteration_ns=1, stall_ns=0, peak_bytes=1
    )
    return RecordMeasurement(job=job.job, claim=job.claim, measurement=measurement)


def test_a_locked_job_delays_its_own_writings_only_and_keeps_their_order() -> None:
    records, clock = LockedRecords(), Clock()
    mine, other = claimed(records, 2)
    outbox = CatalogWrites(records, clock)
    records.locked = {mine.job}
    for writing in (waits(mine, "memory"), cancel(mine), waits(other, "memory"), cancel(other)):
        outbox.put(writing)
    assert records.written == [waits(other, "memory"), cancel(other)]
    records.locked.clear()
    clock.now_s += 10.0
    assert outbox.flush()
    assert records.written[2:] == [waits(mine, "memory"), cancel(mine)]
    assert outbox.empty


def test_a_locked_job_is_tried_again_after_ever_longer_pauses() -> None:
    records, clock = LockedRecords(), Clock()
    (job,) = claimed(records, 1)
    outbox = CatalogWrites(records, clock)
    records.locked = {job.job}
    outbox.put(cancel(job))
    tried_s = []
    for step in range(200):
        clock.now_s = step / 8
        before = records.attempts[job.job]
        outbox.flush()
        if records.attempts[job.job] > before:
            tried_s.append(clock.now_s)
    assert tried_s == [0.25, 0.75, 1.625, 3.25, 6.5, 11.5, 16.5, 21.5]


def test_one_flush_waits_for_few_locks_and_the_next_one_comes_to_the_other_jobs() -> None:
    records, clock = LockedRecords(), Clock()
    jobs = claimed(records, 6)
    outbox = CatalogWrites(records, clock)
    records.away = True
    for job in jobs:
        outbox.put(cancel(job))
    records.away = False
    records.locked = {job.job for job in jobs[:5]}
    records.attempts.clear()
    outbox.flush()
    assert records.attempts.total() == 2
    outbox.flush()
    assert records.attempts.total() == 4
    outbox.flush()
    assert records.written == [cancel(jobs[5])]


def test_measurements_are_kept_neither_through_an_outage_nor_behind_a_lock() -> None:
    records, clock = LockedRecords(), Clock()
    mine, other = claimed(records, 2)
    outbox = CatalogWrites(records, clock)
    records.locked = {mine.job}
    outbox.put(waits(mine, "memory"))
    for _ in range(3):
        outbox.put(measured(mine))
        clock.now_s += 10.0
        outbox.flush()
    records.away = True
    outbox.put(measured(other))
    assert outbox.claims == {mine.claim}
    records.away = False
    records.locked.clear()
    clock.now_s += 10.0
    outbox.flush()
    assert (records.written, outbox.empty) == ([waits(mine, "memory")], True)


def test_a_job_that_was_claimed_anew_writes_after_its_former_claim() -> None:
    records, clock = LockedRecords(), Clock()
    (job,) = claimed(records, 1)
    outbox = CatalogWrites(records, clock)
    records.locked = {job.job}
    outbox.put(cancel(job))
    assert outbox.claims == {job.claim}
    records.take_over(job.job)
    records.locked.clear()
    clock.now_s += 10.0
    outbox.flush()
    assert (records.written, outbox.empty) == ([], True)
    assert WorkerId(1) in records.alive
