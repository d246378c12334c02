"""What has ended is kept as long as the settings say, and goes in small steps that wait for nobody."""

from typing import Any

import psycopg
import pytest
from psycopg.errors import InsufficientPrivilege, InvalidParameterValue, UndefinedObject

from indb_tensile.catalog import jobs, models
from indb_tensile.catalog.jobs import Progress
from tests.catalog.enqueue import claim, enqueue, publication, register, rows_read
from tests.conftest import Database

pytestmark = pytest.mark.postgres

FOREVER = ("retain_jobs", "retain_events", "retain_metrics", "retain_plans", "retain_workers", "retain_links")


def step(connection: psycopg.Connection[Any], most: int = 1000) -> dict[str, int]:
    return dict(connection.execute("select kind, removed from tensile.vacuum_step(%s)", (most,)).fetchall())


def steps(connection: psycopg.Connection[Any], most: int = 1000) -> dict[str, int]:
    """All steps until nothing is left."""
    total: dict[str, int] = {}
    while removed := step(connection, most):
        assert sum(removed.values()) <= most
        for kind, count in removed.items():
            total[kind] = total.get(kind, 0) + count
    return total


def count(database: Database, table: str) -> int:
    with database.connect() as connection:
        row = connection.execute(f"select count(*) from tensile.{table}".encode()).fetchone()
    assert row is not None
    return int(row[0])


def finish(database: Database, ended: int, *, age: str = "0 days") -> None:
    """Jobs that published a version each, with progress, figures, events and a plan, so long ago."""
    with database.connect("alice") as alice, database.connect("tensile_worker") as worker:
        number = register(worker)
        for _ in range(ended):
            enqueue(alice)
            claimed = claim(worker, number)
            progress = Progress(epoch=1, epochs=1, step=1, steps=1, figures={"loss": 1.0, "accuracy": 0.5})
            jobs.report_progress(worker, claimed.job, claimed.claim, progress)
            models.publish_version(worker, claimed, publication(incumbent=models.deployed_version(worker, "m")))
        jobs.leave(worker, number)
    with database.connect() as postgres, postgres.transaction():
        postgres.execute("set local session_replication_role = replica")  # no events of these changes
        postgres.execute(
            "insert into tensile.plans (job_id, attempt, generation, reason, policy)"
            " select job_id, 1, 1, 'start', 'tensile' from tensile.jobs on conflict do nothing"
        )
        for table, column in (
            ("jobs", "finished_at"),
            ("job_events", "at"),
            ("plans", "created_at"),
            ("workers", "stopped_at"),
        ):
            postgres.execute(
                f"update tensile.{table} set {column} = now() - %s::interval"
                f" where {column} > now() - interval '1 hour'".encode(),
                (age,),
            )


def test_by_default_nothing_young_goes_and_old_things_go_each_after_its_time(database: Database) -> None:
    finish(database, 2, age="100 days")
    finish(database, 2, age="40 days")
    finish(database, 2, age="8 days")
    finish(database, 2)
    with database.connect("tensile_worker") as worker:
        removed = steps(worker)
    assert {kind: removed[kind] for kind in ("plans", "metrics", "jobs", "workers")} == {
        "plans": 6,
        "metrics": 4,
        "jobs": 2,
        "workers": 3,
    }
    assert [count(database, table) for table in ("jobs", "job_progress", "plans", "workers")] == [6, 6, 2, 1]
    with database.connect() as postgres:
        oldest = postgres.execute("select max(now() - at) < interval '30 days' from tensile.job_events").fetchone()
        assert oldest == (True,)
        assert postgres.execute("select count(*) from tensile.model_versions where job_id <= 2").fetchone() == (2,)
    assert count(database, "model_versions") == 8, "versions stay, and the number of their job with them"


def test_a_step_removes_no_more_than_it_is_asked_to_and_leaves_no_cascade_to_the_last(database: Database) -> None:
    finish(database, 3, age="100 days")
    before = {table: count(database, table) for table in ("jobs", "job_events", "metrics", "plans")}
    with database.connect("tensile_worker") as worker:
        assert step(worker, 2) == {"events": 2}
        assert count(database, "jobs") == 3
        removed = steps(worker, 2)
    assert removed == {
        "events": before["job_events"] - 2,
        "plans": before["plans"],
        "metrics": before["metrics"],
        "jobs": before["jobs"],
        "workers": 1,
    }


def test_null_keeps_for_ever_and_a_job_that_is_not_over_keeps_its_present_plan(database: Database) -> None:
    finish(database, 2, age="9000 days")
    with database.connect("admin") as admin, database.connect("tensile_worker") as worker:
        for name in FOREVER:
            admin.execute("select tensile_set_setting(%s, 'null')", (name,))
        assert step(worker) == {}
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
        assert steps(worker) == {"plans": 4}
        assert worker.execute("select job_id, generation from tensile.plans").fetchall() == [(running, 3)]


def test_only_a_limit_removes_versions_and_never_the_deployed_one(database: Database) -> None:
    finish(database, 15)
    with database.connect("admin") as admin, database.connect("tensile_worker") as worker:
        with database.connect() as postgres:
            postgres.execute("update tensile.model_versions set deployed = number = 1 where deployed or number = 1")
        assert step(worker) == {}
        admin.execute("select tensile_set_setting('retain_versions', '2')")
        assert step(worker) == {"versions": 10}
        assert step(worker) == {"versions": 2}
        assert step(worker) == {}
        rows = worker.execute("select number, deployed from tensile.model_versions order by number").fetchall()
    assert rows == [(1, True), (14, False), (15, False)]
    assert count(database, "artifacts") == 3


def test_what_somebody_has_locked_is_left_for_later_and_stops_nothing(database: Database) -> None:
    finish(database, 2, age="100 days")
    with database.connect("tensile_worker") as worker, database.connect() as other:
        with other.transaction():
            other.execute("select from tensile.jobs order by job_id limit 1 for update")
            other.execute("select from tensile.job_events where job_id = 2 for update")
            assert steps(worker)["metrics"] == 4
            assert count(database, "jobs") == 2
        assert steps(worker)["jobs"] == 2
        assert count(database, "jobs") == 0


def test_only_workers_and_administrators_may_remove_and_only_by_the_function(database: Database) -> None:
    finish(database, 1, age="100 days")
    for role in ("alice", "monitor"):
        with database.connect(role) as connection, pytest.raises(InsufficientPrivilege):
            connection.execute("select tensile.vacuum_step(1)")
    with database.connect("tensile_worker") as worker, pytest.raises(InsufficientPrivilege):
        worker.execute("delete from tensile.jobs")
    with database.connect("admin") as admin:
        assert steps(admin)["jobs"] == 1


def test_all_settings_can_be_read_by_everybody_with_their_defaults(database: Database) -> None:
    with database.connect("admin") as admin, database.connect("alice") as alice:
        admin.execute("select tensile_set_setting('retain_jobs', '\"1 year\"')")
        read = "select name, value from tensile.setting_list where name in ('retain_jobs', 'retain_events')"
        assert alice.execute(read).fetchall() == [("retain_events", "30 days"), ("retain_jobs", "1 year")]
        admin.execute("select tensile_set_setting('retain_jobs', null)")
        assert alice.execute(read).fetchall() == [("retain_events", "30 days"), ("retain_jobs", "90 days")]


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
def test_a_value_that_is_none_is_refused_with_the_way_out(database: Database, name: str, value: str) -> None:
    with database.connect("admin") as admin:
        with pytest.raises(InvalidParameterValue, match=f'setting "{name}" is') as caught:
            admin.execute("select tensile_set_setting(%s, %s)", (name, value))
        assert f"tensile_set_setting('{name}'" in (caught.value.diag.message_hint or "")
        with pytest.raises(UndefinedObject):
            admin.execute("select tensile_set_setting('retain_nothing', '1')")


def test_finished_jobs_are_not_read_by_a_claim_a_beat_or_a_rescue(database: Database) -> None:
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
