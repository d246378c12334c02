"""Check turns of gangs: jobs for several devices that waited for long hold other jobs back, but not for long."""

from collections.abc import Sequence
from typing import Any

import psycopg
import pytest

from indb_tensile.catalog import jobs, ranks
from indb_tensile.catalog.ranks import RankState
from indb_tensile.job import ClaimedJob, JobId, WorkerId
from tests.catalog.enqueue import claim, enqueue, register

pytestmark = [pytest.mark.postgres, pytest.mark.shares_database]


def crowded(connection: psycopg.Connection[Any], workers: int = 2) -> tuple[list[WorkerId], list[ClaimedJob]]:
    """Return workers of one place each, which single jobs have taken."""
    registered = [
        jobs.register_worker(connection, host="host", pid=1, device_kind="emulated:test", lease_s=30.0, slots=1)
        for _ in range(workers)
    ]
    for _ in registered:
        enqueue(connection)
    return registered, [claim(connection, worker) for worker in registered]


def long_waiting(connection: psycopg.Connection[Any], devices: int = 2, **columns: Any) -> JobId:
    """Insert a job for several devices that has waited for two minutes."""
    job = enqueue(connection, **columns)
    connection.execute(
        "update tensile.jobs set devices = %s, enqueued_at = now() - interval '2 minutes' where job_id = %s",
        (devices, job),
    )
    return job


def turns(connection: psycopg.Connection[Any]) -> list[tuple[Any, ...]]:
    """Return job, number and length in seconds of each turn that there was last."""
    return connection.execute(
        "select job_id, turns, extract(epoch from ends_at - begins_at)::integer, ends_at > now()"
        " from tensile.gang_turns order by job_id"
    ).fetchall()


def pass_time(connection: psycopg.Connection[Any], seconds: float) -> None:
    """Let time pass for turns and pauses, but for no lease."""
    shift = {"by": seconds}
    connection.execute(
        "update tensile.gang_turns set begins_at = begins_at - make_interval(secs => %(by)s),"
        " ends_at = ends_at - make_interval(secs => %(by)s)",
        shift,
    )
    connection.execute("update tensile.jobs set not_before = not_before - make_interval(secs => %(by)s)", shift)


def finish(connection: psycopg.Connection[Any], claimed: ClaimedJob) -> None:
    jobs.cancelled(connection, claimed.job, claimed.claim)


def test_gang_that_waits_for_long_gets_places_that_single_jobs_would_take(connection: psycopg.Connection) -> None:
    workers, running = crowded(connection)
    gang = long_waiting(connection)
    singles = [enqueue(connection) for _ in range(4)]
    finish(connection, running[0])
    assert jobs.claim_job(connection, workers[0]) is None, "it holds its place for the gang"
    assert turns(connection) == [(gang, 1, 120, True)]
    waits = "select waits_for from tensile.stat_queue where job_id = %s"
    text = "a place on 2 devices at once, which claim no other job until then"
    assert connection.execute(waits, (gang,)).fetchone() == (text,)
    finish(connection, running[1])
    claimed = [claim(connection, worker) for worker in workers]
    assert [member.job for member in claimed] == [gang, gang]
    for member in claimed:
        ranks.enter_state(connection, member.job, member.claim, RankState.TRAINING)
    jobs.start_running(connection, gang, claimed[0].claim)
    assert jobs.claim_job(connection, register(connection)) is not None
    assert turns(connection) == [], "a gang that trains holds nothing back"
    assert {job for (job,) in connection.execute("select job_id from tensile.jobs where state = 'queued'")} < set(
        singles
    )


def test_gang_is_not_claimed_before_all_its_devices_have_a_place(connection: psycopg.Connection) -> None:
    workers, running = crowded(connection)
    gang = enqueue(connection, spec={"devices": 2})
    single = enqueue(connection)
    finish(connection, running[0])
    assert claim(connection, workers[0]).job == single, "no rank would find a device"
    assert connection.execute("select count(*) from tensile.job_ranks").fetchone() == (0,)
    assert connection.execute("select state::text from tensile.jobs where job_id = %s", (gang,)).fetchone() == (
        "queued",
    )


def test_turn_ends_and_jobs_are_claimed_for_as_long_as_it_lasted_and_the_next_one_is_longer(
    connection: psycopg.Connection,
) -> None:
    workers, running = crowded(connection)
    gang = long_waiting(connection)
    single = enqueue(connection)
    finish(connection, running[0])
    assert jobs.claim_job(connection, workers[0]) is None
    pass_time(connection, 121)
    claimed = claim(connection, workers[0])
    assert claimed.job == single
    assert turns(connection) == [(gang, 1, 120, False)]
    finish(connection, claimed)
    enqueue(connection)
    pass_time(connection, 120)
    assert jobs.claim_job(connection, workers[0]) is None
    assert turns(connection) == [(gang, 2, 240, True)]


def test_one_gang_has_a_turn_at_a_time_and_the_oldest_one_is_first(connection: psycopg.Connection) -> None:
    workers, _ = crowded(connection, workers=4)
    gangs = [long_waiting(connection) for _ in range(2)]
    for worker in workers:
        jobs.claim_job(connection, worker)
    assert turns(connection) == [(gangs[0], 1, 120, True)]
    connection.execute("update tensile.jobs set pause_requested = true where job_id = %s", (gangs[0],))
    jobs.claim_job(connection, workers[0])
    assert turns(connection) == [(gangs[0], 1, 0, False), (gangs[1], 1, 120, True)]


def test_no_turn_begins_for_a_gang_that_could_not_train_or_that_its_owner_puts_behind_others(
    connection: psycopg.Connection,
) -> None:
    workers, _ = crowded(connection)
    long_waiting(connection, devices=3)
    long_waiting(connection, not_before="2100-01-01")
    long_waiting(connection, priority=-1)
    single = enqueue(connection)
    assert claim(connection, workers[0]).job == single
    assert turns(connection) == []


def test_turn_goes_on_with_another_worker_when_one_is_gone(connection: psycopg.Connection) -> None:
    workers, _ = crowded(connection)
    gang = long_waiting(connection)
    assert jobs.claim_job(connection, workers[0]) is None
    jobs.leave(connection, workers[1])
    single = enqueue(connection)
    third, fourth = register(connection), register(connection)
    assert [claim(connection, worker).job for worker in (third, fourth)] == [gang, gang]
    assert connection.execute("select workers from tensile.gang_turns where job_id = %s", (gang,)).fetchone() == (
        [third, fourth],
    )
    assert claim(connection, workers[0]).job == single


def test_job_is_not_left_to_a_device_that_holds_its_place_for_a_gang(connection: psycopg.Connection) -> None:
    workers, running = crowded(connection)
    better = "select tensile.better_worker(%s)"
    third = register(connection)
    enqueue(connection)
    claim(connection, third)
    finish(connection, running[0])
    assert connection.execute(better, (third,)).fetchone() == (workers[0],)
    long_waiting(connection, devices=3)
    assert jobs.claim_job(connection, workers[0]) is None
    assert connection.execute("select tensile.holds_back(%s) is not null", (workers[0],)).fetchone() == (True,)
    assert connection.execute(better, (third,)).fetchone() == (None,)


def test_ranks_hold_memory_for_long_in_the_turn_of_their_job_alone(connection: psycopg.Connection) -> None:
    workers = [register(connection) for _ in range(2)]
    gang = long_waiting(connection)
    claimed = [claim(connection, worker) for worker in workers]
    ranks.enter_state(connection, gang, claimed[0].claim, RankState.ADMITTED)
    ranks.enter_state(connection, gang, claimed[1].claim, RankState.PREPARED)
    connection.execute("update tensile.job_ranks set since = since - interval '90 seconds'")
    assert [turn[0] for turn in turns(connection)] == [gang]
    assert ranks.take_back_gangs(connection, 15.0) == ()
    pass_time(connection, 121)
    assert ranks.take_back_gangs(connection, 15.0) == (gang,)


def training(connection: psycopg.Connection[Any], claimed: ClaimedJob, left_s: float) -> None:
    """Let a claimed job run, and be foretold to end after so long."""
    jobs.start_running(connection, claimed.job, claimed.claim)
    progress = jobs.Progress(epoch=1, epochs=1, step=1, steps=1, eta_s=left_s)
    jobs.report_progress(connection, claimed.job, claimed.claim, progress=progress)


def keep_device(connection: psycopg.Connection[Any], workers: Sequence[WorkerId]) -> None:
    """Let the jobs of these workers stay on their devices, as with sharing = any_price."""
    connection.execute("update tensile.workers set makes_way = false where worker_id = any(%s)", (list(workers),))


def lack_memory(connection: psycopg.Connection[Any], job: JobId) -> None:
    """Record that the job was given back because a rank had no memory."""
    connection.execute(
        "insert into tensile.job_events (job_id, kind, detail) values (%s, 'requeued', '{\"lacks\": \"memory\"}')",
        (job,),
    )


@pytest.mark.parametrize(
    ("left_s", "makes_way", "turn"),
    [(60, False, 120), (150, False, 225), (200, False, 240), (250, False, None), (250, True, 120)],
)
def test_turn_is_as_long_as_its_devices_need_and_does_not_begin_while_they_need_longer_than_twice_the_wait(
    connection: psycopg.Connection, left_s: float, makes_way: bool, turn: int | None
) -> None:
    workers, running = crowded(connection)
    for member in running:
        training(connection, member, left_s)
    if not makes_way:
        keep_device(connection, workers)
    gang = long_waiting(connection)
    lack_memory(connection, gang)
    single = enqueue(connection)
    finish(connection, running[0])
    claimed = jobs.claim_job(connection, workers[0])
    assert turns(connection) == ([] if turn is None else [(gang, 1, turn, True)])
    if turn is None:
        assert isinstance(claimed, ClaimedJob)
        assert claimed.job == single, "the other device is not free for long, so this one holds nothing back"
    else:
        assert claimed is None


def test_turn_of_a_gang_that_has_not_lacked_memory_begins_while_its_devices_are_not_free_for_long(
    connection: psycopg.Connection,
) -> None:
    workers, running = crowded(connection)
    for member in running:
        training(connection, member, 9000)
    keep_device(connection, workers)
    gang = long_waiting(connection)
    finish(connection, running[0])
    assert jobs.claim_job(connection, workers[0]) is None
    assert turns(connection) == [(gang, 1, 120, True)]


def test_gang_whose_devices_are_free_soon_has_its_turn_before_an_older_one(connection: psycopg.Connection) -> None:
    workers, running = crowded(connection, workers=3)
    for member, left_s in zip(running, (10, 10, 9000), strict=True):
        training(connection, member, left_s)
    keep_device(connection, workers)
    lack_memory(connection, long_waiting(connection, devices=3))
    younger = long_waiting(connection, devices=2)
    jobs.claim_job(connection, workers[2])
    assert turns(connection) == [(younger, 1, 120, True)]
    workers_of_turn = "select workers from tensile.gang_turns"
    assert connection.execute(workers_of_turn).fetchone() == (workers[:2],)


def test_device_accepts_no_rank_of_another_job_in_a_turn(connection: psycopg.Connection) -> None:
    workers, running = crowded(connection)
    gang = long_waiting(connection)
    assert jobs.claim_job(connection, workers[0]) is None
    third = register(connection)
    other = enqueue(connection, spec={"devices": 2}, priority=1)
    finish(connection, running[0])
    assert jobs.claim_job(connection, third) is None, "one of two devices has its place for the other job"
    connection.execute("update tensile.gang_turns set ends_at = now()")
    assert claim(connection, third).job == other
    connection.execute("update tensile.gang_turns set ends_at = now() + interval '1 minute'")
    assert jobs.claim_job(connection, workers[0]) is None
    connection.execute("delete from tensile.gang_turns where job_id = %s", (gang,))
    connection.execute("update tensile.jobs set pause_requested = true where job_id = %s", (gang,))
    assert claim(connection, workers[0]).job == other
