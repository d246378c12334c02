"""Check gangs: which workers get the ranks of a job, when a gang is given back, and what a lost rank changes."""

from collections.abc import Iterator, Mapping
from typing import Any

import psycopg
import pytest

from indb_tensile.catalog import jobs, ranks
from indb_tensile.catalog.jobs import ObservedWorker
from indb_tensile.catalog.ranks import RankState
from indb_tensile.errors import LostClaimError
from indb_tensile.job import ClaimedJob, ClaimedRank, JobId, Phase, WorkerId
from tests.catalog.enqueue import LEASE_S, claim, enqueue, register, state
from tests.conftest import Database

pytestmark = [pytest.mark.postgres, pytest.mark.shares_database]

PATIENCE_S = 60.0


@pytest.fixture
def connection(database: Database) -> Iterator[psycopg.Connection]:
    """A superuser's session whose changes are undone after the test."""
    with database.connect() as connection, connection.transaction(force_rollback=True):
        connection.execute("select tensile_set_quota('postgres', jobs_running => 1000)")
        yield connection


def enqueue_gang(connection: psycopg.Connection[Any], devices: int) -> JobId:
    """Insert a queued job for several devices."""
    job = enqueue(connection)
    connection.execute("update tensile.jobs set devices = %s where job_id = %s", (devices, job))
    return job


def rows(connection: psycopg.Connection[Any], job: JobId) -> list[tuple[Any, ...]]:
    return connection.execute(
        "select rank, worker_id, state from tensile.job_ranks where job_id = %s order by rank", (job,)
    ).fetchall()


def form(connection: psycopg.Connection[Any], devices: int) -> tuple[JobId, list[WorkerId], list[ClaimedJob]]:
    """Enqueue a gang, and let new workers claim all its ranks."""
    workers = [register(connection) for _ in range(devices)]
    job = enqueue_gang(connection, devices)
    return job, workers, [claim(connection, worker) for worker in workers]


def enter(connection: psycopg.Connection[Any], claimed: list[ClaimedJob], *entered: RankState) -> None:
    for member, rank_state in zip(claimed, entered, strict=True):
        ranks.enter_state(connection, member.job, member.claim, rank_state)


def keep_jobs_on_devices(connection: psycopg.Connection, worker: int | None = None) -> None:
    """Let the jobs of this worker, or of all, not leave the device for a rank that waits for memory."""
    connection.execute(
        "update tensile.workers set makes_way = false where worker_id = coalesce(%s, worker_id)", (worker,)
    )


def pass_time(connection: psycopg.Connection[Any], seconds: float) -> None:
    """Let time pass for the states of ranks alone."""
    connection.execute("update tensile.job_ranks set since = since - make_interval(secs => %s)", (seconds,))


def waits_for(connection: psycopg.Connection[Any], job: JobId) -> Any:
    row = connection.execute("select waits_for from tensile.jobs where job_id = %s", (job,)).fetchone()
    return row and row[0]


def test_claim_offers_ranks_and_the_next_claims_of_other_workers_accept_them(connection: psycopg.Connection) -> None:
    job, workers, claimed = form(connection, 3)
    attempt = claimed[0].claim
    assert [(member.job, member.gang) for member in claimed] == [
        (job, ClaimedRank(rank=rank, ranks=3, attempt_claim=attempt)) for rank in range(3)
    ]
    assert len({member.claim for member in claimed}) == 3
    assert rows(connection, job) == [(rank, worker, "preparing") for rank, worker in enumerate(workers)]
    assert [jobs.claim_job(connection, worker) for worker in workers] == [None] * 3
    for worker, member in zip(workers, claimed, strict=True):
        reply = jobs.beat(connection, worker, {member.job: member.claim})
        assert (reply.lost, reply.strays) == ((), ())


def test_claim_accepts_one_rank_also_if_statistics_say_that_few_are_offered(connection: psycopg.Connection) -> None:
    """The database may then search for the offered rank once for each row that it could change."""
    first, _, claimed = form(connection, 3)
    enter(connection, claimed, *[RankState.TRAINING] * 3)
    connection.execute("analyze tensile.job_ranks")
    job, workers, _ = form(connection, 4)
    assert rows(connection, job) == [(rank, worker, "preparing") for rank, worker in enumerate(workers)]
    assert len(rows(connection, first)) == 3


def test_worker_accepts_one_rank_of_a_job_and_none_of_another_kind_of_device(connection: psycopg.Connection) -> None:
    leader, _ = register(connection), register(connection)
    other = jobs.register_worker(connection, host="host", pid=1, device_kind="cpu:test", lease_s=LEASE_S)
    job = enqueue_gang(connection, 2)
    assert jobs.claim_job(connection, other) is None, "it is the only device of its kind"
    assert claim(connection, leader).job == job
    assert jobs.claim_job(connection, leader) is None
    assert jobs.claim_job(connection, other) is None
    assert rows(connection, job) == [(0, leader, "preparing"), (1, None, "offered")]


def test_job_for_more_devices_than_there_are_waits_and_says_so(connection: psycopg.Connection) -> None:
    worker = register(connection)
    gang, single = enqueue_gang(connection, 2), enqueue(connection)
    waits = "select waits_for from tensile.stat_queue where job_id = %s"
    assert connection.execute(waits, (gang,)).fetchone() == (
        "2 devices of one kind: controllers serve at most 1 now",
    )
    assert claim(connection, worker).job == single, "it does not hold up other jobs of its owner"


def test_second_gang_waits_until_all_ranks_of_the_first_train(connection: psycopg.Connection) -> None:
    _, workers, claimed = form(connection, 2)
    second = enqueue_gang(connection, 2)
    waits = "select waits_for from tensile.stat_queue where job_id = %s"
    text = "its turn: another job for several devices waits for all of them, and one such job starts at a time"
    assert connection.execute(waits, (second,)).fetchone() == (text,)
    enter(connection, claimed, RankState.TRAINING, RankState.ADMITTED)
    assert jobs.claim_job(connection, workers[0]) is None
    enter(connection, claimed, RankState.TRAINING, RankState.TRAINING)
    assert claim(connection, workers[1]).job == second


def test_view_tells_whether_the_ranks_divide_the_state_once_each_of_them_knows(
    connection: psycopg.Connection,
) -> None:
    job, _, claimed = form(connection, 2)

    def shown() -> list[tuple[Any, ...]]:
        query = "select state, divides_state from tensile.stat_ranks where job_id = %s order by rank"
        return connection.execute(query, (job,)).fetchall()

    assert shown() == [("preparing", None)] * 2
    for divides_state in (True, False):
        ranks.enter_state(connection, job, claimed[1].claim, RankState.PREPARED, divides_state=divides_state)
        assert shown() == [("preparing", None), ("prepared", divides_state)]
    ranks.enter_state(connection, job, claimed[1].claim, RankState.ADMITTED)
    assert shown() == [("preparing", None), ("admitted", False)]


def test_ranks_are_accepted_although_other_jobs_of_the_owner_wait_but_not_while_enough_are_prepared(
    connection: psycopg.Connection,
) -> None:
    """Else the gang would go back after the lease, although the device has a place, and never start."""
    leader, other = register(connection), register(connection)
    for _ in range(2):
        enqueue(connection)
    held = [claim(connection, other) for _ in range(2)]
    for member in held:
        jobs.set_phase(connection, member.job, member.claim, Phase.WAITING)
    passed_over = frozenset({held[0].owner_oid})
    gang = enqueue_gang(connection, 2)
    assert claim(connection, leader).job == gang
    connection.execute("update tensile.jobs set phase = null where state = 'starting'")
    assert jobs.claim_job(connection, other, passed_over) is None, "it prepares two jobs of the owner"
    jobs.set_phase(connection, held[0].job, held[0].claim, Phase.WAITING)
    accepted = jobs.claim_job(connection, other, passed_over)
    assert isinstance(accepted, ClaimedJob)
    assert accepted.job == gang


def test_gang_that_takes_long_to_form_delays_other_gangs_for_two_minutes(connection: psycopg.Connection) -> None:
    first, workers, claimed = form(connection, 2)
    second = enqueue_gang(connection, 2)
    enter(connection, claimed, RankState.PREPARED, RankState.PREPARING)
    assert jobs.claim_job(connection, workers[0]) is None
    connection.execute(
        "update tensile.jobs set progress_at = progress_at - interval '2 minutes' where job_id = %s", (first,)
    )
    assert [claim(connection, worker).job for worker in workers] == [second, second]


def test_gang_that_is_not_accepted_within_the_lease_goes_back_with_its_reason(connection: psycopg.Connection) -> None:
    leader, _ = register(connection), register(connection)
    job = enqueue_gang(connection, 2)
    claimed = claim(connection, leader)
    assert ranks.take_back_gangs(connection, PATIENCE_S) == ()
    connection.execute("update tensile.job_ranks set since = since - make_interval(secs => %s)", (LEASE_S + 1,))
    assert ranks.take_back_gangs(connection, PATIENCE_S) == (job,)
    assert rows(connection, job) == []
    row = connection.execute(
        "select state::text, waits_for, not_before > now(), worker_id from tensile.jobs where job_id = %s", (job,)
    ).fetchone()
    assert row == ("queued", "all ranks to start at once, since rank 1 had found no device", True, None)
    assert jobs.beat(connection, leader, {job: claimed.claim}).lost == (job,)


def test_gang_goes_back_if_some_ranks_hold_memory_for_long_while_others_wait(connection: psycopg.Connection) -> None:
    job, workers, claimed = form(connection, 2)
    keep_jobs_on_devices(connection)
    enter(connection, claimed, RankState.PREPARED, RankState.PREPARED)
    pass_time(connection, 2 * PATIENCE_S)
    assert ranks.take_back_gangs(connection, PATIENCE_S) == (), "nobody holds memory"
    enter(connection, claimed, RankState.ADMITTED, RankState.PREPARED)
    assert ranks.take_back_gangs(connection, PATIENCE_S) == ()
    pass_time(connection, PATIENCE_S + 1)
    assert ranks.take_back_gangs(connection, PATIENCE_S) == (job,)
    assert waits_for(connection, job) == (
        "all ranks to start at once, since rank 1 had not got memory while others held theirs"
    )
    for worker, member in zip(workers, claimed, strict=True):
        assert jobs.beat(connection, worker, {member.job: member.claim}).lost == (job,)
        with pytest.raises(LostClaimError):
            ranks.enter_state(connection, member.job, member.claim, RankState.TRAINING)


def test_rank_that_has_memory_last_leaves_the_first_one_no_more_time(connection: psycopg.Connection) -> None:
    job, _, claimed = form(connection, 3)
    keep_jobs_on_devices(connection)
    enter(connection, claimed, RankState.ADMITTED, RankState.PREPARED, RankState.PREPARED)
    pass_time(connection, PATIENCE_S / 2)
    enter(connection, claimed, RankState.ADMITTED, RankState.ADMITTED, RankState.PREPARED)
    pass_time(connection, PATIENCE_S / 2 + 1)
    assert ranks.take_back_gangs(connection, PATIENCE_S) == (job,)


def test_ranks_wait_four_times_as_long_where_running_jobs_make_way_for_them(connection: psycopg.Connection) -> None:
    job, workers, claimed = form(connection, 2)
    enter(connection, claimed, RankState.ADMITTED, RankState.PREPARED)
    pass_time(connection, 3 * PATIENCE_S)
    assert ranks.take_back_gangs(connection, PATIENCE_S) == ()
    keep_jobs_on_devices(connection, workers[1])
    assert ranks.take_back_gangs(connection, PATIENCE_S) == (job,), "one device makes no way"


def test_gang_without_any_memory_goes_back_after_four_times_as_long(connection: psycopg.Connection) -> None:
    job, _, claimed = form(connection, 2)
    enter(connection, claimed, RankState.PREPARED, RankState.PREPARING)
    pass_time(connection, 5 * PATIENCE_S)
    assert ranks.take_back_gangs(connection, PATIENCE_S) == (), "it still reads its table"
    enter(connection, claimed, RankState.PREPARED, RankState.PREPARED)
    pass_time(connection, 3 * PATIENCE_S)
    assert ranks.take_back_gangs(connection, PATIENCE_S) == ()
    pass_time(connection, PATIENCE_S + 1)
    assert ranks.take_back_gangs(connection, PATIENCE_S) == (job,)
    assert waits_for(connection, job) == ("all ranks to start at once, since rank 0 and rank 1 had not got memory")
    assert connection.execute("select tensile.has_lacked_memory(%s)", (job,)).fetchone() == (True,)


def test_gang_of_which_all_ranks_have_memory_does_not_go_back(connection: psycopg.Connection) -> None:
    _, _, claimed = form(connection, 2)
    for states in ((RankState.ADMITTED, RankState.ADMITTED), (RankState.TRAINING, RankState.ADMITTED)):
        enter(connection, claimed, *states)
        pass_time(connection, 100 * PATIENCE_S)
        assert ranks.take_back_gangs(connection, PATIENCE_S) == ()


def test_death_of_a_worker_ends_the_attempt_of_all_its_ranks_once(connection: psycopg.Connection) -> None:
    job, workers, claimed = form(connection, 3)
    enter(connection, claimed, RankState.TRAINING, RankState.TRAINING, RankState.TRAINING)
    dead = [ObservedWorker(worker=worker, beats=0, lease_s=LEASE_S) for worker in workers[1:]]
    assert jobs.rescue(connection, dead) == (job,)
    assert (state(connection, job), rows(connection, job)) == ("queued", [])
    interrupted = "select count(*) from tensile.job_events where job_id = %s and kind = 'interrupted'"
    assert connection.execute(interrupted, (job,)).fetchone() == (1,)
    assert jobs.beat(connection, workers[0], {job: claimed[0].claim}).lost == (job,)


def test_death_of_a_worker_whose_rank_has_finished_ends_nothing(connection: psycopg.Connection) -> None:
    job, workers, claimed = form(connection, 2)
    enter(connection, claimed, RankState.TRAINING, RankState.FINISHED)
    assert jobs.beat(connection, workers[1], {}).strays == ()
    jobs.leave(connection, workers[1])
    assert jobs.rescue(connection) == ()
    assert state(connection, job) == "starting"


def test_rank_that_its_controller_does_not_know_is_a_stray(connection: psycopg.Connection) -> None:
    job, workers, claimed = form(connection, 2)
    assert jobs.beat(connection, workers[1], {}).strays == ((job, claimed[1].claim),)
    assert ranks.attempt_of(connection, job, claimed[1].claim) == claimed[0].claim


def test_values_are_shared_by_the_ranks_of_one_attempt_and_end_with_it(connection: psycopg.Connection) -> None:
    job, _, (lead, follower) = form(connection, 2)
    secret = ranks.values(connection, job, follower.claim, ["secret"])["secret"]
    assert len(secret) == 32
    ranks.put_value(connection, job, lead.claim, "address", b"\x00\xff")
    assert ranks.values(connection, job, follower.claim, ["address", "other"]) == {"address": b"\x00\xff"}
    assert [ranks.add_value(connection, job, member.claim, "count", 2) for member in (lead, follower)] == [2, 4]
    assert [ranks.remove_value(connection, job, lead.claim, "count") for _ in range(2)] == [True, False]
    jobs.requeue(connection, job, lead.claim, "its controller stops")
    with pytest.raises(LostClaimError):
        ranks.values(connection, job, follower.claim, ["secret"])
    assert connection.execute("select count(*) from tensile.rank_values").fetchone() == (0,)


def test_steps_are_published_to_the_other_ranks_of_one_attempt_and_end_with_it(
    connection: psycopg.Connection,
) -> None:
    job, workers, claimed = form(connection, 2)
    lead, follower = (member.claim for member in claimed)
    held = [({job: lead}, workers[0]), ({job: follower}, workers[1])]

    def seen() -> list[Mapping[JobId, int]]:
        return [jobs.beat(connection, worker, claims).published_steps for claims, worker in held]

    assert seen() == [{job: 0}] * 2
    ranks.publish_step(connection, job, follower, step_ns=5_000_000, value=b"first")
    ranks.publish_step(connection, job, follower, step_ns=3_000_000, value=b"second")
    assert seen() == [{job: 2}] * 2
    assert ranks.published_steps(connection, job, lead) == ((1, b"second"),)
    shown = "select rank, foretold_ms::float, slowest from tensile.stat_ranks where job_id = %s order by rank"
    assert connection.execute(shown, (job,)).fetchall() == [(0, None, None), (1, 3.0, None)]
    ranks.publish_step(connection, job, lead, step_ns=4_000_000, value=b"third")
    assert connection.execute(shown, (job,)).fetchall() == [(0, 4.0, True), (1, 3.0, False)]
    jobs.requeue(connection, job, lead, "its controller stops")
    assert connection.execute("select count(*) from tensile.rank_values").fetchone() == (0,)
    assert seen() == [{}] * 2
    with pytest.raises(LostClaimError):
        ranks.publish_step(connection, job, follower, step_ns=1, value=b"late")
    with pytest.raises(LostClaimError):
        ranks.published_steps(connection, job, follower)
    assert connection.execute("select count(*) from tensile.rank_values").fetchone() == (0,)


def test_users_see_how_long_ranks_take_and_can_write_no_step(database: Database) -> None:
    with (
        database.connect("alice") as alice,
        database.connect("tensile_worker") as worker,
        database.connect() as admin,
    ):
        workers = [register(worker) for _ in range(2)]
        job = enqueue(alice, "read", spec={"devices": 2})
        claims = [claim(worker, own).claim for own in workers]
        ranks.publish_step(worker, job, claims[1], step_ns=2_500_000, value=b"step")
        shown = "select foretold_ms::float from tensile.stat_ranks where job_id = %s order by rank"
        assert alice.execute(shown, (job,)).fetchall() == [(None,), (2.5,)]
        for forbidden in (
            "update tensile.job_ranks set step_ns = 1",
            "update tensile.job_ranks set steps_published = 0",
            "select value from tensile.rank_values",
            "update tensile.rank_values set value = ''",
            "insert into tensile.rank_values values (1, 1, 'step of rank 1', '')",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege), alice.transaction():
                alice.execute(forbidden)
        admin.execute("delete from tensile.jobs")
        admin.execute("update tensile.workers set stopped_at = now()")


def test_larger_devices_are_named_that_a_job_waits_for(connection: psycopg.Connection) -> None:
    for _ in range(2):
        register(connection)
    job = enqueue_gang(connection, 2)
    connection.execute("update tensile.jobs set needs_bytes = 1073741824 where job_id = %s", (job,))
    waits = connection.execute("select waits_for from tensile.stat_queue where job_id = %s", (job,)).fetchone()
    assert waits == ("2 devices of one kind with a budget of at least 1024 MB: controllers serve none now",)


def test_job_of_several_devices_that_takes_none_fails_when_it_is_claimed(connection: psycopg.Connection) -> None:
    worker, _ = register(connection), register(connection)
    enqueue(connection, spec={"architecture": {"type": "boosting"}, "devices": 2})
    claimed = jobs.claim_job(connection, worker)
    assert isinstance(claimed, jobs.UnreadableJob)
    assert claimed.error.message.endswith("devices is 2, and the job takes no device")


def test_owner_who_locks_a_job_delays_no_worker_and_no_other_gang(database: Database) -> None:
    with (
        database.connect("alice") as alice,
        database.connect("tensile_worker") as worker,
        database.connect() as admin,
    ):
        workers = [register(worker) for _ in range(2)]
        first = enqueue(alice, "locked", spec={"devices": 2})
        claimed = claim(worker, workers[0])
        with alice.transaction():
            alice.execute("select from tensile.jobs where job_id = %s for update", (first,))
            accepted = claim(worker, workers[1])
            ranks.put_value(worker, first, accepted.claim, "address", b"1")
            for table in ("job_ranks", "rank_values"):
                with pytest.raises(psycopg.errors.InsufficientPrivilege), alice.transaction():
                    alice.execute(f"lock table tensile.{table} in access share mode")
            admin.execute("update tensile.job_ranks set state = 'prepared', since = since - interval '1 day'")
            ranks.enter_state(worker, first, claimed.claim, RankState.ADMITTED)
            assert ranks.take_back_gangs(worker, -1.0) == ()
        assert ranks.take_back_gangs(worker, -1.0) == (first,)
        admin.execute("delete from tensile.jobs")
        admin.execute("update tensile.workers set stopped_at = now()")
