"""Check which of several workers a queued job goes to: the one whose present jobs are done first."""

import threading
from collections.abc import Iterator

import psycopg
import pytest

from indb_tensile.catalog import jobs
from indb_tensile.catalog.jobs import DeferredJob
from indb_tensile.job import ClaimedJob, JobId, WorkerId
from tests.catalog.enqueue import claim, enqueue, register
from tests.conftest import Database
from tests.nightly import nightly_unless

pytestmark = [pytest.mark.postgres, pytest.mark.shares_database]


@pytest.fixture
def connection(database: Database) -> Iterator[psycopg.Connection]:
    """A superuser's session whose changes are undone after the test."""
    with database.connect() as connection, connection.transaction(force_rollback=True):
        connection.execute("select tensile_set_quota('postgres', jobs_running => 1000)")
        yield connection


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
