"""Fixtures: a service process, started like a controller starts it, and a real database with a published model."""

import os
import signal
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import pytest
from psycopg.types.json import Jsonb

from indb_tensile.catalog import jobs, models, snapshots
from indb_tensile.catalog.connection import connect
from indb_tensile.catalog.models import Publication
from indb_tensile.catalog.reader_connection import open_reader
from indb_tensile.cluster import Cluster
from indb_tensile.controller.fork_client import ForkedProcess, ForkServer
from indb_tensile.job import ClaimedJob, ModelVersionId, WorkerId
from indb_tensile.learning.models.model_predictor import ModelPredictor
from indb_tensile.learning.training.preparation import prepare
from indb_tensile.learning.training.prepared_training import Prepared
from tests.conftest import Database, fresh_database
from tests.learning.tables import bundle
from worker.serving.identity import DatabaseIdentity, read_identity, socket_name

from .fakes import DEADLINE_S, Client, wait_until

MODULE = "indb_tensile.worker.service"

ENVIRONMENT = {"PATH": os.environ["PATH"], "PYTHONPATH": str(Path(__file__).resolve().parents[2])}


@dataclass(slots=True)
class Service:
    """A service process of a registered worker, and clients of it."""

    database: Database
    directory: Path
    worker: WorkerId
    log: Path
    forks: ForkServer
    peer_uid: int | None = None
    process: ForkedProcess | None = None
    more: Mapping[str, str] = field(default_factory=dict)  # further settings, by their variables

    @property
    def socket(self) -> Path:
        return self.directory / f"{socket_name(self.identity.installation, self.worker)}.sock"

    @property
    def identity(self) -> DatabaseIdentity:
        with connect(self.database.dsn(), application_name="test") as connection:
            return read_identity(connection)

    @property
    def settings(self) -> dict[str, str]:
        return {
            "TENSILE_DSN": self.database.dsn(user="tensile_worker"),
            "TENSILE_SERVICE_DIRECTORY": str(self.directory),
            **{
                f"TENSILE_LINK_{way}_BYTES_PER_S": "400000000" for way in ("OUT", "IN")
            },  # a controller passes these settings to its service
            "TENSILE_DEVICE": "emulated",
            "TENSILE_TORCH_THREADS": "1",
            "TENSILE_WORKER_ID": str(self.worker),
            "TENSILE_SERVICE_PEER_UID": "" if self.peer_uid is None else str(self.peer_uid),
            **self.more,
        }

    def run(self, peer_uid: int | None) -> None:
        """Start the service, unless it already runs, so that it answers clients of this user."""
        if self.process is None or self.peer_uid != peer_uid:
            self.stop()
            self.peer_uid = peer_uid
            self.start()

    def start(self) -> None:
        self.socket.unlink(missing_ok=True)  # a killed service leaves its socket file
        with redirect_standard_error(self.log):  # the fork server and its children inherit it
            self.process = self.forks.ask(MODULE, environment=self.settings, descriptors={})
        wait_until(self.answers)
        wait_until(self.is_announced)

    def is_announced(self) -> bool:
        """Whether sessions find the service in the catalog, where it writes its name once its socket exists."""
        with self.database.connect() as connection:
            statement = "select service_name is not null from tensile.workers where worker_id = %s"
            return connection.execute(statement, [self.worker]).fetchone() == (True,)

    def answers(self) -> bool:
        self.forks.receive()
        assert self.process is not None
        assert not self.process.failed, self.log.read_text()
        assert self.process.pid is None or not self.process.ended(), self.log.read_text()
        return self.process.pid is not None and self.socket.exists()

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int | None:
        if self.process is None:
            return None
        process, self.process = self.process, None
        assert process.pid is not None
        os.kill(process.pid, number)
        assert process.ended(DEADLINE_S)
        return process.reap()

    def client(self) -> Client:
        return Client(self.socket, self.identity)


@pytest.fixture(scope="module")
def database(cluster: Cluster, template: str) -> Iterator[Database]:
    """One database for all tests of a module, because a service takes seconds to start."""
    with fresh_database(cluster, template) as database:
        yield database


@dataclass(frozen=True, slots=True, kw_only=True)
class Forks:
    """A fork server, and the file to which it and the services that it forks write their messages."""

    server: ForkServer
    log: Path


@pytest.fixture(scope="session")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    """The fork server of all modules with a service, because it takes seconds to import torch."""
    with closing(ForkServer(ENVIRONMENT)) as server:
        yield Forks(server=server, log=tmp_path_factory.mktemp("service") / "service.log")


@pytest.fixture(scope="module")
def _service(database: Database, forks: Forks) -> Iterator[Service]:
    with registered_service(database, forks) as service:
        yield service


@contextmanager
def registered_service(database: Database, forks: Forks) -> Iterator[Service]:
    """Yield a service with a directory of its own, which is not started yet."""
    with tempfile.TemporaryDirectory(prefix="tensile-service-") as name:
        Path(name).chmod(0o755)
        with service_of(database, Path(name) / "sockets", forks) as service:
            yield service


@contextmanager
def service_of(database: Database, directory: Path, forks: Forks) -> Iterator[Service]:
    """Register a worker, and yield its service, which is not started yet."""
    with connect(database.dsn(user="tensile_worker"), application_name="test") as connection:
        worker = jobs.register_worker(connection, host="here", pid=os.getpid(), device_kind="test", lease_s=3600.0)
    with database.connect() as connection:
        connection.execute("select tensile_set_setting('socket_directory', %s)", [Jsonb(str(directory))])
    service = Service(database=database, directory=directory, worker=worker, log=forks.log, forks=forks.server)
    yield service
    service.stop()


@contextmanager
def redirect_standard_error(path: Path) -> Iterator[None]:
    """Redirect the standard error output of processes that are started in this context to this file."""
    standard_error = os.dup(2)
    with path.open("ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(standard_error, 2)
        os.close(standard_error)


@pytest.fixture
def service(_service: Service) -> Service:
    """A running service that answers only the system user of the database's server."""
    _service.run(peer_uid=None)
    return _service


@pytest.fixture
def open_service(_service: Service) -> Service:
    """A running service that answers only the system user of the tests."""
    _service.run(peer_uid=os.geteuid())
    return _service


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A version in the catalog with initial weights, and a predictor of the answers that are expected of it."""

    version: ModelVersionId
    prepared: Prepared
    predictor: ModelPredictor


def publish(database: Database, model: str, relation: str, more: str = "") -> Published:
    """Enqueue a training as demo, and publish the network with its initial weights, which is enough to predict.

    `more` are further arguments of the training.
    """
    with database.connect(user="demo") as connection:
        statement = f"select tensile_train(%s, %s::regclass, deploy => 'always'{more})"
        connection.execute(statement.encode(), [model, relation])
    with connect(database.dsn(user="tensile_worker"), application_name="test") as connection:
        worker = jobs.register_worker(connection, host="here", pid=os.getpid(), device_kind="test", lease_s=3600.0)
        claimed = jobs.claim_job(connection, worker)
        assert isinstance(claimed, ClaimedJob)
        with open_reader(database.dsn("tensile_reader"), application_name="test") as reader:
            snapshot = snapshots.find_snapshot(connection, claimed.job)
            prepared = prepare(reader, claimed.spec, snapshot=snapshot)
        jobs.start_running(connection, claimed.job, claimed.claim)
        trained = bundle(prepared)
        version = models.publish_version(
            connection,
            claimed,
            Publication(
                task=prepared.task,
                target=claimed.spec.target,
                architecture=prepared.architecture,
                bundle=trained.to_json() | {"split": prepared.membership},
                weights=trained.to_bytes(),
                parameters=1,
                figures=prepared.inputs,
                training={} if claimed.spec.transform is None else {"transform": claimed.spec.transform},
            ),
        )
    return Published(version=version, prepared=prepared, predictor=ModelPredictor(trained))


def fill(connection: psycopg.Connection, table: str, target: str, value: str) -> None:
    """Create a table of 60 rows with two features, which trainers may read."""
    connection.execute(
        f"create table {table} (id bigint primary key, a double precision, b text, {target} {value.split(':')[0]})"
    )
    connection.execute(
        f"insert into {table} select n, sin(n), (array['x', 'y', 'z'])[n % 3 + 1], {value.split(':')[1]} "
        "from generate_series(1, 60) as n"
    )
    connection.execute(f"grant select on {table} to tensile_reader")


@pytest.fixture(scope="module")
def houses(database: Database) -> Published:
    """A regression model with the features a and b."""
    with database.connect(user="demo") as connection:
        fill(connection, "houses", "target", "double precision: cos(n)")
    return publish(database, "houses", "houses")
