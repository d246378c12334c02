"""Check the counters of ended jobs: deleted jobs still count, and each role counts the jobs that it may see."""

import psycopg
import pytest

from indb_tensile.catalog.connection import Connection
from indb_tensile.monitor.live_figures import rows
from tests.catalog.enqueue import enqueue
from tests.conftest import Database

pytestmark = pytest.mark.postgres


def _counts(connection: Connection) -> dict[str, int]:
    return {row["state"]: row["jobs"] for row in rows(connection, "metric_ended")}


def _end(admin: Connection, job: int, state: str) -> None:
    admin.execute(
        "update tensile.jobs set state = %(state)s::tensile.job_state, finished_at = now(),"
        " error_message = case when %(state)s = 'failed' then 'no' end where job_id = %(job)s",
        {"state": state, "job": job},
    )


def test_deleted_jobs_count_in_the_state_in_which_they_ended(database: Database) -> None:
    with (
        database.connect() as admin,
        database.connect("alice") as alice,
        database.connect("bob") as bob,
        database.connect("monitor") as monitor,
    ):
        for state in ("succeeded", "failed", "failed", "cancelled"):
            _end(admin, enqueue(alice), state)
        _end(admin, enqueue(bob, "trees"), "failed")
        waiting = enqueue(alice)
        of_alice, of_bob, of_all = (
            {"succeeded": 1, "failed": 2, "cancelled": 1},
            {"failed": 1},
            {"succeeded": 1, "failed": 3, "cancelled": 1},
        )
        assert (_counts(alice), _counts(bob), _counts(monitor)) == (of_alice, of_bob, of_all)

        for condition in ("job_id = 2", "state in ('succeeded', 'failed')", f"job_id = {waiting}"):
            admin.execute(f"delete from tensile.jobs where {condition}")
            assert (_counts(alice), _counts(bob), _counts(monitor)) == (of_alice, of_bob, of_all)


def test_no_role_changes_the_counters(database: Database) -> None:
    for role in ("alice", "monitor", "admin", "tensile_worker"):
        for statement in (
            "update tensile.deleted_jobs set jobs = 0",
            "delete from tensile.deleted_jobs",
            "insert into tensile.deleted_jobs (owner_oid, state, jobs) values (0, 'failed', 1)",
        ):
            with database.connect(role) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement.encode())
