"""Check whose job is claimed next: owners take turns by their use of the devices and their weight."""

from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from indb_tensile.catalog import jobs
from indb_tensile.catalog.usage import JobUsage, record_usage
from indb_tensile.job import ClaimedJob, JobId, WorkerId
from tests.catalog.enqueue import claim, enqueue, rows_read, specification
from tests.conftest import Database

from .conftest import Connection, Refused, refused, value

pytestmark = [pytest.mark.postgres, pytest.mark.clears_database]


def test_owner_without_an_active_job_comes_before_a_higher_priority_of_another_owner(database: Database) -> None:
    with (
        database.connect("alice") as alice,
        database.connect("bob") as bob,
        database.connect("tensile_worker") as connection,
    ):
        worker = _register(connection)
        for number in range(3):
            enqueue(alice, f"a{number}", priority=1000)
        bobs = enqueue(bob, "b", priority=-1000)
        assert [claim(connection, worker).job for _ in range(4)] == [1, bobs, 2, 3]


def test_owner_with_less_use_is_served_first(database: Database) -> None:
    with (
        database.connect("alice") as alice,
        database.connect("bob") as bob,
        database.connect("tensile_worker") as connection,
    ):
        worker = _register(connection)
        _use(connection, alice, worker, 100.0)
        _use(connection, bob, worker, 10.0)
        alices, bobs = enqueue(alice, "a"), enqueue(bob, "b")
        assert [claim(connection, worker).job for _ in range(2)] == [bobs, alices]


def test_use_is_divided_by_the_weight(database: Database) -> None:
    with (
        database.connect("admin") as admin,
        database.connect("alice") as alice,
        database.connect("bob") as bob,
        database.connect("tensile_worker") as connection,
    ):
        worker = _register(connection)
        admin.execute("select tensile_set_quota('alice', weight => 20)")
        _use(connection, alice, worker, 100.0)
        _use(connection, bob, worker, 10.0)
        alices, bobs = enqueue(alice, "a"), enqueue(bob, "b")
        assert [claim(connection, worker).job for _ in range(2)] == [alices, bobs]


def test_a_claimed_job_has_its_owners_weight(database: Database) -> None:
    with (
        database.connect("admin") as admin,
        database.connect("alice") as alice,
        database.connect("bob") as bob,
        database.connect("tensile_worker") as connection,
    ):
        worker = _register(connection)
        admin.execute("select tensile_set_quota('alice', weight => 20)")
        weights = {enqueue(alice, "a"): 20.0, enqueue(bob, "b"): 1.0}
        claimed = [claim(connection, worker) for _ in range(2)]
        assert {job.job: job.owner_weight for job in claimed} == weights


def test_what_another_job_adds_does_not_depend_on_a_worker_that_is_dead(database: Database) -> None:
    """The fewer slots the workers have, the more a job adds to its owner's use."""
    added = "select next_s from tensile.owner_standings(array[to_regrole('alice')])"
    with database.connect() as connection, database.connect("tensile_worker") as worker:
        _register(worker)
        before = value(connection, added)
        dead = _register(worker, slots=1)
        assert value(connection, added) > before
        connection.execute(
            "update tensile.workers set heartbeat_at = now() - 2 * make_interval(secs => lease_s)"
            " where worker_id = %s",
            [dead],
        )
        assert value(connection, added) == before


def test_places_are_shared_by_weight_before_any_use_is_recorded(database: Database) -> None:
    with (
        database.connect("admin") as admin,
        database.connect("alice") as alice,
        database.connect("bob") as bob,
        database.connect("tensile_worker") as connection,
    ):
        worker = _register(connection)
        admin.execute("select tensile_set_quota('alice', weight => 3)")
        owners = {enqueue(alice, f"a{number}"): "alice" for number in range(9)}
        owners |= {enqueue(bob, f"b{number}"): "bob" for number in range(9)}
        places = "select array_agg(job_id order by position) from tensile.stat_queue"
        with database.connect("monitor") as monitor:
            row = monitor.execute(places).fetchone()
        claimed = [claim(connection, worker).job for _ in range(8)]
        assert [owners[job] for job in claimed].count("alice") == 6
        assert row is not None
        assert row[0][:8] == claimed


def test_device_seconds_follow_the_weights_when_jobs_take_turns(database: Database) -> None:
    with (
        database.connect("admin") as admin,
        database.connect("alice") as alice,
        database.connect("bob") as bob,
        database.connect("tensile_worker") as connection,
    ):
        worker = _register(connection, slots=1)
        admin.execute("select tensile_set_quota('alice', weight => 3)")
        owners = {enqueue(alice, "a", priority=-7): "alice" for _ in range(40)}
        owners |= {enqueue(bob, "b", priority=7): "bob" for _ in range(40)}
        served = []
        for _ in range(40):
            claimed = claim(connection, worker)
            served.append(owners[claimed.job])
            record_usage(connection, [_usage(claimed.job, 5.0)])
            jobs.cancelled(connection, claimed.job, claimed.claim)
        assert served.count("alice") == 30
        assert "bob" in served[:2]


@pytest.mark.own_database
def test_use_counts_less_as_time_passes(database: Database) -> None:
    with (
        database.connect() as postgres,
        database.connect("alice") as alice,
        database.connect("bob") as bob,
        database.connect("tensile_worker") as connection,
    ):
        worker = _register(connection)
        _use(connection, alice, worker, 100.0)
        _use(connection, bob, worker, 30.0)
        age = "update tensile.owner_usage set updated_at = now() - interval '2 hours' where recent_s = 100"
        postgres.execute(age)
        alices, bobs = enqueue(alice, "a"), enqueue(bob, "b")
        assert [claim(connection, worker).job for _ in range(2)] == [alices, bobs]
        _use(connection, alice, worker, 1.0)
        row = postgres.execute("select max(recent_s) from tensile.owner_usage where recent_s <> 30").fetchone()
        assert row is not None
        assert row[0] == pytest.approx(26.0, rel=1e-3)
        postgres.execute("select tensile_set_setting('usage_half_life', '\"1 second\"')")
        postgres.execute("update tensile.owner_usage set updated_at = '2020-01-01'")
        record_usage(connection, [_usage(JobId(1), 2.0)])
        assert postgres.execute("select min(recent_s) from tensile.owner_usage").fetchone() == (2.0,)


def test_paused_jobs_are_passed_over_and_do_not_count_as_active(database: Database) -> None:
    with (
        database.connect("alice") as alice,
        database.connect("bob") as bob,
        database.connect("tensile_worker") as connection,
    ):
        worker = _register(connection)
        paused_in_queue, active = enqueue(alice, "a", priority=9), enqueue(alice, "a")
        alice.execute("select tensile_pause(%s)", (paused_in_queue,))
        assert claim(connection, worker).job == active
        assert _claim_of_two(alice, bob, connection, worker)[0] == "bob"
        alice.execute("select tensile_pause(%s)", (active,))
        assert _claim_of_two(alice, bob, connection, worker)[0] == "alice"


@pytest.mark.own_database
def test_priority_orders_the_jobs_of_one_owner(database: Database) -> None:
    with database.connect("alice") as alice, database.connect("tensile_worker") as connection:
        worker = _register(connection)
        for priority in (1, 5, 5, 9):
            enqueue(alice, "a", priority=priority)
        assert [claim(connection, worker).job for _ in range(4)] == [4, 2, 3, 1]


def test_owner_that_has_used_its_device_seconds_is_refused_and_its_queued_jobs_wait(database: Database) -> None:
    with (
        database.connect("admin") as admin,
        database.connect("alice") as alice,
        database.connect("bob") as bob,
        database.connect("tensile_worker") as connection,
    ):
        worker = _register(connection)
        admin.execute("select tensile_set_quota('alice', device_seconds => 100)")
        queued = enqueue(alice, "a")
        _use(connection, alice, worker, 100.25)
        with pytest.raises(psycopg.errors.ConfigurationLimitExceeded) as caught:
            enqueue(alice, "a")
        diagnostics = caught.value.diag
        assert diagnostics.message_primary == (
            'role "alice" has used 100.3 device-seconds today, and its quota is 100 a day'
        )
        assert "Days are those of UTC. The next day begins at 20" in str(diagnostics.message_detail)
        assert "tensile_set_quota('alice', device_seconds => ...)" in str(diagnostics.message_hint)
        bobs = enqueue(bob, "b")
        assert claim(connection, worker).job == bobs
        assert jobs.claim_job(connection, worker) is None
        row = alice.execute("select waits_for, position from tensile.stat_queue").fetchone()
        assert row is not None
        assert row[0].endswith("its owner has used 100.3 device-seconds today, and its quota is 100 a day")
        assert row[0].startswith("the next day, which begins at 20")
        with database.connect() as postgres:  # the next day
            postgres.execute("update tensile.owner_usage set day = day - 1 where owner_oid = 'alice'::regrole")
        enqueue(alice, "a")
        assert claim(connection, worker).job == queued


def test_refusal_of_a_training_reaches_the_user_whole(alice: Connection, admin: Connection) -> None:
    admin.execute("select tensile_set_quota('alice', device_seconds => 3600)")
    admin.execute(
        "insert into tensile.owner_usage (owner_oid, day, day_s)"
        " values ('alice'::regrole, tensile.usage_day(), 3612.5)"
    )
    error = refused(alice, "select tensile_train('flowers', 'iris', target => 'species')")
    tomorrow = value(admin, "select tensile.usage_day() + 1")
    assert error == Refused(
        "53400",
        'role "alice" has used 3612.5 device-seconds today, and its quota is 3600 a day',
        f"Days are those of UTC. The next day begins at {tomorrow} 00:00 UTC; jobs that are in the queue start then.",
        "Enqueue the job then. A member of tensile_admin can allow more: "
        "select tensile_set_quota('alice', device_seconds => ...);",
    )


def test_quota_of_every_role_bounds_the_device_seconds_of_a_role_without_its_own(database: Database) -> None:
    with (
        database.connect("admin") as admin,
        database.connect("alice") as alice,
        database.connect("tensile_worker") as connection,
    ):
        worker = _register(connection)
        _use(connection, alice, worker, 50.0)
        admin.execute("select tensile_set_quota('-', device_seconds => 50)")
        with pytest.raises(psycopg.errors.ConfigurationLimitExceeded):
            enqueue(alice, "a")
        admin.execute("select tensile_set_quota('alice', device_seconds => 51)")
        enqueue(alice, "a")


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("device_seconds => 0", "device_seconds is 0, not above 0"),
        ("weight => 0", "weight is 0, not a number from 0.001 to 1000"),
        ("weight => 'NaN'", "weight is NaN, not a number from 0.001 to 1000"),
    ],
)
def test_quota_without_a_meaning_is_refused(database: Database, argument: str, message: str) -> None:
    with database.connect("admin") as admin, pytest.raises(psycopg.errors.InvalidParameterValue) as caught:
        admin.execute(f"select tensile_set_quota('alice', {argument})".encode())
    assert caught.value.diag.message_primary == message
    assert caught.value.diag.message_hint


def test_quota_view_shows_device_seconds_and_weight(database: Database) -> None:
    with (
        database.connect("admin") as admin,
        database.connect("alice") as alice,
        database.connect("tensile_worker") as connection,
    ):
        worker = _register(connection)
        admin.execute("select tensile_set_quota('alice', device_seconds => 100, weight => 0.5)")
        _use(connection, alice, worker, 25.0)
        query = "select role, is_set, device_seconds_today, most_device_seconds, weight from tensile.stat_quotas"
        assert alice.execute(query).fetchall() == [("alice", True, 25.0, 100, 0.5)]
        admin.execute("select tensile_set_quota('alice')")
        assert alice.execute(query).fetchall() == [("alice", False, 25.0, None, 1.0)]


@pytest.mark.by_day("alice has")
@pytest.mark.parametrize("more_than_usual", [0, 6], ids=["places left", "alice has the most places"])
def test_job_of_a_second_owner_is_next_behind_a_flood_of_10000(database: Database, more_than_usual: int) -> None:
    with (
        database.connect("bob") as bob,
        database.connect("tensile_worker") as connection,
        database.connect() as postgres,
    ):
        worker = _register(connection)
        postgres.execute(
            "insert into tensile.jobs"
            " (model_name, owner_oid, owner_name, relation_oid, relation_schema, relation_name, spec, priority)"
            " select 'm', 'alice'::regrole, 'alice', 1, 'public', 't', %s, 1000 from generate_series(1, 10000)",
            (Jsonb(specification("m")),),
        )
        for _ in range(1 + more_than_usual):
            claim(connection, worker)
        own_job = enqueue(bob, "b")
        position = bob.execute("select position from tensile.stat_queue").fetchone()
        assert position == (1,)
    with database.connect() as postgres, postgres.transaction():
        before = rows_read(postgres)
        claimed = jobs.claim_job(postgres, worker)
        assert isinstance(claimed, ClaimedJob)
        assert claimed.job == own_job
        assert rows_read(postgres) - before < 60


def test_owner_sees_its_own_use_and_monitors_that_of_all(database: Database) -> None:
    with (
        database.connect("alice") as alice,
        database.connect("bob") as bob,
        database.connect("monitor") as monitor,
        database.connect("tensile_worker") as connection,
    ):
        worker = _register(connection)
        for _ in range(2):
            _use(connection, alice, worker, 10.0, model="flowers")
        _use(connection, bob, worker, 5.0, model="trees")
        query = (
            "select owner, model, device_seconds, byte_seconds, running_seconds, jobs_ended, slowdown,"
            " device_seconds_today, first_day = last_day from tensile.stat_usage"
        )
        of_alice = ("alice", "flowers", 20.0, 80.0, 40.0, 2, 2.0, 20.0, True)
        of_bob = ("bob", "trees", 5.0, 20.0, 10.0, 1, 2.0, 5.0, True)
        assert alice.execute(query).fetchall() == [of_alice]
        assert bob.execute(query).fetchall() == [of_bob]
        assert monitor.execute(query).fetchall() == [of_alice, of_bob]
        tables = "select owner_name from tensile.usage"
        assert bob.execute(tables).fetchall() == [("bob",)]
        assert bob.execute("select count(*) from tensile.owner_usage").fetchone() == (1,)
        for statement in ("update tensile.usage set device_s = 0", "delete from tensile.owner_usage"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                alice.execute(statement.encode())


def test_use_outlives_its_jobs_and_ends_with_its_retention(database: Database) -> None:
    with database.connect("alice") as alice, database.connect("tensile_worker") as connection:
        _use(connection, alice, _register(connection), 10.0)
        with database.connect() as postgres:
            jobs_ended = "select jobs_ended from tensile.stat_usage"
            assert postgres.execute(jobs_ended).fetchone() == (1,)
            postgres.execute("delete from tensile.jobs")
            assert postgres.execute(jobs_ended).fetchone() == (1,)
            assert postgres.execute("select sum(device_s) from tensile.usage").fetchone() == (10.0,)
            postgres.execute("update tensile.usage set day = day - 1000")
            postgres.execute("update tensile.owner_usage set updated_at = '2020-01-01'")
            removed = postgres.execute("select kind, removed from tensile.vacuum_step() where kind = 'usage'")
            assert removed.fetchall() == [("usage", 3)]


def test_queued_job_that_is_cancelled_does_not_count_as_ended(database: Database) -> None:
    with database.connect("alice") as alice:
        alice.execute("select tensile_cancel(%s)", (enqueue(alice),))
        assert alice.execute("select * from tensile.stat_usage").fetchall() == []


def _register(connection: psycopg.Connection[Any], *, slots: int = 8) -> WorkerId:
    return jobs.register_worker(
        connection, host="host", pid=1, device_kind="emulated:test", lease_s=30.0, slots=slots
    )


def _usage(job: JobId, device_s: float) -> JobUsage:
    return JobUsage(
        job=job,
        device_s=device_s,
        byte_s=4 * device_s,
        running_s=2 * device_s,
        measured_s=device_s,
        alone_s=device_s / 2,
    )


def _use(
    connection: psycopg.Connection[Any],
    owner: psycopg.Connection[Any],
    worker: WorkerId,
    device_s: float,
    *,
    model: str = "earlier",
) -> None:
    """Let the owner use the device with a job that has ended since."""
    job = enqueue(owner, model, priority=900)
    while (claimed := claim(connection, worker)).job != job:
        jobs.requeue(connection, claimed.job, claimed.claim, "another job is meant")
    record_usage(connection, [_usage(job, device_s)])
    jobs.cancelled(connection, claimed.job, claimed.claim)


def _claim_of_two(
    alice: Connection, bob: Connection, connection: psycopg.Connection[Any], worker: WorkerId
) -> list[str]:
    """Enqueue a job of either owner, and return the owners in the order in which their jobs are claimed."""
    owners = {enqueue(alice, "a2"): "alice", enqueue(bob, "b"): "bob"}
    return [owners[claim(connection, worker).job] for _ in owners]
