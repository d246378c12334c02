"""Create jobs that ended some time ago, and count rows of the catalog, in tests."""

from indb_tensile.catalog import jobs, models
from indb_tensile.catalog.jobs import Progress
from tests.catalog.enqueue import claim, enqueue, publication, register
from tests.conftest import Database


def count_rows(database: Database, table: str) -> int:
    with database.connect() as connection:
        row = connection.execute(f"select count(*) from tensile.{table}".encode()).fetchone()
    assert row is not None
    return int(row[0])


def publish_jobs(database: Database, count: int, *, age: str = "0 days") -> None:
    """Create jobs of this age that published a version each, with progress, metrics, events and a plan."""
    with database.connect("alice") as alice, database.connect("tensile_worker") as worker:
        number = register(worker)
        for _ in range(count):
            enqueue(alice)
            claimed = claim(worker, number)
            progress = Progress(epoch=1, epochs=1, step=1, steps=1, figures={"loss": 1.0, "accuracy": 0.5})
            jobs.report_progress(worker, claimed.job, claimed.claim, progress)
            models.publish_version(worker, claimed, publication(incumbent=models.deployed_version(worker, "m")))
        jobs.leave(worker, number)
    with database.connect() as postgres, postgres.transaction():
        # No triggers, so that the changes record no events.
        postgres.execute("set local session_replication_role = replica")
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
