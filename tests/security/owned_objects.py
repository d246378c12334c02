"""Create the objects of the attacked users: models, versions, jobs in every state, grants.

Every text in them starts with `secret_` and names its kind and owner, so that a test recognises it in any answer.
"""

from dataclasses import dataclass
from typing import Any

import psycopg

from indb_tensile.catalog import jobs, models, plans, ranks, stored_checkpoints
from indb_tensile.catalog.jobs import Progress
from indb_tensile.catalog.plans import DeviceUse, JobUse, PlanRecord
from indb_tensile.catalog.usage import JobUsage
from indb_tensile.errors import RequestError
from indb_tensile.job import ClaimedJob, JobId, WorkerId
from tests.catalog.enqueue import claim, enqueue, publication, register
from tests.conftest import Database

OWNER = "alice"
GRANTEE = "bob"
VICTIM = "dave"  # another owner, whose objects no attack names


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedObjects:
    """The ids of one user's objects, which attacks name."""

    model: str
    model_id: int
    version_id: int
    succeeded: JobId
    failed: JobId
    running: ClaimedJob
    queued: JobId
    worker: WorkerId


def create_owned_objects(database: Database, owner: str) -> OwnedObjects:
    """Create the objects of one attacked user with the catalog's own functions."""
    with database.connect() as postgres, database.connect("tensile_worker") as connection:
        postgres.execute(_ROLES)
        worker = register(connection)
        postgres.execute(f"set session authorization {owner}")
        ids = _create_objects(postgres, connection, worker, owner)
        if owner == OWNER:
            postgres.execute("select tensile_grant_model(%s, %s)", (ids["model"], GRANTEE))
        return OwnedObjects(worker=worker, **ids)


_ROLES = """
do $$ begin
  if not exists (select from pg_roles where rolname = 'dave') then create role dave login; end if;
  if not exists (select from pg_roles where rolname = 'stranger') then create role stranger login; end if;
end $$;
grant tensile_user to dave"""


def _create_objects(
    owner: psycopg.Connection[Any], connection: psycopg.Connection[Any], worker: WorkerId, name: str
) -> dict[str, Any]:
    model = f"secret_model_{name}"
    secret = {"columns": [f"secret_bundle_{name}"]}
    succeeded = _enqueue_and_claim(owner, connection, worker, model)
    fact = {"section": "target", "subject": f"secret_report_{name}", "fact": "rows", "value": "1", "warning": None}
    jobs.save_report(connection, succeeded.job, succeeded.claim, [fact])
    figures = {
        "confusion_matrix": {"rows": [[f"secret_classes_{name}", f"secret_classes_{name}", 1]]},
        "roc_curve": {"rows": [[f"secret_classes_{name}", [[0.5, 1, 1]]]]},
        "baseline": {"metrics": {"accuracy": 0.5}},
    }
    weights = f"secret_weights_{name}".encode()
    version_id = models.publish_version(
        connection, succeeded, publication(bundle=secret, weights=weights, figures=figures)
    )
    failed = _enqueue_and_claim(owner, connection, worker, model)
    jobs.fail(connection, failed.job, failed.claim, RequestError(f"secret_error_{name}"))
    running = _enqueue_and_claim(owner, connection, worker, model)
    jobs.start_running(connection, running.job, running.claim)
    progress = Progress(epoch=1, epochs=2, step=1, steps=3, loss=0.5, figures={f"secret_figure_{name}": 0.5})
    jobs.report_progress(connection, running.job, running.claim, progress)
    jobs.record_event(connection, running.job, running.claim, "noted", {"what": f"secret_event_{name}"})
    plans.record_plan(
        connection,
        running.job,
        running.claim,
        PlanRecord(generation=1, reason=f"secret_plan_{name}", policy="tensile"),
    )
    use = DeviceUse(
        kind="x", capacity_bytes=9, budget_bytes=9, granted_bytes=1, used_bytes=1, high_water_bytes=1, host_bytes=0
    )
    share = JobUse(job=running.job, granted_bytes=1, used_bytes=1, high_water_bytes=1)
    usage = JobUsage(job=running.job, device_s=1.0, byte_s=1.0, running_s=1.0)
    plans.record_device(connection, worker, use, [share], [usage])
    stored_checkpoints.save_checkpoint(
        connection,
        running.job,
        running.claim,
        [f"secret_state_{name}".encode()],
        {"epoch": f"secret_position_{name}"},
    )
    connection.execute(
        "insert into tensile.job_ranks (job_id, rank, worker_id, claim, state) values (%s, 0, %s, %s, 'training')",
        (running.job, worker, running.claim),
    )
    ranks.put_value(connection, running.job, running.claim, "secret", f"secret_rank_{name}".encode())
    queued = enqueue(owner, model, idempotency_key=f"secret_key_{name}")
    row = owner.execute("select model_id from tensile.models where name = %s", (model,)).fetchone()
    assert row is not None
    return {
        "model": model,
        "model_id": row[0],
        "version_id": version_id,
        "succeeded": succeeded.job,
        "failed": failed.job,
        "running": running,
        "queued": queued,
    }


def _enqueue_and_claim(
    owner: psycopg.Connection[Any], connection: psycopg.Connection[Any], worker: WorkerId, model: str
) -> ClaimedJob:
    enqueue(owner, model, priority=1)
    return claim(connection, worker)
