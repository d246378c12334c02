"""What alice and bob may see of one another, and what nobody may write."""

from typing import Any

import psycopg
import pytest
from psycopg.errors import CheckViolation, InsufficientPrivilege

from indb_tensile.catalog import jobs, models, plans
from indb_tensile.catalog.jobs import Progress
from indb_tensile.catalog.plans import DeviceUse, JobUse, PlanRecord
from indb_tensile.job import ModelVersionId
from tests.catalog.enqueue import claim, enqueue, publication, register, state
from tests.conftest import Database

pytestmark = pytest.mark.postgres

OF_JOBS = ("jobs", "job_progress", "job_events", "metrics", "plans", "device_jobs")
OF_MODELS = ("models", "model_versions", "artifacts")


def test_others_see_nothing_of_a_job_or_a_model_and_monitors_see_all_but_weights(database: Database) -> None:
    _trained(database)
    with database.connect("alice") as alice, database.connect("bob") as bob, database.connect("monitor") as monitor:
        for table in (*OF_JOBS, *OF_MODELS):
            assert _count(alice, table) > 0, table
            assert _count(bob, table) == 0, table
            if table != "artifacts":
                assert _count(monitor, table) == _count(alice, table), table
        with pytest.raises(InsufficientPrivilege):
            _count(monitor, "artifacts")


def test_others_change_nothing(database: Database) -> None:
    _trained(database)
    with database.connect("bob") as bob:
        for statement in (
            "update tensile.jobs set cancel_requested = true",
            "update tensile.jobs set priority = 5",
            "update tensile.models set definition = '{}'",
            "update tensile.model_versions set deployed = false",
            "delete from tensile.models",
        ):
            assert bob.execute(statement).rowcount == 0, statement


@pytest.mark.parametrize(
    "column",
    ["owner_oid", "owner_name", "state", "claim", "installation", "worker_id", "attempt", "max_attempts", "spec"],
)
def test_nobody_sets_an_owner_a_state_or_a_claim(database: Database, column: str) -> None:
    with database.connect("alice") as alice, database.connect("admin") as admin:
        enqueue(alice)
        for connection in (alice, admin):
            with pytest.raises(InsufficientPrivilege):
                connection.execute(f"update tensile.jobs set {column} = {column}")


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("owner_name", "bob"),
        ("owner_oid", 10),
        ("state", "succeeded"),
        ("installation", "00000000-0000-0000-0000-000000000000"),
        ("max_attempts", 99),
        ("enqueued_xact", "3"),
    ],
)
def test_nobody_enqueues_with_more_than_a_request(database: Database, column: str, value: Any) -> None:
    with database.connect("alice") as alice, pytest.raises(InsufficientPrivilege):
        enqueue(alice, **{column: value})


def test_a_specification_that_names_another_model_or_table_is_refused(database: Database) -> None:
    with database.connect("alice") as alice:
        with pytest.raises(CheckViolation, match="jobs_spec_names_the_model"):
            enqueue(alice, "m", spec={"model": "other"})
        with pytest.raises(CheckViolation, match="jobs_spec_names_the_relation"):
            enqueue(alice, "m", spec={"relation": {"oid": 2, "schema": "public", "name": "t"}})


@pytest.mark.parametrize(
    "statement",
    [
        "delete from tensile.jobs",
        "insert into tensile.job_events (job_id, kind) values (1, 'x')",
        "insert into tensile.model_versions (model_id) values (1)",
        "insert into tensile.artifacts (version_id, chunk_no, chunk) values (1, 0, '')",
        "insert into tensile.settings values ('socket_directory', '\"/tmp\"')",
        "update tensile.workers set service_name = 'mine'",
        "update tensile.op_latency set latency_ns = 0",
        "select nextval('tensile.claim_seq')",
        "select * from tensile.checkpoints",
        "truncate tensile.jobs",
        "select tensile.record_job_changes()",
    ],
)
def test_users_write_nothing_else(database: Database, statement: str) -> None:
    with database.connect("alice") as alice, pytest.raises(InsufficientPrivilege):
        alice.execute(statement)


def test_a_role_without_a_grant_sees_nothing(database: Database) -> None:
    with database.connect() as connection:
        connection.execute("create role stranger")
        try:
            connection.execute("set role stranger")
            with pytest.raises(InsufficientPrivilege, match="permission denied for schema tensile"):
                connection.execute("select from tensile.jobs")
            connection.execute("reset role")
        finally:
            connection.execute("drop role stranger")


def test_a_name_taken_by_another_owner_is_refused_at_enqueue(database: Database) -> None:
    _trained(database)
    with database.connect("alice") as alice, database.connect("bob") as bob:
        with pytest.raises(InsufficientPrivilege, match='model "m" belongs to another role'):
            enqueue(bob, "m")
        enqueue(alice, "new")
        with pytest.raises(InsufficientPrivilege, match='model "new" belongs to another role'):
            enqueue(bob, "new")


def test_a_grantee_sees_the_model_and_neither_changes_it_nor_reads_its_weights(database: Database) -> None:
    _trained(database)
    with database.connect("alice") as alice, database.connect("bob") as bob:
        _grant(alice, "bob")
        assert _count(bob, "models") == _count(bob, "model_versions") == 1
        assert _count(bob, "artifacts") == _count(bob, "jobs") == 0
        assert bob.execute("delete from tensile.models").rowcount == 0
        assert bob.execute("update tensile.model_versions set deployed = false").rowcount == 0
        with pytest.raises(InsufficientPrivilege, match="row-level security"):
            _grant(bob, "demo")
        alice.execute("delete from tensile.model_privileges")
        assert _count(bob, "models") == 0


def test_everybody_may_be_granted_a_model(database: Database) -> None:
    _trained(database)
    with database.connect("alice") as alice, database.connect("bob") as bob:
        alice.execute(
            "insert into tensile.model_privileges (model_id, grantee_oid, grantee_name) values (1, 0, 'public')"
        )
        assert _count(bob, "models") == 1


def test_an_administrator_acts_on_every_job_and_model(database: Database) -> None:
    with database.connect("alice") as alice, database.connect("admin") as admin:
        job = enqueue(alice)
        admin.execute("update tensile.jobs set cancel_requested = true where job_id = %s", (job,))
        assert state(alice, job) == "cancelled"
        alice.execute("insert into tensile.models (name) values ('m')")
        assert admin.execute("delete from tensile.models").rowcount == 1
        admin.execute("insert into tensile.settings (name, value) values ('socket_directory', '\"/run\"')")
        assert alice.execute("select value from tensile.settings").fetchone() == ("/run",)


def test_the_worker_neither_enqueues_nor_gives_a_job_to_another_owner(database: Database) -> None:
    with database.connect("alice") as alice, database.connect("tensile_worker") as worker:
        enqueue(alice)
        with pytest.raises(InsufficientPrivilege):
            enqueue(worker)
        for column in ("owner_oid", "owner_name", "spec", "installation", "model_name", "priority"):
            with pytest.raises(InsufficientPrivilege):
                worker.execute(f"update tensile.jobs set {column} = {column}")


def test_an_oid_that_was_another_roles_before_a_restore_owns_nothing(database: Database) -> None:
    _trained(database)
    with database.connect() as postgres, database.connect("bob") as bob, database.connect("alice") as alice:
        for table in ("jobs", "models"):
            postgres.execute(f"update tensile.{table} set owner_oid = 'bob'::regrole")
        assert _count(bob, "jobs") == _count(bob, "models") == _count(bob, "artifacts") == 0
        assert _count(alice, "jobs") == _count(alice, "models") == 0


def test_a_worker_that_starts_on_a_copy_gives_everything_to_the_roles_of_the_same_names(database: Database) -> None:
    _trained(database)
    elsewhere = "00000000-0000-0000-0000-000000000000"
    with (
        database.connect() as postgres,
        database.connect("alice") as alice,
        database.connect("bob") as bob,
        database.connect("tensile_worker") as worker,
    ):
        _grant(alice, "bob")
        waiting = enqueue(alice)
        postgres.execute("update tensile.jobs set owner_oid = 1, installation = %s", (elsewhere,))
        postgres.execute("update tensile.models set owner_oid = 1, installation = %s", (elsewhere,))
        postgres.execute("update tensile.model_privileges set grantee_oid = 2, installation = %s", (elsewhere,))
        assert _count(alice, "models") == _count(alice, "jobs") == _count(bob, "models") == 0
        here = register(worker)
        assert _count(alice, "models") == _count(alice, "jobs") == _count(bob, "models") == 1
        assert jobs.claim_job(worker, here) is None
        with pytest.raises(InsufficientPrivilege):
            worker.execute("select tensile.adopt_jobs()")
        with database.connect("admin") as admin:
            assert admin.execute("select tensile.adopt_jobs()").fetchone() == (1,)
        assert claim(worker, here).job == waiting
        assert _count(alice, "jobs") == 2


def test_a_new_role_of_a_renamed_ones_name_gets_nothing(database: Database) -> None:
    with database.connect() as postgres, database.connect("tensile_worker") as worker:
        postgres.execute("create role first in role tensile_user")
        try:
            postgres.execute("set role first")
            postgres.execute("insert into tensile.models (name) values ('m')")
            postgres.execute("reset role")
            postgres.execute("alter role first rename to renamed")
            postgres.execute("create role first in role tensile_user")
            register(worker)
            postgres.execute("set role first")
            assert _count(postgres, "models") == 0
            postgres.execute("reset role")
        finally:
            postgres.execute("drop role first, renamed")


def _trained(database: Database) -> ModelVersionId:
    """One model of alice, with a row in every table that belongs to a job or a model."""
    with database.connect("alice") as alice, database.connect("tensile_worker") as connection:
        enqueue(alice)
        worker = register(connection)
        claimed = claim(connection, worker)
        progress = Progress(epoch=1, epochs=1, step=1, steps=1, figures={"loss": 0.5})
        jobs.report_progress(connection, claimed.job, claimed.claim, progress)
        record = PlanRecord(generation=1, reason="start", policy="tensile")
        plans.record_plan(connection, claimed.job, claimed.claim, record)
        use = DeviceUse(
            kind="x",
            capacity_bytes=1,
            budget_bytes=1,
            granted_bytes=1,
            used_bytes=1,
            high_water_bytes=1,
            host_bytes=0,
        )
        part = JobUse(job=claimed.job, granted_bytes=1, used_bytes=1, high_water_bytes=1)
        plans.record_device(connection, worker, use, [part])
        return models.publish_version(connection, claimed, publication())


def _count(connection: psycopg.Connection[Any], table: str) -> int:
    row = connection.execute(f"select count(*) from tensile.{table}").fetchone()
    assert row is not None
    return int(row[0])


def _grant(connection: psycopg.Connection[Any], role: str) -> None:
    connection.execute(
        "insert into tensile.model_privileges (model_id, grantee_oid, grantee_name)"
        " select 1, oid, rolname from pg_roles where rolname = %s",
        (role,),
    )
