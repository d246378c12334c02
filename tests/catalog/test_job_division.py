"""Check which of several workers a queued job goes to: the one whose present jobs are done first."""

import threading

import psycopg
import pytest

from indb_tensile.catalog import jobs
from indb_tensile.catalog.jobs import DeferredJob
from indb_tensile.errors import MemoryLimitError
from indb_tensile.job import ClaimedJob, JobId, JobState, WorkerId
from tests.catalog.enqueue import claim, enqueue, register
from tests.conftest import Database
from tests.nightly import nightly_unless

pytestmark = [pytest.mark.postgres, pytest.mark.shares_database]


def start(connection: psycopg.Connection, worker: WorkerId, left_s: float | None) -> JobId:
    """Give the worker a running job that ends in about `left_s`; None: nothing is foretold of it."""
    enqueue(connection)
    job = claim(connection, worker)
    jobs.start_running(connection, job.job, job.claim)
    if left_s is not None:
        connection.execute(
            "insert into tensile.job_progress (job_id, epoch, epochs, step, steps, eta)"
            " values (%s, 1, 2, 1, 2, now() + make_interval(secs => %s))",
            (job.job, left_s),
        )
    return job.job


def work_left(connection: psycopg.Connection) -> dict[int, tuple[float, bool]]:
    rows = connection.execute("select worker_id, work_s, accepts from tensile.work_left()")
    return {worker: (work_s, accepts) for worker, work_s, accepts in rows}


def better(connection: psycopg.Connection, worker: WorkerId) -> int | None:
    row = connection.execute("select tensile.better_worker(%s)", (worker,)).fetchone()
    assert row is not None
    return None if row[0] is None else int(row[0])


def test_work_left_is_the_mean_of_jobs_side_by_side_and_unknown_jobs_count_as_the_average(
    connection: psycopg.Connection,
) -> None:
    both, unknown, waiting, idle = (register(connection) for _ in range(4))
    for left_s in (30.0, 90.0):
        start(connection, both, left_s)
    start(connection, unknown, None)
    start(connection, waiting, 60.0)
    enqueue(connection)
    claim(connection, waiting)  # has not begun: adds to the work, and shares the device with nobody yet

    assert work_left(connection) == {
        both: (60.0, True),
        unknown: (60.0, True),
        waiting: (120.0, True),
        idle: (0.0, True),
    }
    assert [better(connection, worker) for worker in (both, unknown, waiting, idle)] == [idle, idle, idle, None]


def test_job_is_left_to_the_worker_with_less_work_and_claimed_after_a_wait(connection: psycopg.Connection) -> None:
    busy, idle = register(connection), register(connection)
    start(connection, busy, 100.0)
    job = enqueue(connection)

    assert jobs.claim_job(connection, busy, defers=True) == DeferredJob(job=job)
    assert connection.execute(
        "select state::text, attempt from tensile.jobs where job_id = %s", (job,)
    ).fetchone() == (
        "queued",
        0,
    )
    claimed = jobs.claim_job(connection, busy, defers=True, waited_for=job)
    assert isinstance(claimed, ClaimedJob)
    assert claimed.job == job
    late = enqueue(connection)
    assert jobs.claim_job(connection, busy, defers=True, waited_for=job) == DeferredJob(job=late)
    claimed = jobs.claim_job(connection, idle, defers=True)
    assert isinstance(claimed, ClaimedJob)
    assert claimed.job == late


def test_equal_workers_leave_nothing_to_each_other(connection: psycopg.Connection) -> None:
    first, other = register(connection), register(connection)
    for worker in (first, other):
        start(connection, worker, 50.0 if worker == first else 54.0)  # less than the margin apart
    assert [better(connection, worker) for worker in (first, other)] == [None, None]


@pytest.mark.parametrize(
    "change",
    [
        "holdup = 'a place: all 8 are taken by jobs'",
        "heartbeat_at = now() - interval '1 hour'",
        "stopped_at = now()",
        "version = '0.0.1'",
    ],
)
def test_no_job_is_left_to_a_worker_that_would_not_claim_it(connection: psycopg.Connection, change: str) -> None:
    busy, idle = register(connection), register(connection)
    start(connection, busy, 100.0)
    assert better(connection, busy) == idle
    connection.execute(f"update tensile.workers set {change} where worker_id = {idle}".encode())
    assert better(connection, busy) is None


def test_no_job_is_left_to_a_worker_that_prepares_as_many_as_it_may(connection: psycopg.Connection) -> None:
    busy, preparing, third = (register(connection) for _ in range(3))
    connection.execute("update tensile.workers set entering = 2, holdup = nullif(worker_id, %s)::text", (preparing,))
    start(connection, busy, 1000.0)
    for _ in range(3):
        start(connection, third, 1.0)  # so that a job of which nothing is foretold counts as a short one
    for _ in range(2):
        assert better(connection, busy) == preparing
        enqueue(connection)
        claim(connection, preparing)
    assert better(connection, busy) is None


def test_paused_jobs_are_no_work(connection: psycopg.Connection) -> None:
    busy, idle = register(connection), register(connection)
    job = start(connection, busy, 100.0)
    connection.execute("update tensile.jobs set pause_requested = true where job_id = %s", (job,))
    assert better(connection, busy) is None
    assert work_left(connection)[busy] == (0.0, True)
    assert idle != busy


@pytest.mark.parametrize("count", nightly_unless(lambda count: count == 40, [40, 500]))
def test_eight_claimers_that_defer_to_each_other_claim_each_job_once_and_leave_none(
    database: Database, count: int
) -> None:
    with database.connect() as connection:
        connection.execute("select tensile_set_quota('postgres', jobs_running => 1000)")
        expected = sorted(enqueue(connection) for _ in range(count))
    claimed: list[list[JobId]] = [[] for _ in range(8)]
    barrier = threading.Barrier(8)

    def claim_all(mine: list[JobId]) -> None:
        with database.connect("tensile_worker") as connection:
            worker = register(connection)
            barrier.wait()
            waited_for = None
            while (job := jobs.claim_job(connection, worker, defers=True, waited_for=waited_for)) is not None:
                if isinstance(job, ClaimedJob):
                    mine.append(job.job)
                    jobs.start_running(connection, job.job, job.claim)
                waited_for = job.job if isinstance(job, DeferredJob) else None

    threads = [threading.Thread(target=claim_all, args=(mine,)) for mine in claimed]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(job for mine in claimed for job in mine) == expected


def give_budget(connection: psycopg.Connection, worker: WorkerId, budget_bytes: int) -> None:
    connection.execute(
        "insert into tensile.devices (worker_id, kind, capacity_bytes, budget_bytes) values (%s, 'cpu', %s, %s)",
        (worker, budget_bytes, budget_bytes),
    )


def test_job_that_is_too_large_for_a_device_is_left_to_a_larger_one(connection: psycopg.Connection) -> None:
    small, large = register(connection), register(connection)
    give_budget(connection, small, 1000)
    give_budget(connection, large, 2000)
    job = enqueue(connection)
    claimed = claim(connection, small)
    error = MemoryLimitError(f"job {job} needs at least 1.5 kB of device memory")
    assert jobs.leave_to_larger(connection, job, claimed.claim, error, 1500) is JobState.QUEUED
    assert connection.execute(
        "select waits_for, error_message, faults, not_before from tensile.jobs where job_id = %s", (job,)
    ).fetchone() == (f"a larger device: job {job} needs at least 1.5 kB of device memory", None, 0, None)
    assert connection.execute(
        "select detail ->> 'reason' from tensile.job_events where job_id = %s and kind = 'requeued'", (job,)
    ).fetchone() == (f"job {job} needs at least 1.5 kB of device memory",)

    later = enqueue(connection)
    assert claim(connection, small).job == later, "other jobs are claimed past it"
    assert jobs.claim_job(connection, small) is None
    start(connection, large, 100.0)  # it claims the large job
    assert connection.execute("select worker_id from tensile.jobs where job_id = %s", (job,)).fetchone() == (large,)


def test_job_that_no_device_can_hold_fails_with_its_reason(connection: psycopg.Connection) -> None:
    small, large = register(connection), register(connection)
    give_budget(connection, small, 1000)
    give_budget(connection, large, 2000)
    error = MemoryLimitError("it needs too much", hint="Use less.")
    enqueue(connection)
    claimed = claim(connection, small)
    assert jobs.leave_to_larger(connection, claimed.job, claimed.claim, error, 2001) is JobState.FAILED
    assert connection.execute(
        "select error_sqlstate, error_message, error_hint, waits_for, needs_bytes from tensile.jobs"
        " where job_id = %s",
        (claimed.job,),
    ).fetchone() == ("53200", "it needs too much", "Use less.", None, 2001)


def test_job_waits_for_a_larger_device_that_restarts_and_not_for_one_that_is_gone(
    connection: psycopg.Connection,
) -> None:
    small, large = register(connection), register(connection)
    give_budget(connection, small, 1000)
    give_budget(connection, large, 2000)
    job = enqueue(connection)
    claimed = claim(connection, small)
    jobs.leave_to_larger(connection, job, claimed.claim, MemoryLimitError("it needs too much"), 1500)
    jobs.leave(connection, large)
    assert jobs.claim_job(connection, small) is None
    connection.execute(
        "update tensile.workers set heartbeat_at = now() - interval '3 minutes' where worker_id = %s", (large,)
    )
    assert claim(connection, small).job == job, "it fails there, with the reason"


def test_cancelled_job_that_is_too_large_stays_cancelled(connection: psycopg.Connection) -> None:
    small, large = register(connection), register(connection)
    give_budget(connection, large, 2000)
    job = enqueue(connection)
    claimed = claim(connection, small)
    connection.execute("update tensile.jobs set cancel_requested = true where job_id = %s", (job,))
    error = MemoryLimitError("it needs too much")
    assert jobs.leave_to_larger(connection, job, claimed.claim, error, 1500) is JobState.CANCELLED


def test_large_job_is_not_left_to_a_device_with_less_work_that_cannot_hold_it(connection: psycopg.Connection) -> None:
    large, small = register(connection), register(connection)
    give_budget(connection, large, 2000)
    give_budget(connection, small, 1000)
    start(connection, large, 100.0)
    job = enqueue(connection)
    connection.execute("update tensile.jobs set needs_bytes = 1500 where job_id = %s", (job,))
    claimed = jobs.claim_job(connection, large, defers=True)
    assert isinstance(claimed, ClaimedJob)
    assert claimed.job == job


def test_heartbeat_of_a_busy_worker_tells_of_an_idle_device(connection: psycopg.Connection) -> None:
    busy, idle = register(connection), register(connection)
    give_budget(connection, idle, 2000)
    start(connection, busy, 100.0)
    enqueue(connection)
    waiting = claim(connection, busy)
    held = {row[0]: row[1] for row in connection.execute("select job_id, claim from tensile.jobs where claim > 0")}
    assert jobs.beat(connection, busy, held).idle_bytes == 2000
    assert jobs.beat(connection, busy, {waiting.job: waiting.claim}).idle_bytes is None, "it has no other job"
    connection.execute("update tensile.job_progress set eta = now()")
    connection.execute("update tensile.jobs set pause_requested = true where job_id = %s", (waiting.job,))
    assert jobs.beat(connection, busy, held).idle_bytes is None, "its work is done in a moment"
    connection.execute("update tensile.job_progress set eta = now() + interval '100 seconds'")
    assert jobs.beat(connection, busy, held).idle_bytes == 2000
    enqueue(connection)
    claim(connection, idle)
    assert jobs.beat(connection, busy, held).idle_bytes is None, "the other device has a job"
