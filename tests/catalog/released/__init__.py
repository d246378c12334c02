"""Catalogs as releases installed them, and what their users had in them.

`0.1.0.sql` is the script of that release; `0.1.0-dump.sql` is what its extension ran after it.
"""

from pathlib import Path
from typing import Any

import psycopg
from psycopg.types.json import Jsonb

from indb_tensile.catalog.install import EXTENSION

_HERE = Path(__file__).parent


def script(version: str) -> str:
    """What `tensile init` of that release ran."""
    return (_HERE / f"{version}.sql").read_text(encoding="utf-8")


def write_extension(directory: Path, version: str) -> None:
    """The extension's script of that release, beside the control file of the present one."""
    dump = (_HERE / f"{version}-dump.sql").read_text(encoding="utf-8")
    path = directory / f"tensile--{version}.sql"
    path.write_text(f"{script(version)}\n{dump}", encoding="utf-8")
    path.chmod(0o644)


def install(connection: psycopg.Connection[Any], version: str, way: str) -> None:
    """Install that release, as it did itself."""
    if way == EXTENSION:
        connection.execute(f"create extension tensile version '{version}' cascade".encode())
        return
    with connection.transaction():
        connection.execute("set local search_path = pg_catalog, pg_temp")
        connection.execute("set local check_function_bodies = off")
        connection.execute("set local client_min_messages = warning")
        connection.execute("create extension if not exists plpython3u")
        connection.execute(script(version).encode())


def add_job(connection: psycopg.Connection[Any], model: str, **columns: Any) -> int:
    """A job of 0.1.0; `columns` are further columns of `tensile.jobs`, `spec` further keys of its request."""
    spec = {
        "model": model,
        "relation": {"oid": 1, "schema": "public", "name": "t"},
        "target": "y",
        "task": "regression",
        "architecture": {"type": "mlp"},
    }
    values = {
        "model_name": model,
        "relation_oid": 1,
        "relation_schema": "public",
        "relation_name": "t",
        "spec": Jsonb(spec | columns.pop("spec", {})),
        **columns,
    }
    names, places = ", ".join(values), ", ".join(f"%({name})s" for name in values)
    insert = f"insert into tensile.jobs ({names}) values ({places}) returning job_id"
    return int(_only(connection, insert, values))


def add_worker(connection: psycopg.Connection[Any], service: str | None = None) -> int:
    """A controller of 0.1.0 that is alive."""
    insert = """
        insert into tensile.workers (host, pid, device, version, service_name, lease_s)
        values ('host', 1, 'emulated:test', '0.1.0', %(service)s, 30) returning worker_id
        """
    return int(_only(connection, insert, {"service": service}))


def claim(connection: psycopg.Connection[Any], worker: int, job: int) -> None:
    """The controller takes this job and trains it."""
    connection.execute(
        "update tensile.jobs set state = 'starting', attempt = attempt + 1, worker_id = %s,"
        " claim = nextval('tensile.claim_seq'), started_at = now() where job_id = %s",
        (worker, job),
    )
    connection.execute("update tensile.jobs set state = 'running', phase = 'training' where job_id = %s", (job,))


def publish(connection: psycopg.Connection[Any], job: int, weights: list[bytes]) -> int:
    """The job succeeds and has a version with a bundle and these chunks of weights."""
    model = _only(
        connection,
        """insert into tensile.models (name, owner_oid, owner_name, installation, last_spec)
           select model_name, owner_oid, owner_name, installation, spec from tensile.jobs where job_id = %(job)s
               on conflict (name) do update set last_spec = excluded.last_spec returning model_id""",
        {"job": job},
    )
    version = _only(
        connection,
        """insert into tensile.model_versions
             (model_id, number, job_id, task, target, architecture, bundle, metric_name, metric, higher_is_better,
              metrics, parameters, weights_bytes, relation_oid, relation_schema, relation_name, data_digest, deployed)
           values (%(model)s, 1, %(job)s, 'regression', 'y', '{"type": "mlp"}', '{"columns": ["a"]}', 'r2', 0.5, true,
                   '{"r2": 0.5}', 7, %(bytes)s, 1, 'public', 't', 'digest', true) returning version_id""",
        {"model": model, "job": job, "bytes": sum(map(len, weights))},
    )
    for number, chunk in enumerate(weights):
        connection.execute(
            "insert into tensile.artifacts (version_id, chunk_no, chunk) values (%s, %s, %s)",
            (version, number, chunk),
        )
    connection.execute(
        "update tensile.jobs set state = 'succeeded', phase = null, worker_id = null, finished_at = now(),"
        " version_id = %s where job_id = %s",
        (version, job),
    )
    return int(version)


def save_checkpoint(connection: psycopg.Connection[Any], job: int) -> None:
    """A checkpoint of two chunks, as 0.1.0 kept it."""
    connection.execute("insert into tensile.checkpoints (job_id, position, size_bytes) values (%s, '{}', 2)", (job,))
    connection.execute(
        "insert into tensile.artifacts (job_id, chunk_no, chunk) values (%(job)s, 0, 'a'), (%(job)s, 1, 'b')",
        {"job": job},
    )


def _only(connection: psycopg.Connection[Any], statement: str, values: dict[str, Any]) -> Any:
    row = connection.execute(statement.encode(), values).fetchone()
    assert row is not None
    return row[0]
