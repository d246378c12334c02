"""Train in end-to-end tests, and observe the jobs, the controller's processes and the device."""

import hashlib
import json
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql

if TYPE_CHECKING:
    from tests.e2e.conftest import Service  # whose fixtures train

WIDE = '{"type": "mlp", "hidden": [512, 512, 512], "dropout": 0.2}'


def train(
    demo: psycopg.Connection, model: str, table: str, *, architecture: str = WIDE, **hyperparams: object
) -> int:
    settings = {"epochs": 3, "batch_size": 128, "seed": 7} | hyperparams
    row = demo.execute(
        "select tensile_train(%s, %s::regclass, architecture => %s, hyperparams => %s)",
        (model, table, architecture, json.dumps(settings)),
    ).fetchone()
    assert row is not None
    return int(row[0])


def load(demo: psycopg.Connection, *names: str) -> None:
    for name in names:
        demo.execute("select tensile_load_dataset(%s)", (name,))


def weights(service: "Service", job: int) -> str:
    """Return a digest of a job's published weights. The job must have published exactly one version."""
    rows = service.connection.execute(
        "select chunk from tensile.artifacts join tensile.model_versions using (version_id)"
        " where model_versions.job_id = %s order by chunk_no",
        (job,),
    ).fetchall()
    versions = service.value("select count(*) from tensile.model_versions where job_id = %s", job)
    assert versions == 1
    return hashlib.sha256(b"".join(row[0] for row in rows)).hexdigest()


def check_same_bits_after_a_kill(service: "Service", calm: int, killed: int) -> None:
    """Kill the trainers once the job `killed` trains its second epoch. Check that both jobs publish the same bits."""
    wait_until_training(service, killed, 2)
    for trainer in child_pids(service, "tensile trainer"):
        os.kill(trainer, signal.SIGKILL)
    assert service.until_ended(calm, killed) == ["succeeded"] * 2, service.log.read_text()
    check_killed_without_fault(service, killed)
    assert weights(service, calm) == weights(service, killed)


def check_killed_without_fault(service: "Service", job: int) -> None:
    """Check that the job's trainer was killed, and that no attempt ended by a fault of the job.

    A busy machine may disturb a job once more, so the number of attempts says less.
    """
    ends = service.connection.execute(
        "select detail ->> 'reason', (detail -> 'counts')::boolean from tensile.job_events"
        " where job_id = %s and kind = 'interrupted' order by event_id",
        (job,),
    ).fetchall()
    killed = f"an attempt of job {job} was interrupted: its trainer was killed by signal 9 from outside"
    assert killed in [reason for reason, _ in ends], ends
    assert not any(counts for _, counts in ends), ends


def child_pids(service: "Service", name: str) -> list[int]:
    """Return the ids of the controller's child processes with this name."""
    assert service.process is not None
    return [pid for pid, parent, process_name in processes() if (parent, process_name) == (service.process.pid, name)]


def processes() -> Iterator[tuple[int, int, str]]:
    """Yield the process id, the parent's id and the name of every running process."""
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError):  # the process has ended
            before, after = (path / "stat").read_text().rsplit(")", 1)
            yield int(path.name), int(after.split()[1]), before.partition("(")[2]


def wait_until_training(service: "Service", job: int, epochs: int = 1) -> None:
    """Wait until the job has finished this number of epochs, and check that it still runs."""
    service.until(
        lambda: (service.value("select epoch from tensile.job_progress where job_id = %s", job) or 0) > epochs,
        f"job {job} to train",
    )
    assert service.state(job) == "running"


def device_columns(service: "Service", *columns: str) -> tuple[int, ...] | None:
    """Return these columns of the running worker's device in the catalog."""
    return service.connection.execute(
        sql.SQL(
            "select {} from tensile.devices as d join tensile.workers as w using (worker_id)"
            " where w.stopped_at is null order by w.worker_id desc limit 1"
        ).format(sql.SQL(", ").join(sql.Identifier("d", column) for column in columns))
    ).fetchone()


def device_is_free(service: "Service") -> bool:
    """Return whether no memory of the worker's device is granted or in use."""
    return device_columns(service, "granted_bytes", "used_bytes") == (0, 0)
