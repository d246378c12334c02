"""Train and publish a model with rows in every table of jobs and models, grant it, and count its rows, in tests."""

from typing import Any

import psycopg

from indb_tensile.catalog import jobs, models, plans
from indb_tensile.catalog.jobs import Progress
from indb_tensile.catalog.plans import DeviceUse, JobUse, PlanRecord
from indb_tensile.job import ModelVersionId
from tests.catalog.enqueue import claim, enqueue, publication, register
from tests.conftest import Database

JOB_TABLES = ("jobs", "job_progress", "job_events", "metrics", "plans", "device_jobs", "data_reports")

MODEL_TABLES = ("models", "model_versions", "version_bundles", "version_figures", "artifacts")

REPORT = [{"section": "rows", "subject": None, "fact": "read", "value": "9", "warning": None}]


def train_model(database: Database) -> ModelVersionId:
    """Train and publish one model of alice, with a row in every table that belongs to a job or a model."""
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
        jobs.save_report(connection, claimed.job, claimed.claim, REPORT)
        return models.publish_version(connection, claimed, publication())


def count_rows(connection: psycopg.Connection[Any], table: str) -> int:
    row = connection.execute(f"select count(*) from tensile.{table}").fetchone()
    assert row is not None
    return int(row[0])


def grant_model(connection: psycopg.Connection[Any], role: str) -> None:
    connection.execute(
        "insert into tensile.model_privileges (model_id, grantee_oid, grantee_name)"
        " select 1, oid, rolname from pg_roles where rolname = %s",
        (role,),
    )
