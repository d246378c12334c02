"""Insert jobs like tensile_train does, register workers, and claim jobs, in tests."""

from typing import Any

import psycopg
from psycopg.types.json import Jsonb

from indb_tensile.catalog import jobs
from indb_tensile.catalog.models import Publication
from indb_tensile.job import ClaimedJob, JobId, Task, WorkerId

LEASE_S = 30.0


def enqueue(connection: psycopg.Connection[Any], model: str = "m", **columns: Any) -> JobId:
    """Insert one queued job of the connection's role. `columns` are further columns of `tensile.jobs`."""
    spec = columns.pop("spec", {})
    values = {
        "model_name": model,
        "relation_oid": 1,
        "relation_schema": "public",
        "relation_name": "t",
        "spec": Jsonb(specification(model) | spec),
        **columns,
    }
    names = ", ".join(values)
    places = ", ".join(f"%({name})s" for name in values)
    row = connection.execute(
        f"insert into tensile.jobs ({names}) values ({places}) returning job_id", values
    ).fetchone()
    assert row is not None
    return JobId(row[0])


def specification(model: str) -> dict[str, Any]:
    """Return the smallest valid specification of a job."""
    return {
        "model": model,
        "relation": {"oid": 1, "schema": "public", "name": "t"},
        "target": "y",
        "task": "regression",
        "architecture": {"type": "mlp"},
    }


def register(connection: psycopg.Connection[Any], *, lease_s: float = LEASE_S) -> WorkerId:
    """Register a worker."""
    return jobs.register_worker(connection, host="host", pid=1, device_kind="emulated:test", lease_s=lease_s)


def claim(connection: psycopg.Connection[Any], worker: WorkerId) -> ClaimedJob:
    """Claim the next job. There must be a job."""
    claimed = jobs.claim_job(connection, worker)
    assert isinstance(claimed, ClaimedJob)
    return claimed


def claim_or_fail(connection: psycopg.Connection[Any], worker: WorkerId) -> ClaimedJob | None:
    """Claim the next job. None if there is no job, or if its specification is unreadable; then the job is failed."""
    claimed = jobs.claim_job(connection, worker)
    if isinstance(claimed, jobs.UnreadableJob):
        jobs.fail(connection, claimed.job, claimed.claim, claimed.error)
        return None
    assert not isinstance(claimed, jobs.DeferredJob)
    return claimed


def publication(**changes: Any) -> Publication:
    """Return a publication with a few bytes of weights."""
    values: dict[str, Any] = {
        "task": Task.REGRESSION,
        "target": "y",
        "architecture": {"type": "mlp"},
        "bundle": {"columns": ["a"]},
        "weights": b"weights",
        "parameters": 7,
        "metric_name": "r2",
        "metric": 0.5,
        "higher_is_better": True,
        "metrics": {"r2": 0.5},
        "figures": {"confusion_matrix": {"rows": [["a", "b", 1]]}},
    }
    return Publication(**(values | changes))


def state(connection: psycopg.Connection[Any], job: JobId) -> str:
    """Return the job's state, as the connection's role sees it."""
    row = connection.execute("select state::text from tensile.jobs where job_id = %s", (job,)).fetchone()
    assert row is not None
    return str(row[0])


def rows_read(connection: psycopg.Connection[Any]) -> int:
    """Return how many rows of `tensile.jobs` this transaction has read."""
    row = connection.execute(
        "select seq_tup_read + idx_tup_fetch from pg_stat_xact_user_tables where relid = 'tensile.jobs'::regclass"
    ).fetchone()
    assert row is not None
    return int(row[0])
