"""A job that has lost one of its devices waits for another for a while, and then goes on with those that are left."""

from typing import Any

import psycopg
import pytest

from indb_tensile.catalog import jobs, ranks
from indb_tensile.catalog.jobs import ObservedWorker
from indb_tensile.catalog.ranks import FittedGang, RankState
from indb_tensile.job import ClaimedRank, JobId, WorkerId
from tests.catalog.enqueue import LEASE_S, claim, enqueue, register

pytestmark = [pytest.mark.postgres, pytest.mark.shares_database]


def train(connection: psycopg.Connection[Any], devices: int, **hyperparams: int) -> tuple[JobId, list[WorkerId]]:
    """Let new workers train a job together. Returns the job and the workers, of which the first leads."""
    workers = [register(connection) for _ in range(devices)]
    job = enqueue(connection, spec={"devices": devices, "hyperparams": hyperparams})
    for member in [claim(connection, worker) for worker in workers]:
        if not member.follows:
            jobs.start_running(connection, member.job, member.claim)
        ranks.enter_state(connection, member.job, member.claim, RankState.TRAINING)
    return job, workers


def lose(connection: psycopg.Connection[Any], *workers: WorkerId) -> None:
    """Let the other controllers notice that these are dead, and the pause before the next attempt be over."""
    dead = [ObservedWorker(worker=worker, beats=0, lease_s=LEASE_S) for worker in workers]
    jobs.rescue(connection, dead)
    connection.execute("update tensile.jobs set not_before = null where state = 'queued'")


def age(connection: psycopg.Connection[Any], job: JobId, interval: str) -> None:
    connection.execute(
        "update tensile.jobs set short_since = short_since - %s::interval where job_id = %s", (interval, job)
    )


def waits_for(connection: psycopg.Connection[Any], job: JobId) -> str:
    connection.execute("update tensile.jobs set waits_for = null where job_id = %s", (job,))
    row = connection.execute("select waits_for from tensile.stat_queue where job_id = %s", (job,)).fetchone()
    assert row is not None
    return str(row[0])


def test_the_fewest_devices_are_used_on_which_no_step_takes_longer(connection: psycopg.Connection) -> None:
    chosen = connection.execute(
        """select parts, places, tensile.useful_devices(parts, places)
             from generate_series(1::bigint, 70) as parts, generate_series(1::bigint, parts) as places"""
    ).fetchall()

    def longest(parts: int, devices: int) -> int:
        return max((parts * (rank + 1) // devices) - (parts * rank // devices) for rank in range(devices))

    for parts, places, devices in chosen:
        equal = [fewer for fewer in range(1, places + 1) if longest(parts, fewer) == longest(parts, places)]
        assert devices == equal[0], (parts, places)


def test_a_job_goes_on_with_fewer_devices_after_a_while(connection: psycopg.Connection) -> None:
    job, workers = train(connection, 3)
    lose(connection, workers[0])
    assert ranks.fit_gangs(connection) == ()
    assert "at most 2 now; it goes on with fewer in 00:0" in waits_for(connection, job)
    age(connection, job, "110 seconds")
    assert ranks.fit_gangs(connection) == ()
    age(connection, job, "20 seconds")

    assert ranks.fit_gangs(connection) == (FittedGang(job=job, devices=2, asked=3),)

    assert ranks.fit_gangs(connection) == ()
    claimed = [claim(connection, worker) for worker in workers[1:]]
    attempt = claimed[0].claim
    gangs = [ClaimedRank(rank=rank, ranks=2, attempt_claim=attempt) for rank in range(2)]
    assert [(member.job, member.gang, member.spec.devices) for member in claimed] == [
        (job, gang, 3) for gang in gangs
    ]
    shown = "select distinct devices, asked_devices from tensile.stat_ranks where job_id = %s"
    assert connection.execute(shown, (job,)).fetchall() == [(2, 3)]
    events = "select detail from tensile.job_events where job_id = %s and kind = 'devices'"
    reason = "controllers serve 2 devices of one kind"
    assert connection.execute(events, (job,)).fetchall() == [({"from": 3, "to": 2, "asked": 3, "reason": reason},)]


def test_a_device_that_comes_back_in_time_takes_its_place(connection: psycopg.Connection) -> None:
    job, workers = train(connection, 2)
    lose(connection, workers[1])
    ranks.fit_gangs(connection)
    age(connection, job, "1 hour")
    workers.append(register(connection))

    assert ranks.fit_gangs(connection) == ()

    assert [claim(connection, worker).gang is None for worker in (workers[0], workers[2])] == [False, False]
    lose(connection, workers[0])
    assert ranks.fit_gangs(connection) == (), "the next loss is waited for anew"


def test_the_last_device_trains_the_job_alone(connection: psycopg.Connection) -> None:
    job, workers = train(connection, 2)
    lose(connection, workers[0])
    ranks.fit_gangs(connection)
    age(connection, job, "1 hour")
    assert ranks.fit_gangs(connection) == (FittedGang(job=job, devices=1, asked=2),)

    claimed = claim(connection, workers[1])

    assert (claimed.job, claimed.gang, claimed.spec.devices) == (job, None, 2)
    assert connection.execute("select count(*) from tensile.job_ranks where job_id = %s", (job,)).fetchone() == (0,)


def test_devices_that_would_only_wait_are_left_to_others_until_there_are_all(connection: psycopg.Connection) -> None:
    job, workers = train(connection, 4, batch_size=64, micro_batch_size=16)
    lose(connection, workers[3])
    ranks.fit_gangs(connection)
    age(connection, job, "1 hour")
    assert ranks.fit_gangs(connection) == (FittedGang(job=job, devices=2, asked=4),), "3 would take as long as 2"
    register(connection)
    assert ranks.fit_gangs(connection) == (FittedGang(job=job, devices=4, asked=4),)


def test_a_job_waits_as_the_setting_says_and_one_that_never_began_for_ever(connection: psycopg.Connection) -> None:
    job, workers = train(connection, 2)
    new = enqueue(connection, spec={"devices": 3})
    connection.execute("select tensile_set_setting('fewer_devices_after', 'null')")
    lose(connection, workers[0])
    ranks.fit_gangs(connection)
    age(connection, job, "1 year")
    assert ranks.fit_gangs(connection) == ()
    assert waits_for(connection, job) == "2 devices of one kind: controllers serve at most 1 now"
    connection.execute("""select tensile_set_setting('fewer_devices_after', '"1 day"')""")
    assert ranks.fit_gangs(connection) == (FittedGang(job=job, devices=1, asked=2),)
    short = "select devices, short_since from tensile.jobs where job_id = %s"
    assert connection.execute(short, (new,)).fetchone() == (3, None)


def test_a_job_whose_devices_are_all_gone_waits(connection: psycopg.Connection) -> None:
    job, workers = train(connection, 2)
    lose(connection, *workers)
    ranks.fit_gangs(connection)
    age(connection, job, "1 hour")
    assert ranks.fit_gangs(connection) == ()
    assert jobs.claim_job(connection, register(connection)) is None
