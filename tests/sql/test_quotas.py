"""Check quotas: how many jobs and slots one role may use, and who may set them."""

from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from indb_tensile.catalog import jobs
from indb_tensile.job import ClaimedJob, JobId, WorkerId
from tests.catalog.enqueue import claim, enqueue, rows_read, specification
from tests.conftest import Database

pytestmark = [pytest.mark.postgres, pytest.mark.clears_database]


def test_last_slot_is_left_for_another_owners_job(database: Database) -> None:
    with (
        database.connect("alice") as alice,
        database.connect("bob") as bob,
        database.connect("tensile_worker") as connection,
    ):
        worker = _register(connection, slots=3)
        for number in range(4):
            enqueue(alice, f"a{number}", priority=1000)
        first = [claim(connection, worker).job, claim(connection, worker).job]
        assert first == [1, 2]
        assert jobs.claim_job(connection, worker) is None
        waits = "select waits_for from tensile.stat_queue"
        waits_for = alice.execute(waits).fetchall()
        assert waits_for == [("one of its owner's jobs to end: at most 2 run at once",)] * 2
        own_job = enqueue(bob, "b")
        looked_at = "a controller to look at the queue: each does so at least every poll_s seconds"
        assert bob.execute(waits).fetchall() == [(looked_at,)]
        assert claim(connection, worker).job == own_job


def test_only_slot_can_be_taken_by_any_owner(database: Database) -> None:
    with database.connect("alice") as alice, database.connect("tensile_worker") as connection:
        worker = _register(connection, slots=1)
        job = enqueue(alice, "a")
        assert claim(connection, worker).job == job


@pytest.mark.own_database
def test_slots_of_all_living_workers_count(database: Database) -> None:
    with database.connect("alice") as alice, database.connect("tensile_worker") as connection:
        first_worker, second_worker = _register(connection, slots=1), _register(connection, slots=1)
        enqueue(alice, "a")
        enqueue(alice, "b")
        claim(connection, first_worker)
        assert jobs.claim_job(connection, second_worker) is None
        jobs.leave(connection, first_worker)
        jobs.rescue(connection)
        assert claim(connection, second_worker).job == 2


def test_concurrent_claims_of_two_workers_do_not_exceed_an_owners_limit(database: Database) -> None:
    with (
        database.connect("alice") as alice,
        database.connect("tensile_worker") as first_session,
        database.connect("tensile_worker") as second_session,
    ):
        first_worker, second_worker = _register(first_session, slots=1), _register(second_session, slots=1)
        enqueue(alice, "a")
        enqueue(alice, "b")
        with first_session.transaction():
            claim(first_session, first_worker)  # not committed, so invisible to the second worker
            second_session.execute("set lock_timeout = '200ms'")
            with pytest.raises(psycopg.errors.LockNotAvailable):
                jobs.claim_job(second_session, second_worker)
        assert jobs.claim_job(second_session, second_worker) is None


@pytest.mark.own_database
def test_administrator_sets_the_quota_of_one_role_and_of_every_role(database: Database) -> None:
    with (
        database.connect("admin") as admin,
        database.connect("alice") as alice,
        database.connect("tensile_worker") as connection,
    ):
        worker = _register(connection, slots=3)
        for number in range(4):
            enqueue(alice, f"a{number}")
        admin.execute("select tensile_set_quota('-', jobs_running => 1)")
        claim(connection, worker)
        assert jobs.claim_job(connection, worker) is None
        admin.execute("select tensile_set_quota('alice', jobs_running => 3)")
        claim(connection, worker)
        claim(connection, worker)
        assert jobs.claim_job(connection, worker) is None
        admin.execute("select tensile_set_quota('alice', jobs_running => 0)")
        jobs.cancelled(connection, JobId(1), _claim_of(connection, 1))
        jobs.cancelled(connection, JobId(2), _claim_of(connection, 2))
        jobs.cancelled(connection, JobId(3), _claim_of(connection, 3))
        assert jobs.claim_job(connection, worker) is None
        admin.execute("select tensile_set_quota('alice')")
        assert claim(connection, worker).job == 4


@pytest.mark.own_database
def test_jobs_of_owners_that_the_worker_passes_over_wait(database: Database) -> None:
    with (
        database.connect("alice") as alice,
        database.connect("bob") as bob,
        database.connect("tensile_worker") as connection,
    ):
        worker = _register(connection, slots=8)
        enqueue(alice, "a", priority=5)
        enqueue(bob, "b", priority=1)
        enqueue(bob, "c", priority=2)
        owner = _oid(connection, "alice")
        claims = [jobs.claim_job(connection, worker, [owner]) for _ in range(3)]
        assert [job and job.job for job in claims] == [3, 2, None]
        assert claim(connection, worker).job == 1


@pytest.mark.own_database
def test_more_jobs_than_the_quota_are_refused_with_a_hint(database: Database) -> None:
    with database.connect("admin") as admin, database.connect("alice") as alice, database.connect("bob") as bob:
        admin.execute("select tensile_set_quota('alice', jobs_queued => 3)")
        for _ in range(3):
            enqueue(alice, "a")
        with pytest.raises(psycopg.errors.ProgramLimitExceeded) as caught:
            enqueue(alice, "a")
        assert (
            caught.value.diag.message_primary
            == 'role "alice" may have at most 3 jobs in the queue, and this statement would exceed that'
        )
        assert "tensile_set_quota('alice', jobs_queued => ...)" in str(caught.value.diag.message_hint)
        enqueue(bob, "b")
        alice.execute("select tensile_cancel(1)")
        enqueue(alice, "a")
        with pytest.raises(psycopg.errors.ProgramLimitExceeded):
            alice.execute(
                "insert into tensile.jobs (model_name, relation_oid, relation_schema, relation_name, spec)"
                " select 'a', 1, 'public', 't', %s from generate_series(1, 3)",
                (Jsonb(specification("a")),),
            )


def test_queued_jobs_of_other_owners_do_not_count(database: Database) -> None:
    with database.connect("admin") as admin, database.connect("alice") as alice, database.connect("bob") as bob:
        admin.execute("select tensile_set_quota('alice', jobs_queued => 2)")
        enqueue(alice, "a")
        for _ in range(5):
            enqueue(bob, "b")
        enqueue(alice, "a")
        with pytest.raises(psycopg.errors.ProgramLimitExceeded):
            enqueue(alice, "a")


def test_priority_above_the_quota_is_refused_at_enqueue_and_later(database: Database) -> None:
    with database.connect("admin") as admin, database.connect("alice") as alice:
        admin.execute("select tensile_set_quota('alice', highest_priority => 10)")
        with pytest.raises(psycopg.errors.InsufficientPrivilege) as caught:
            enqueue(alice, "a", priority=11)
        assert caught.value.diag.message_primary == 'role "alice" may not give a job priority 11: its highest is 10'
        assert "Use priority 10 or less." in str(caught.value.diag.message_hint)
        job = enqueue(alice, "a", priority=10)
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="may not give a job priority 12"):
            alice.execute("update tensile.jobs set priority = 12 where job_id = %s", (job,))
        alice.execute("update tensile.jobs set priority = 9 where job_id = %s", (job,))
        admin.execute("update tensile.jobs set priority = 500 where job_id = %s", (job,))


@pytest.mark.parametrize("role", ["alice", "monitor", "tensile_worker"])
def test_only_an_administrator_sets_quotas(database: Database, role: str) -> None:
    with database.connect(role) as connection:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("select tensile_set_quota('alice', jobs_running => 100)")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("insert into tensile.role_quotas (role_oid, role_name) values (0, '-')")


def test_view_shows_own_use_and_quota_and_other_roles_only_to_monitors(database: Database) -> None:
    with (
        database.connect("admin") as admin,
        database.connect("alice") as alice,
        database.connect("bob") as bob,
        database.connect("tensile_worker") as connection,
    ):
        admin.execute("select tensile_set_quota('alice', jobs_queued => 7, bytes => '2MB', highest_priority => 5)")
        worker = _register(connection, slots=4)
        enqueue(alice, "a")
        enqueue(alice, "a")
        enqueue(bob, "b")
        claim(connection, worker)
        of_alice = ("alice", 1, 3, 1, 7, 0, 2 << 20, 5, True, 0.0, None, 1.0)
        of_bob = ("bob", 0, 3, 1, 10_000, 0, None, 1000, False, 0.0, None, 1.0)
        query = "select * from tensile.stat_quotas"
        assert alice.execute(query).fetchall() == [of_alice]
        assert bob.execute(query).fetchall() == [of_bob]
        assert admin.execute(query).fetchall() == [of_alice, of_bob]


@pytest.mark.parametrize("statistics", ["none", "before anything was queued", "while all was queued"])
def test_long_queue_of_an_owner_at_the_limit_slows_no_other_claim(database: Database, statistics: str) -> None:
    with (
        database.connect("bob") as bob,
        database.connect("tensile_worker") as connection,
        database.connect() as postgres,
    ):
        worker = _register(connection, slots=2)
        postgres.execute("alter table tensile.jobs set (autovacuum_enabled = off)")
        if statistics == "before anything was queued":
            postgres.execute(
                "insert into tensile.jobs (model_name, relation_oid, relation_schema, relation_name, spec, state,"
                " finished_at) select 'm', 1, 'public', 't', %s, 'cancelled', now() from generate_series(1, 2000)",
                (Jsonb(specification("m")),),
            )
            postgres.execute("analyze tensile.jobs")
        postgres.execute(
            "insert into tensile.jobs (model_name, relation_oid, relation_schema, relation_name, spec, priority)"
            " select 'm', 1, 'public', 't', %s, 10 from generate_series(1, 2000)",
            (Jsonb(specification("m")),),
        )
        if statistics == "while all was queued":
            postgres.execute("analyze tensile.jobs")
        claim(connection, worker)
        own_job = enqueue(bob, "b")
    with database.connect() as postgres, postgres.transaction():
        before = rows_read(postgres)
        claimed = jobs.claim_job(postgres, worker)
        assert isinstance(claimed, ClaimedJob)
        assert claimed.job == own_job
        scanned_indexes = postgres.execute(
            "select indexrelid::regclass::text, pg_stat_get_xact_tuples_fetched(indexrelid) from pg_index"
            " where indrelid = 'tensile.jobs'::regclass and pg_stat_get_xact_tuples_fetched(indexrelid) > 10"
        ).fetchall()
        assert scanned_indexes == []
        assert rows_read(postgres) - before < 20


def _register(connection: psycopg.Connection[Any], *, slots: int) -> WorkerId:
    return jobs.register_worker(
        connection, host="host", pid=1, device_kind="emulated:test", lease_s=30.0, slots=slots
    )


def _claim_of(connection: psycopg.Connection[Any], job: int) -> Any:
    row = connection.execute("select claim from tensile.jobs where job_id = %s", (job,)).fetchone()
    assert row is not None
    return row[0]


def _oid(connection: psycopg.Connection[Any], role: str) -> int:
    row = connection.execute("select oid from pg_roles where rolname = %s", (role,)).fetchone()
    assert row is not None
    return int(row[0])
