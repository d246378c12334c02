"""Fixtures: a real controller with its trainers and its service, on a fresh database of the test cluster."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from indb_tensile.cluster import Cluster
from tests.conftest import Database, fresh_database
from tests.e2e.trainings import load, train
from tests.open_directory import open_directory

DEADLINE_S = 400.0  # enough on a busy machine, and below the suite's own limit
MIB = 1024 * 1024


@dataclass(slots=True, kw_only=True)
class Service:
    """One controller on one database. Tests start, stop and kill it, and read its catalog."""

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
        """The log file of the controller, its trainers and its service."""
        return self.directory / "controller.log"

    def start(self) -> None:
        """Start the controller and wait until it is registered and its service answers."""
        self.process = self.spawn({})
        pid = self.process.pid
        self.until(
            lambda: self.value("select service_name from tensile.workers where pid = %s and stopped_at is null", pid),
            "the controller and its service to be ready",
        )

    def spawn(self, settings: dict[str, str]) -> subprocess.Popen[bytes]:
        """Start a controller with these settings besides the service's. The caller ends it."""
        with self.log.open("a") as log:
            return subprocess.Popen(
                [sys.executable, *self.command],
                env=os.environ | self.settings | settings,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def stop(self) -> int:
        """End the controller as a service manager does; return its exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=60)

    def kill(self) -> None:
        """Kill the controller with SIGKILL."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def reconnect(self) -> None:
        """Open the test's own connection again, after a restart of the database."""
        self.connection.close()
        self.connection = self.database.connect("postgres")

    def value(self, statement: str, *arguments: object) -> Any:
        """Return the first column of the statement's first row, as a superuser; None if there is no row.

        Connect again if another test has restarted the server, which all tests of this process share.
        """
        try:
            row = self.connection.execute(statement.encode(), arguments).fetchone()
        except psycopg.OperationalError:
            if not self.connection.broken:
                raise
            self.reconnect()
            row = self.connection.execute(statement.encode(), arguments).fetchone()
        return None if row is None else row[0]

    def state(self, job: int) -> str:
        """The job's state."""
        return str(self.value("select state from tensile.jobs where job_id = %s", job))

    def until(self, condition: Callable[[], Any], event: str, deadline_s: float = DEADLINE_S) -> Any:
        """Poll until the condition is true, and return its value. If it does not become true, fail with the end of
        the log.
        """
        deadline = time.monotonic() + deadline_s
        while not (value := condition()):
            if time.monotonic() > deadline or (self.process is not None and self.process.poll() is not None):
                tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-60:])
                raise AssertionError(f"waited for {event}; the controller's log ends with:\n{tail}")
            time.sleep(0.02)
        return value

    def until_ended(self, *jobs: int) -> list[str]:
        """Wait until every job has ended; return their states."""
        ended = {"succeeded", "failed", "cancelled"}
        self.until(lambda: all(self.state(job) in ended for job in jobs), f"jobs {jobs} to end")
        return [self.state(job) for job in jobs]


BUDGET_BYTES = 24 * MIB  # of the controller of the session: too little for three trainings without planning


@pytest.fixture(scope="session")
def running(cluster: Cluster, template: str) -> Iterator[Service]:
    """One running controller for the tests of all modules that need no settings of their own, because a controller
    takes seconds to start. These modules run in one process (tests/scopes.py).

    `demo` has the tables digits, breast_cancer and diabetes. Tests change the budget in the configuration file.
    """
    with running_service(cluster, template) as service:
        yield service


@contextlib.contextmanager
def running_service(cluster: Cluster, template: str) -> Iterator[Service]:
    """Yield the same as the fixture `running`, with a controller and a database of its own."""
    with fresh_database(cluster, template) as database, service_on(database) as service:
        config = service.directory / "settings.toml"
        service.settings |= {
            "TENSILE_CAPACITY_BYTES": str(BUDGET_BYTES),
            "TENSILE_SPARE_TRAINERS": "3",
            "TENSILE_CONFIG": str(config),
            "TENSILE_SHARING": "any_price",  # small jobs share the device here that would be done sooner in turns
        }
        config.write_text(f"budget_bytes = {BUDGET_BYTES}\n")
        service.start()
        with database.connect("demo") as demo:
            load(demo, "digits", "breast_cancer", "diabetes")
        yield service


UNDISTURBED_EPOCHS = 12


@pytest.fixture(scope="session")
def undisturbed(running: Service) -> int:
    """An undisturbed training on digits, with dropout."""
    with running.database.connect("demo") as demo:
        job = train(demo, "undisturbed", "digits", epochs=UNDISTURBED_EPOCHS)
        assert running.until_ended(job) == ["succeeded"]
    return job


@pytest.fixture
def service(database: Database) -> Iterator[Service]:
    """A controller with an emulated device of 64 MB. The test starts it, and the fixture ends it."""
    with service_on(database) as service:
        yield service


@contextlib.contextmanager
def service_on(database: Database) -> Iterator[Service]:
    """Yield the same as the fixture `service`, on any database."""
    with open_directory("suite-e2e-") as directory, _service_in(directory, database) as service:
        yield service


@contextlib.contextmanager
def _service_in(directory: Path, database: Database) -> Iterator[Service]:
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
        "TENSILE_BASELINE": "false",
    }
    service = Service(database=database, directory=directory, settings=settings)
    try:
        yield service
    finally:
        if service.process is not None and service.process.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                service.stop()
            if service.process.poll() is None:
                service.kill()
        service.connection.close()
