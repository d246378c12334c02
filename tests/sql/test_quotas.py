"""Quotas: what one role may have of the queue and of the workers, and who may say so."""

from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from indb_tensile.catalog import jobs
from indb_tensile.job import ClaimedJob, JobId, WorkerId
from tests.catalog.enqueue import claim, enqueue, rows_read, specification
from tests.conftest import Database

pytestmark = pytest.mark.postgres


def test_one_owner_never_takes_the_last_slot_and_anothers_job_gets_it_at_once(database: Database) -> None:
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
        told = alice.execute(waits).fetchall()
        assert told == [("one of its owner's jobs to end: at most 2 run at once",)] * 2
        mine = enqueue(bob, "b")
        assert bob.execute(waits).fetchall() == [("its turn: 2 before it",)]
        assert claim(connection, worker).job == mine


def test_with_one_slot_its_owner_does_not_matter(database: Database) -> None:
    with database.connect("alice") as alice, database.connect("tensile_worker") as connection:
        worker = _register(connection, slots=1)
        job = enqueue(alice, "a")
        assert claim(connection, worker).job == job


def test_the_slots_of_all_living_workers_are_what_is_divided(database: Database) -> None:
    with database.connect("alice") as alice, database.connect("tensile_worker") as connection:
        here, there = _register(connection, slots=1), _register(connection, slots=1)
        enqueue(alice, "a")
        enqueue(alice, "b")
        claim(connection, here)
        assert jobs.claim_job(connection, there) is None
        jobs.leave(connection, here)
        jobs.rescue(connection)
        assert claim(connection, there).job == 2


def test_two_workers_that_claim_at_once_do_not_both_get_an_owners_last_place(database: Database) -> None:
    with (
        database.connect("alice") as alice,
        database.connect("tensile_worker") as one,
        database.connect("tensile_worker") as other,
    ):
        here, there = _register(one, slots=1), _register(other, slots=1)
        enqueue(alice, "a")
        enqueue(alice, "b")
        with one.transaction():
            claim(one, here)  # not committed: the other worker does not see it
            other.execute("set lock_timeout = '200ms'")
            with pytest.raises(psycopg.errors.LockNotAvailable):
                jobs.claim_job(other, there)
        assert jobs.claim_job(other, there) is None


def test_an_administrators_quota_says_otherwise_for_one_role_and_for_every_role(database: Database) -> None:
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


def test_owners_that_the_worker_passes_over_wait_for_those_of_others(database: Database) -> None:
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
        passed = [jobs.claim_job(connection, worker, [owner]) for _ in range(3)]
        assert [job and job.job for job in passed] == [3, 2, None]
        assert claim(connection, worker).job == 1


def test_more_jobs_than_the_quota_are_refused_with_the_way_out(database: Database) -> None:
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
        assert "tensile_set_quota('alice', jobs_queued => …)" in str(caught.value.diag.message_hint)
        enqueue(bob, "b")
        alice.execute("select tensile_cancel(1)")
        enqueue(alice, "a")
        with pytest.raises(psycopg.errors.ProgramLimitExceeded):
            alice.execute(
                "insert into tensile.jobs (model_name, relation_oid, relation_schema, relation_name, spec)"
                " select 'a', 1, 'public', 't', %s from generate_series(1, 3)",
                (Jsonb(specification("a")),),
            )


def test_the_queued_jobs_of_others_between_ones_own_do_not_count(database: Database) -> None:
    with database.connect("admin") as admin, database.connect("alice") as alice, database.connect("bob") as bob:
        admin.execute("select tensile_set_quota('alice', jobs_queued => 2)")
        enqueue(alice, "a")
        for _ in range(5):
            enqueue(bob, "b")
        enqueue(alice, "a")
        with pytest.raises(psycopg.errors.ProgramLimitExceeded):
            enqueue(alice, "a")


def test_a_priority_above_the_quota_is_refused_at_enqueue_and_later(database: Database) -> None:
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


def test_the_view_shows_use_beside_quota_and_other_roles_only_to_monitors(database: Database) -> None:
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
        of_alice = ("alice", 1, 3, 1, 7, 0, 2 << 20, 5, True)
        of_bob = ("bob", 0, 3, 1, 10_000, 0, None, 1000, False)
        query = "select * from tensile.stat_quotas"
        assert alice.execute(query).fetchall() == [of_alice]
        assert bob.execute(query).fetchall() == [of_bob]
        assert admin.execute(query).fetchall() == [of_alice, of_bob]


@pytest.mark.parametrize("statistics", ["none", "before anything was queued", "while all was queued"])
def test_a_queue_of_an_owner_at_its_limit_costs_others_claims_nothing(database: Database, statistics: str) -> None:
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
        mine = enqueue(bob, "b")
    with database.connect() as postgres, postgres.transaction():
        before = rows_read(postgres)
        claimed = jobs.claim_job(postgres, worker)
        assert isinstance(claimed, ClaimedJob)
        assert claimed.job == mine
        read = postgres.execute(
            "select indexrelid::regclass::text, pg_stat_get_xact_tuples_fetched(indexrelid) from pg_index"
            " where indrelid = 'tensile.jobs'::regclass and pg_stat_get_xact_tuples_fetched(indexrelid) > 10"
        ).fetchall()
        assert read == []
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
