"""Fixtures: users with a table to train on, a deployed model version, and a fake service with scripted answers."""

from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from indb_tensile.catalog.pgml_schema import install_pgml
from tests.conftest import Database, clears_database
from tests.sql.fakes import Answer, FakeService


@dataclass(frozen=True, slots=True)
class Refused:
    """The fields of an error that a client receives."""

    sqlstate: str
    message: str
    detail: str | None = None
    hint: str | None = None

    def __iter__(self) -> Iterator[str | None]:
        return iter(astuple(self))


Connection = psycopg.Connection[Any]


def refused(connection: Connection, statement: str, *arguments: object) -> Refused:
    """Execute a statement that must fail, and return its error."""
    with pytest.raises(psycopg.Error) as caught:
        connection.execute(statement.encode(), arguments or None)
    error = caught.value.diag
    return Refused(error.sqlstate or "", error.message_primary or "", error.message_detail, error.message_hint)


def value(connection: Connection, statement: str, *arguments: object) -> Any:
    """Return the first column of the statement's first row."""
    row = connection.execute(statement.encode(), arguments or None).fetchone()
    assert row is not None
    return row[0]


Connect = Callable[[str], Connection]

# What `discard all` does, but for the prepared statements, which psycopg goes on using.
_AS_AT_ITS_BEGIN = b"""close all; set session authorization default; reset all; unlisten *;
select pg_advisory_unlock_all(); discard temp; discard sequences"""


@pytest.fixture(scope="module")
def sessions_of_module(database_of_module: Database) -> Iterator[dict[str, Connection]]:
    """Yield the sessions, by user, that tests of one database take over from one another.

    The first call of a session loads the bridge, which takes longer than such a test.
    """
    sessions: dict[str, Connection] = {}
    yield sessions
    for session in sessions.values():
        session.close()


@pytest.fixture
def connect(request: pytest.FixtureRequest, database: Database) -> Iterator[Connect]:
    """A function that returns the session of a user, as it is when it begins."""
    shared = request.node.get_closest_marker("shares_database") is not None or clears_database(request)
    sessions = request.getfixturevalue("sessions_of_module") if shared else {}

    def session(user: str) -> Connection:
        if user not in sessions:
            sessions[user] = database.connect(user)
        return sessions[user]  # type: ignore[no-any-return]

    yield session
    for user, used in list(sessions.items()):
        if not shared or used.closed:
            sessions.pop(user).close()
        else:
            used.rollback()
            used.autocommit = True
            used.execute(_AS_AT_ITS_BEGIN)


@pytest.fixture
def alice(connect: Connect) -> Connection:
    """An ordinary user who owns the table `iris`, which trainers may read."""
    connection = connect("alice")
    if value(connection, "select to_regclass('iris') is null"):  # else the database is shared by tests of a module
        connection.execute(
            """create table iris (id bigint generated always as identity primary key, petal real, sepal real,
                 species text not null, kind int not null, label_known boolean);
               insert into iris (petal, sepal, species, kind, label_known)
               select i % 7, i % 5, case when i % 2 = 0 then 'setosa' else 'virginica' end, i % 3, i % 2 = 0
                 from generate_series(1, 60) as i;
               grant select on iris to tensile_reader"""
        )
    return connection


@pytest.fixture
def bob(connect: Connect) -> Connection:
    """Another ordinary user."""
    return connect("bob")


@pytest.fixture
def admin(connect: Connect) -> Connection:
    """A superuser."""
    return connect("postgres")


@pytest.fixture
def worker(database: Database) -> Iterator[Connection]:
    """The role of controllers and trainers."""
    with database.connect("tensile_worker") as connection:
        yield connection


@pytest.fixture(scope="module")
def pgml(database_of_module: Database) -> None:
    """Install the schema pgml twice: the second run replaces every function and view."""
    with database_of_module.connect() as connection:
        install_pgml(connection)
        install_pgml(connection)


Serve = Callable[[Answer], FakeService]


@pytest.fixture
def serve(admin: Connection) -> Iterator[Serve]:
    """A function that starts a fake service and registers it as the only service."""
    started: list[FakeService] = []

    def start(answer: Answer) -> FakeService:
        service = FakeService(answer, installation=value(admin, "select tensile.installation()::text"))
        started.append(service)
        admin.execute(
            "insert into tensile.settings (name, value) values ('socket_directory', %s)",
            (Jsonb(str(service.directory)),),
        )
        admin.execute(
            """insert into tensile.workers (host, pid, device, version, service_name, lease_s)
               values ('here', 1, 'none', '0', %s, 3600)""",
            (service.name,),
        )
        return service

    yield start
    for service in started:
        service.close()
        admin.execute("delete from tensile.workers where service_name = %s", (service.name,))
    admin.execute("delete from tensile.settings where name = 'socket_directory'")


@pytest.fixture
def published(admin: Connection, alice: Connection) -> int:
    """The id of the deployed version of alice's model `flowers`. The id is 700, so that it differs from the version's
    number, which is 1.
    """
    if value(admin, "select exists (select from tensile.models where name = 'flowers')"):
        return 700  # the database is shared by tests of a module
    admin.execute("alter sequence tensile.model_versions_version_id_seq restart with 700")
    alice.execute("select tensile_create_model('flowers')")
    return int(
        value(
            admin,
            """insert into tensile.model_versions (model_id, number, task, target, architecture, metric_name,
                   metric, higher_is_better, metrics, parameters, weights_bytes, deployed)
               select model_id, 1, 'classification', 'species', '{"type": "mlp"}', 'accuracy', 0.97, true,
                      '{"accuracy": 0.97, "log_loss": 0.1}', 10, 40, true
                 from tensile.models where name = 'flowers'
               returning version_id""",
        )
    )
