"""Check that housekeeping runs every step, also after another step has failed, and what its steps remove."""

import os
import socket
import threading
from pathlib import Path

import pytest

from indb_tensile.catalog import jobs, models, stored_checkpoints
from indb_tensile.catalog.checkpoint_files import CheckpointFiles
from indb_tensile.catalog.stored_checkpoints import StoredCheckpoint
from indb_tensile.controller.housekeeping import CatalogSteps, Housekeeping, HousekeepingStep, steps
from indb_tensile.errors import StorageError
from indb_tensile.job import CheckpointStore
from tests.catalog.enqueue import claim, enqueue, publication, register
from tests.conftest import Database
from tests.controller.waiting import until

DEADLINE_S = 60.0


def test_failing_step_is_logged_once_and_stops_no_other_step(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rounds = threading.Semaphore(0)

    def fail() -> str:
        raise StorageError("the disk is full")

    def work() -> str:
        rounds.release()
        return ""

    housekeeping = Housekeeping(
        [HousekeepingStep(name="broken", do=fail), HousekeepingStep(name="sound", do=work)], period_s=0.0
    )
    try:
        for _ in range(3):
            assert rounds.acquire(timeout=DEADLINE_S)
    finally:
        housekeeping.close()
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warnings == ["housekeeping, broken: the disk is full"]


@pytest.mark.postgres
def test_files_of_ended_jobs_old_rows_and_long_logs_are_removed(database: Database, tmp_path: Path) -> None:
    host = socket.gethostname()
    with database.connect("alice") as alice, database.connect("tensile_worker") as worker:
        files = CheckpointFiles(tmp_path, stored_checkpoints.installation(worker), host)
        number, digests = register(worker), []
        for _ in range(2):
            enqueue(alice)
            claimed = claim(worker, number)
            digests.append(files.write(claimed.job, [b"state"]).digest)
            stored = StoredCheckpoint(
                store=CheckpointStore.LOCAL, host=host, position={}, size_bytes=5, digest=digests[-1]
            )
            stored_checkpoints.record_checkpoint(worker, claimed.job, claimed.claim, stored)
            if claimed.job == 1:
                jobs.start_running(worker, claimed.job, claimed.claim)
                models.publish_version(worker, claimed, publication())
    for path in files.directory.iterdir():
        os.utime(path, (1, 1))
    with database.connect() as postgres:
        postgres.execute("update tensile.jobs set finished_at = now() - interval '1 year' where job_id = 1")
        (tmp_path / "controller.log").write_bytes(b"x" * 5000)
        (tmp_path / "postgres.log").write_bytes(b"y" * 10)

        chores = CatalogSteps(database.dsn("tensile_worker"))
        housekeeping_steps = steps(
            chores,
            state_directory=tmp_path,
            service_directory=None,
            host=host,
            log_bytes=4096,
            log_files=2,
            call_steward=lambda: None,
        )
        housekeeping = Housekeeping(housekeeping_steps)
        try:
            until(
                lambda: (tmp_path / "controller.log.1").exists() and not (tmp_path / "controller.log").stat().st_size
            )
        finally:
            housekeeping.close()
            chores.close()

        assert postgres.execute("select job_id from tensile.jobs").fetchall() == [(2,)]
    assert [path.name for path in files.directory.iterdir()] == [f"job-2-{digests[1]}.ckpt"]
    assert sorted(path.name for path in tmp_path.glob("*.log*")) == [
        "controller.log",
        "controller.log.1",
        "postgres.log",
    ]


@pytest.mark.postgres
def test_snapshots_of_ended_jobs_are_dropped(database: Database, tmp_path: Path) -> None:
    with database.connect("alice") as alice:
        alice.execute("create table t as select i as x, i % 3 as y from generate_series(1, 30) as i")
        cancelled_job, running_job = (
            alice.execute("select tensile_train(%s, 't', target => 'y', snapshot => true)", (model,)).fetchone()
            for model in ("a", "b")
        )
        assert cancelled_job is not None
        assert running_job is not None
        alice.execute("select tensile_cancel(%s)", cancelled_job)
        chores = CatalogSteps(database.dsn("tensile_worker"))
        housekeeping_steps = steps(
            chores,
            state_directory=tmp_path,
            service_directory=None,
            host="here",
            log_bytes=4096,
            log_files=2,
            call_steward=lambda: None,
        )
        try:
            step = next(step for step in housekeeping_steps if step.name == "snapshots")
            assert [step.do(), step.do()] == ["dropped 1", ""]
        finally:
            chores.close()
        assert alice.execute("select job_id from tensile.snapshots").fetchall() == [running_job]
