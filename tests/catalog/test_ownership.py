"""Check who owns jobs and models after roles are renamed, databases are copied, and memberships are revoked."""

import contextlib
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg.errors import InsufficientPrivilege

from indb_tensile.catalog import jobs, models
from tests.catalog.enqueue import claim, enqueue, publication, register
from tests.catalog.trained_model import JOB_TABLES, MODEL_TABLES, count_rows, grant_model, train_model
from tests.conftest import Database

pytestmark = pytest.mark.postgres

OTHER_INSTALLATION = "00000000-0000-0000-0000-000000000000"


def test_oid_of_another_role_before_a_restore_owns_nothing(database: Database) -> None:
    train_model(database)
    with database.connect() as postgres, database.connect("bob") as bob, database.connect("alice") as alice:
        for table in ("jobs", "models"):
            postgres.execute(
                f"update tensile.{table} set owner_oid = 'bob'::regrole, installation = %s".encode(),
                (OTHER_INSTALLATION,),
            )
        for table in (*JOB_TABLES, *MODEL_TABLES):
            assert count_rows(bob, table) == count_rows(alice, table) == 0, table


def test_renamed_role_keeps_its_jobs_and_models_and_views_show_its_new_name(database: Database) -> None:
    with _new_role(database, "first") as first, database.connect("tensile_worker") as worker:
        worker_id = register(worker)
        enqueue(first)
        version = models.publish_version(worker, claim(worker, worker_id), publication())
        first.execute("reset role")
        first.execute("alter role first rename to renamed")
        first.execute("create role first in role tensile_user")
        first.execute("set role renamed")
        for table in ("jobs", "models", "model_versions", "artifacts", "version_bundles"):
            assert count_rows(first, table) == 1, table
        for view in ("stat_jobs", "model_list"):
            assert first.execute(f"select owner from tensile.{view}".encode()).fetchall() == [("renamed",)], view
        enqueue(first)
        models.publish_version(worker, claim(worker, worker_id), publication(incumbent=version))
        assert count_rows(first, "model_versions") == 2
        first.execute("reset role")
        first.execute("set role first")
        assert count_rows(first, "jobs") == count_rows(first, "models") == 0


def test_renamed_role_keeps_its_models_in_a_copy_on_another_server(database: Database) -> None:
    with _new_role(database, "first") as first, database.connect("tensile_worker") as worker:
        first.execute("insert into tensile.models (name) values ('m')")
        first.execute(
            "insert into tensile.model_privileges (model_id, grantee_oid, grantee_name) values (1, 0, 'public')"
        )
        first.execute("reset role")
        first.execute("alter role first rename to renamed")
        first.execute("create role first in role tensile_user")
        register(worker)
        for table, owner in (("models", "owner_oid = 1"), ("model_privileges", "owner_oid = 1")):
            first.execute(f"update tensile.{table} set {owner}, installation = %s".encode(), (OTHER_INSTALLATION,))
        register(worker)
        for role, models_seen in (("renamed", 1), ("first", 1)):  # `first` sees it through the grant to public
            first.execute(f"set role {role}".encode())
            assert count_rows(first, "models") == models_seen
            assert count_rows(first, "model_privileges") == 1
            revoked = first.execute("update tensile.model_privileges set revoked_at = null").rowcount
            assert revoked == (1 if role == "renamed" else 0)
            first.execute("reset role")


def test_copy_within_the_cluster_identifies_owners_by_oid(database: Database) -> None:
    with _new_role(database, "first") as first, database.connect("tensile_worker") as worker:
        first.execute("insert into tensile.models (name) values ('m')")
        first.execute("reset role")
        first.execute("alter role first rename to renamed")
        first.execute("create role first in role tensile_user")
        neighbour = "md5((select system_identifier from pg_control_system())::text || '/' || oid::text)::uuid"
        statement = (
            f"update tensile.models set installation = {neighbour} from pg_database where datname = 'postgres'"
        )
        first.execute(statement.encode())
        register(worker)
        first.execute("set role first")
        assert count_rows(first, "models") == 0
        first.execute("reset role")
        first.execute("set role renamed")
        assert count_rows(first, "models") == 1


def test_worker_on_a_copy_assigns_jobs_and_models_to_roles_of_the_same_names(database: Database) -> None:
    train_model(database)
    with (
        database.connect() as postgres,
        database.connect("alice") as alice,
        database.connect("bob") as bob,
        database.connect("tensile_worker") as worker,
    ):
        grant_model(alice, "bob")
        queued_job = enqueue(alice)
        postgres.execute("update tensile.jobs set owner_oid = 1, installation = %s", (OTHER_INSTALLATION,))
        postgres.execute("update tensile.models set owner_oid = 1, installation = %s", (OTHER_INSTALLATION,))
        postgres.execute(
            "update tensile.model_privileges set grantee_oid = 2, installation = %s", (OTHER_INSTALLATION,)
        )
        assert count_rows(alice, "models") == count_rows(alice, "jobs") == count_rows(bob, "models") == 0
        worker_id = register(worker)
        assert count_rows(alice, "models") == count_rows(alice, "jobs") == count_rows(bob, "models") == 1
        assert jobs.claim_job(worker, worker_id) is None
        with pytest.raises(InsufficientPrivilege):
            worker.execute("select tensile.adopt_jobs()")
        with database.connect("admin") as admin:
            assert admin.execute("select tensile.adopt_jobs()").fetchone() == (1,)
        assert claim(worker, worker_id).job == queued_job
        assert count_rows(alice, "jobs") == 2


def test_queued_job_of_a_role_that_lost_its_membership_fails(database: Database) -> None:
    with _new_role(database, "first") as first, database.connect("tensile_worker") as worker:
        job, other = enqueue(first, "a", priority=5), enqueue(first, "b")
        first.execute("reset role")
        with database.connect("alice") as alice:
            other_job = enqueue(alice)
        first.execute("revoke tensile_user from first")
        assert claim(worker, register(worker)).job == other_job
        rows = first.execute(
            "select state::text, error_sqlstate, error_message, error_hint from tensile.jobs where job_id = any (%s)",
            ([job, other],),
        ).fetchall()
        error = 'role "first" may no longer train: it is not a member of tensile_user'
        hint = "As an administrator: grant tensile_user to the role. Then train again."
        assert rows == [("failed", "42501", error, hint)] * 2


def test_queued_job_of_a_role_that_was_dropped_fails(database: Database) -> None:
    with _new_role(database, "first") as first, database.connect("tensile_worker") as worker:
        enqueue(first, "a")
        first.execute("reset role; drop role first")
        assert jobs.claim_job(worker, register(worker)) is None
        assert first.execute("select state::text, error_message, error_hint from tensile.jobs").fetchall() == [
            (
                "failed",
                'role "first", which enqueued the job, no longer exists',
                "Train again as a role that exists, which may read the table.",
            )
        ]


def test_running_job_of_a_role_that_lost_its_membership_is_cancelled_at_the_next_heartbeat(
    database: Database,
) -> None:
    with _new_role(database, "first") as first, database.connect("tensile_worker") as worker:
        worker_id = register(worker)
        enqueue(first)
        claimed = claim(worker, worker_id)
        claims = {claimed.job: claimed.claim}
        assert jobs.beat(worker, worker_id, claims).cancelled == ()
        first.execute("reset role")
        first.execute("revoke tensile_user from first")
        assert jobs.beat(worker, worker_id, claims).cancelled == (claimed.job,)
        jobs.cancelled(worker, claimed.job, claimed.claim)
        row = first.execute("select state::text, error_message from tensile.jobs").fetchone()
        assert row == ("cancelled", 'role "first" may no longer train: it is not a member of tensile_user')


def test_heartbeat_does_not_wait_for_the_locked_row_of_a_job_that_must_stop(database: Database) -> None:
    with _new_role(database, "first") as first, database.connect("tensile_worker") as worker:
        worker_id = register(worker)
        enqueue(first)
        claimed = claim(worker, worker_id)
        with first.transaction():
            first.execute("select from tensile.jobs for update")
            with database.connect() as postgres:
                postgres.execute("revoke tensile_user from first")
            worker.execute("set lock_timeout = '60s'")
            assert jobs.beat(worker, worker_id, {claimed.job: claimed.claim}).cancelled == (claimed.job,)
        first.execute("reset role")


@contextlib.contextmanager
def _new_role(database: Database, name: str) -> Iterator[psycopg.Connection[Any]]:
    """Create a role, and yield a superuser's connection that has become this role. The role, which may have been
    renamed, is dropped afterwards.
    """
    with database.connect() as connection:
        connection.execute(f"create role {name} in role tensile_user".encode())
        try:
            connection.execute(f"set role {name}".encode())
            yield connection
        finally:
            connection.execute("reset role")
            for role in (name, "renamed"):
                connection.execute(f"drop role if exists {role}".encode())


def test_tables_of_predictions_follow_their_jobs_into_a_copy(database: Database) -> None:
    predicts = {"predict": {"version_id": 1, "output": "public.answers"}}
    with database.connect() as postgres, database.connect("tensile_worker") as worker:
        job = enqueue(postgres, spec=predicts, state="succeeded", finished_at="now")
        name = "select tensile.prediction_table(j) from tensile.jobs as j where job_id = %s"
        row = postgres.execute(name, (job,)).fetchone()
        assert row is not None
        foreign = f"predictions_{job}_{OTHER_INSTALLATION[:8]}"
        postgres.execute(
            f"create table tensile_data.{foreign} (value float8);"
            f"alter table tensile_data.{foreign} owner to tensile_data;"
            f"create view answers as select value from tensile_data.{foreign};"
            f"update tensile.jobs set owner_oid = 1, installation = '{OTHER_INSTALLATION}'"
        )
        with database.connect() as reader, reader.transaction():
            reader.execute("select from answers")
            postgres.execute("select tensile.adopt_owners()")
            assert count_rows(postgres, "jobs where installation <> tensile.installation()") == 1
        postgres.execute("select tensile.adopt_owners()")
        assert count_rows(postgres, "jobs where installation <> tensile.installation()") == 0
        assert postgres.execute("select to_regclass('tensile_data.' || %s) is null", (foreign,)).fetchone() == (True,)
        assert postgres.execute(
            "select 'answers'::regclass, to_regclass('tensile_data.' || %s) is null", row
        ).fetchone()
        postgres.execute("drop view answers")
        assert worker.execute("select tensile.drop_prediction_tables(10)").fetchone() == (1,)
