"""A real controller with its trainers and its service on a fresh database of the suite's cluster."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.conftest import Database

DEADLINE_S = 400.0  # on a machine that is busy with other work; below the suite's own limit
MIB = 1024 * 1024


@dataclass(slots=True, kw_only=True)
class Service:
    """One controller on one database, and what tests do to it."""

    database: Database
    directory: Path
    settings: dict[str, str]
    command: list[str] = field(default_factory=lambda: ["-m", "indb_tensile.worker.controller"])
    process: subprocess.Popen[bytes] | None = None
    connection: psycopg.Connection = field(init=False)

    def __post_init__(self) -> None:
        self.connection = self.database.connect("postgres")
        self.connection.execute(
            "insert into tensile.settings (name, value) values ('socket_directory', %s)",
            (Jsonb(str(self.directory / "service")),),
        )

    @property
    def log(self) -> Path:
        """Where the controller, its trainers and its service write."""
        return self.directory / "controller.log"

    def start(self) -> None:
        """Start the controller and wait until it beats and its service answers."""
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, *self.command],
                env=os.environ | self.settings,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        pid = self.process.pid
        self.until(
            lambda: self.value("select service_name from tensile.workers where pid = %s and stopped_at is null", pid),
            "the controller and its service to be ready",
        )

    def stop(self) -> int:
        """End the controller as a service manager does; return its exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=60)

    def kill(self) -> None:
        """Kill the controller as nothing can prepare for."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def reconnect(self) -> None:
        """Open the test's own connection anew after the database was restarted."""
        self.connection.close()
        self.connection = self.database.connect("postgres")

    def value(self, statement: str, *arguments: object) -> Any:
        """The first column of the first row, as a superuser; None where there is no row."""
        row = self.connection.execute(statement.encode(), arguments).fetchone()
        return None if row is None else row[0]

    def state(self, job: int) -> str:
        """The job's state."""
        return str(self.value("select state from tensile.jobs where job_id = %s", job))

    def until(self, condition: Callable[[], Any], what: str, deadline_s: float = DEADLINE_S) -> Any:
        """Poll until the condition holds and return what it returned; fail with the log's end otherwise."""
        deadline = time.monotonic() + deadline_s
        while not (found := condition()):
            if time.monotonic() > deadline or (self.process is not None and self.process.poll() is not None):
                tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-60:])
                raise AssertionError(f"waited for {what}; the controller's log ends with:\n{tail}")
            time.sleep(0.02)
        return found

    def until_ended(self, *jobs: int) -> list[str]:
        """Wait until every job has ended; return their states."""
        ended = {"succeeded", "failed", "cancelled"}
        self.until(lambda: all(self.state(job) in ended for job in jobs), f"jobs {jobs} to end")
        return [self.state(job) for job in jobs]


@pytest.fixture
def service(database: Database) -> Iterator[Service]:
    """A controller that is started by the test, with an emulated device of 64 MB, and surely gone afterwards."""
    with service_on(database) as made:
        yield made


@contextlib.contextmanager
def service_on(database: Database) -> Iterator[Service]:
    """As the fixture, on a database of the test's own."""
    directory = Path(tempfile.mkdtemp(prefix="tensile-e2e-"))
    directory.chmod(0o755)
    (directory / "service").mkdir()
    settings = {
        "TENSILE_DSN": database.dsn("tensile_worker"),
        "TENSILE_SERVICE_DIRECTORY": str(directory / "service"),
        "TENSILE_STATE_DIR": str(directory),
        "TENSILE_DEVICE": "emulated",
        "TENSILE_CAPACITY_BYTES": str(64 * MIB),
        "TENSILE_LINK_OUT_BYTES_PER_S": "400000000",
        "TENSILE_LINK_IN_BYTES_PER_S": "400000000",
        "TENSILE_LEASE_S": "8",
        "TENSILE_BEAT_S": "0.2",
        "TENSILE_POLL_S": "0.2",
        "TENSILE_SPARE_TRAINERS": "1",
        "TENSILE_CHECKPOINT_S": "0",
        "TENSILE_SURVEY_S": "0",
    }
    made = Service(database=database, directory=directory, settings=settings)
    try:
        yield made
    finally:
        if made.process is not None and made.process.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                made.stop()
            if made.process.poll() is None:
                made.kill()
        made.connection.close()
        shutil.rmtree(directory)
