"""Check how controllers let each other know the steps of ranks: once for each change, and under their claims."""

import pytest

from indb_tensile.controller.order_performer import is_left_to_leader
from indb_tensile.controller.worker_registration import WorkerRegistration
from indb_tensile.job import ClaimedJob, ClaimedRank, ClaimToken, JobId
from indb_tensile.scheduler.admission.admission_orders import PublishStep, RecordAdoption
from indb_tensile.scheduler.admission.events import RanksChange
from indb_tensile.scheduler.admission.pool import Member, Pool
from indb_tensile.scheduler.timing.rank_steps import PublishedStep
from tests.controller.fakes import FakeRecords, spec

STEP = PublishedStep(events=(0, -1), work_ns=(1, 2, 3), exchange_ns=(4,))
JOB, CLAIM = JobId(1), ClaimToken(7)


@pytest.fixture
def records() -> FakeRecords:
    records = FakeRecords()
    records.claims[JOB] = CLAIM
    records.steps[JOB] = ((1, STEP),)
    return records


@pytest.fixture
def registration(records: FakeRecords) -> WorkerRegistration:
    registration = WorkerRegistration(records)
    registration.join()
    return registration


def pool_of(*, rank: int | None, claim: ClaimToken = CLAIM) -> Pool:
    """Return the pool of a controller with this rank of the job, or with all of it."""
    gang = None if rank is None else ClaimedRank(rank=rank, ranks=2, attempt_claim=ClaimToken(7))
    claimed = ClaimedJob(job=JOB, claim=claim, attempt=1, owner_oid=10, spec=spec("train", 1), gang=gang)
    return Pool(budget_bytes=1 << 30, region_bytes=1 << 20, members=(Member(job=claimed),))


def test_steps_are_read_once_after_each_publication(registration: WorkerRegistration, records: FakeRecords) -> None:
    pool, heard = pool_of(rank=0), (RanksChange(claim=CLAIM, steps=((1, STEP),)),)
    assert registration.new_steps(pool, {}) == ()
    assert registration.new_steps(pool, {JOB: 0}) == ()
    assert [registration.new_steps(pool, {JOB: 1}) for _ in range(2)] == [heard, ()]
    records.away = True
    assert registration.new_steps(pool, {JOB: 2}) == ()
    records.away = False
    assert registration.new_steps(pool, {JOB: 2}) == heard, "it is asked for again"


def test_steps_of_another_attempt_are_not_read(registration: WorkerRegistration, records: FakeRecords) -> None:
    assert registration.new_steps(pool_of(rank=None), {JOB: 1}) == (), "it has no ranks"
    assert registration.new_steps(pool_of(rank=0, claim=ClaimToken(6)), {JOB: 1}) == ()
    assert registration.new_steps(pool_of(rank=0), {JOB: 1}) != (), "of the new attempt"


def test_each_rank_publishes_its_own_step_and_the_leader_alone_writes_about_plans() -> None:
    step = PublishStep(job=JOB, claim=CLAIM, step=STEP)
    adoption = RecordAdoption(job=JOB, claim=CLAIM, generation=1)
    assert [is_left_to_leader(order, pool_of(rank=1)) for order in (step, adoption)] == [False, True]
    assert [is_left_to_leader(order, pool_of(rank=0)) for order in (step, adoption)] == [False, False]
