"""Check that old rows are kept as long as the settings say, and removed in small steps that wait for no lock."""

from typing import Any

import psycopg
import pytest
from psycopg.errors import InsufficientPrivilege, InvalidParameterValue, UndefinedObject

from indb_tensile.catalog import jobs
from tests.catalog.ended_jobs import count_rows, publish_jobs
from tests.catalog.enqueue import claim, enqueue, register, rows_read
from tests.conftest import Database

pytestmark = [pytest.mark.postgres, pytest.mark.clears_database]

RETENTION_SETTINGS = (
    "retain_jobs",
    "retain_events",
    "retain_metrics",
    "retain_plans",
    "retain_workers",
    "retain_links",
)


def vacuum_step(connection: psycopg.Connection[Any], most: int = 1000) -> dict[str, int]:
    return dict(connection.execute("select kind, removed from tensile.vacuum_step(%s)", (most,)).fetchall())


def vacuum_completely(connection: psycopg.Connection[Any], most: int = 1000) -> dict[str, int]:
    """Remove rows in steps until a step removes none; return the number of removed rows of each kind."""
    total: dict[str, int] = {}
    while removed := vacuum_step(connection, most):
        assert sum(removed.values()) <= most
        for kind, number in removed.items():
            total[kind] = total.get(kind, 0) + number
    return total


def test_default_settings_remove_each_kind_of_row_after_its_time(database: Database) -> None:
    publish_jobs(database, 2, age="100 days")
    publish_jobs(database, 2, age="40 days")
    publish_jobs(database, 2, age="8 days")
    publish_jobs(database, 2)
    with database.connect("tensile_worker") as worker:
        removed = vacuum_completely(worker)
    assert {kind: removed[kind] for kind in ("plans", "metrics", "jobs", "workers")} == {
        "plans": 6,
        "metrics": 4,
        "jobs": 2,
        "workers": 3,
    }
    assert [count_rows(database, table) for table in ("jobs", "job_progress", "plans", "workers")] == [6, 6, 2, 1]
    with database.connect() as postgres:
        oldest = postgres.execute("select max(now() - at) < interval '30 days' from tensile.job_events").fetchone()
        assert oldest == (True,)
        assert postgres.execute("select count(*) from tensile.model_versions where job_id <= 2").fetchone() == (2,)
    assert count_rows(database, "model_versions") == 8, "versions stay, with the id of their job"


def test_step_removes_at_most_the_given_number_of_rows(database: Database) -> None:
    publish_jobs(database, 3, age="100 days")
    before = {table: count_rows(database, table) for table in ("jobs", "job_events", "metrics", "plans")}
    with database.connect("tensile_worker") as worker:
        assert vacuum_step(worker, 2) == {"events": 2}
        assert count_rows(database, "jobs") == 3
        removed = vacuum_completely(worker, 2)
    assert removed == {
        "events": before["job_events"] - 2,
        "plans": before["plans"],
        "metrics": before["metrics"],
        "jobs": before["jobs"],
        "workers": 1,
    }


def test_longest_period_is_a_thousand_years(database: Database) -> None:
    publish_jobs(database, 1, age="100 days")
    with database.connect("admin") as admin, database.connect("tensile_worker") as worker:
        for name in RETENTION_SETTINGS:
            admin.execute("select tensile_set_setting(%s, '\"1000 years\"')", (name,))
            with pytest.raises(psycopg.errors.InvalidParameterValue, match="1000 years 1 day"):
                admin.execute("select tensile_set_setting(%s, '\"1000 years 1 day\"')", (name,))
        assert vacuum_step(worker) == {}


def test_null_keeps_rows_for_ever_and_a_running_job_keeps_its_current_plan(database: Database) -> None:
    publish_jobs(database, 2, age="9000 days")
    with database.connect("admin") as admin, database.connect("tensile_worker") as worker:
        for name in RETENTION_SETTINGS:
            admin.execute("select tensile_set_setting(%s, 'null')", (name,))
        assert vacuum_step(worker) == {}
        admin.execute("select tensile_set_setting('retain_plans', '\"1 second\"')")
        with database.connect("alice") as alice:
            running = enqueue(alice)
        claim(worker, register(worker))
        with database.connect() as postgres:
            postgres.execute(
                "insert into tensile.plans (job_id, attempt, generation, reason, policy, created_at)"
                " select %s, 1, g, 'start', 'tensile', now() - interval '1 day' from generate_series(1, 3) as g",
                (running,),
            )
        assert vacuum_completely(worker) == {"plans": 4}
        assert worker.execute("select job_id, generation from tensile.plans").fetchall() == [(running, 3)]


def test_versions_are_removed_only_by_a_limit_and_never_the_deployed_version(database: Database) -> None:
    publish_jobs(database, 15)
    with database.connect("admin") as admin, database.connect("tensile_worker") as worker:
        with database.connect() as postgres:
            postgres.execute("update tensile.model_versions set deployed = number = 1 where deployed or number = 1")
        assert vacuum_step(worker) == {}
        admin.execute("select tensile_set_setting('retain_versions', '2')")
        assert vacuum_step(worker) == {"versions": 10}
        assert vacuum_step(worker) == {"versions": 2}
        assert vacuum_step(worker) == {}
        rows = worker.execute("select number, deployed from tensile.model_versions order by number").fetchall()
    assert rows == [(1, True), (14, False), (15, False)]
    assert count_rows(database, "artifacts") == 3


@pytest.mark.own_database
def test_locked_rows_are_removed_later_and_delay_no_other_removal(database: Database) -> None:
    publish_jobs(database, 2, age="100 days")
    with database.connect("tensile_worker") as worker, database.connect() as other:
        with other.transaction():
            other.execute("select from tensile.jobs order by job_id limit 1 for update")
            other.execute("select from tensile.job_events where job_id = 2 for update")
            assert vacuum_completely(worker)["metrics"] == 4
            assert count_rows(database, "jobs") == 2
        assert vacuum_completely(worker)["jobs"] == 2
        assert count_rows(database, "jobs") == 0


def test_only_workers_and_administrators_may_remove_rows(database: Database) -> None:
    publish_jobs(database, 1, age="100 days")
    for role in ("alice", "monitor"):
        with database.connect(role) as connection, pytest.raises(InsufficientPrivilege):
            connection.execute("select tensile.vacuum_step(1)")
    with database.connect("tensile_worker") as worker, pytest.raises(InsufficientPrivilege):
        worker.execute("delete from tensile.jobs")
    with database.connect("admin") as admin:
        assert vacuum_completely(admin)["jobs"] == 1


def test_every_user_reads_all_settings_with_their_defaults(database: Database) -> None:
    with database.connect("admin") as admin, database.connect("alice") as alice:
        admin.execute("select tensile_set_setting('retain_jobs', '\"1 year\"')")
        query = "select name, value from tensile.setting_list where name in ('retain_jobs', 'retain_events')"
        assert alice.execute(query).fetchall() == [("retain_events", "30 days"), ("retain_jobs", "1 year")]
        admin.execute("select tensile_set_setting('retain_jobs', null)")
        assert alice.execute(query).fetchall() == [("retain_events", "30 days"), ("retain_jobs", "90 days")]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("retain_jobs", '"soon"'),
        ("retain_jobs", '"-1 day"'),
        ("retain_jobs", '"0"'),
        ("retain_jobs", "30"),
        ("retain_versions", "0"),
        ("retain_versions", "1.5"),
        ("retain_versions", '"2"'),
        ("socket_directory", "null"),
    ],
)
def test_invalid_value_of_a_setting_is_refused_with_a_hint(database: Database, name: str, value: str) -> None:
    with database.connect("admin") as admin:
        with pytest.raises(InvalidParameterValue, match=f'setting "{name}" is') as caught:
            admin.execute("select tensile_set_setting(%s, %s)", (name, value))
        assert f"tensile_set_setting('{name}'" in (caught.value.diag.message_hint or "")
        with pytest.raises(UndefinedObject):
            admin.execute("select tensile_set_setting('retain_nothing', '1')")


def test_claim_heartbeat_and_rescue_do_not_read_finished_jobs(database: Database) -> None:
    with database.connect() as postgres:
        postgres.execute(
            "insert into tensile.jobs (model_name, relation_oid, relation_schema, relation_name, spec, state,"
            " finished_at)"
            " select 'm', 1, 'public', 't', jsonb_build_object('model', 'm', 'relation',"
            "   jsonb_build_object('oid', 1, 'schema', 'public', 'name', 't')), 'succeeded', now()"
            "   from generate_series(1, 3000)"
        )
        postgres.execute("analyze tensile.jobs")
    with database.connect("alice") as alice, database.connect("tensile_worker") as worker:
        enqueue(alice)
        number = register(worker)
        with worker.transaction():
            read = [rows_read(worker)]
            claimed = claim(worker, number)
            read.append(rows_read(worker))
            jobs.beat(worker, number, {claimed.job: claimed.claim})
            read.append(rows_read(worker))
            jobs.rescue(worker)
            read.append(rows_read(worker))
    assert read[-1] - read[0] < 100, f"rows of jobs read before, after the claim, the beat and the rescue: {read}"
