"""Run a real controller process with fake trainers in tests, and look at its catalog."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import psycopg

from indb_tensile.config import Settings
from tests.conftest import Database
from tests.controller.fakes import FAKE_TRAINER, alive
from tests.controller.waiting import until
from tests.remains import processes_with

ROOT = Path(__file__).parents[2]
# The real controller process with fake trainers. Everything else is as a user starts it.
PROGRAM = (
    "import os, sys\n"
    "os.environ.pop('LD_PRELOAD', None)\n"  # a test preloads a library only into the controller
    "from indb_tensile.worker import controller\n"
    f"controller.TRAINER = {FAKE_TRAINER!r}\n"
    "sys.exit(controller.main())\n"
)


@contextmanager
def controller(
    database: Database, *, output: IO[str] | None = None, **settings: Any
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a controller process. Its log goes to `output`, or else to the test's own standard error."""
    values: dict[str, Any] = {
        "dsn": database.dsn("tensile_worker"),
        "device": "emulated",
        "capacity_bytes": 64 << 20,
        "budget_bytes": 64 << 20,
        "link_out_bytes_per_s": 400_000_000,
        "link_in_bytes_per_s": 400_000_000,
        "beat_s": 0.1,
        "poll_s": 0.2,
        "lease_s": 1.5,
        "spare_trainers": 1,
        "stop_grace_s": 1.0,
        "survey_s": 0.0,
    }
    values |= settings
    environment = os.environ | Settings(**values).environment()
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    process = subprocess.Popen([sys.executable, "-c", PROGRAM], env=environment, cwd=ROOT, stderr=output)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        until(lambda: not [pid for pid in processes_with(f"TENSILE_DSN={values['dsn']}\0") if alive(pid)])


def enqueue(connection: psycopg.Connection, behaviour: str, size_bytes: int = 1 << 20) -> int:
    """Enqueue a job like tensile_train() does. The fake trainer never reads the job's table."""
    row = connection.execute(
        """
        with r as (select 'tensile.settings'::regclass::oid as oid)
        insert into tensile.jobs (model_name, relation_oid, relation_schema, relation_name, spec)
        select %(model)s, r.oid, 'tensile', 'settings', jsonb_build_object(
                 'model', %(model)s::text, 'target', 'y', 'task', 'regression',
                 'architecture', '{"type": "mlp"}'::jsonb,
                 'hyperparams', jsonb_build_object('size_bytes', %(size)s::bigint),
                 'relation', jsonb_build_object('oid', r.oid::bigint, 'schema', 'tensile', 'name', 'settings'))
          from r returning job_id
        """,
        {"model": behaviour, "size": size_bytes},
    ).fetchone()
    assert row is not None
    return int(row[0])


def scalar(connection: psycopg.Connection, query: Any, *values: Any) -> Any:
    row = connection.execute(query, values).fetchone()
    return None if row is None else row[0]


def count_adoptions(connection: psycopg.Connection, job: int, attempt: int = 1) -> Any:
    query = "select count(*) from tensile.plans where job_id = %s and attempt = %s and adopted_at is not null"
    return scalar(connection, query, job, attempt)


def children_of(process: subprocess.Popen[bytes]) -> list[int]:
    text = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    return [int(pid) for pid in text.split()]
