"""Fixtures of the whole suite: one private PostgreSQL cluster, and a new database for each test that needs one."""

import contextlib
import gc
import itertools
import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from hypothesis import settings
from psycopg import sql

from indb_tensile.catalog import install
from indb_tensile.cluster import Cluster, temporary_cluster
from tests.cleared_database import clear
from tests.compiled_bridge import PLAIN, server_environment, server_settings
from tests.nightly import leave_cases_to_the_night
from tests.open_directory import open_directory
from tests.scopes import ScopeScheduling, place_of
from tests.suite_watcher import start_watcher

# The daily suite draws the same few examples each time, so a new failure has a new cause in the code. The nightly
# suite draws many other examples, to search for unknown failures:
# sh tests/run.sh tests/scheduler --hypothesis-profile=search
settings.register_profile("suite", max_examples=15, derandomize=True, deadline=None)
settings.register_profile("search", max_examples=300, print_blob=True, deadline=None)
settings.load_profile("suite")

ROLES = ("postgres", "tensile_worker", "tensile_reader", "demo", "alice", "bob", "monitor", "admin")
_TEMPLATE = "template_tensile"
_numbers = itertools.count(1)


gc.disable()  # until all tests are collected: looking for garbage among imported objects takes a quarter of the time


_watcher: "subprocess.Popen[bytes] | None" = None


def pytest_configure(config: pytest.Config) -> None:
    """Start what ends the servers of this run if it is killed. The processes of xdist belong to the run."""
    global _watcher
    if not hasattr(config, "workerinput"):
        _watcher = start_watcher()


def pytest_unconfigure() -> None:
    """Let the watcher look once whether anything is left, and end."""
    if _watcher is not None:
        _watcher.communicate()


@pytest.hookimpl(tryfirst=True)  # before pytest selects tests by their marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave cases to the night, and let modules that run together in one process run first, as they take longest."""
    leave_cases_to_the_night(items, all_cases=not any("[" in argument for argument in config.args))
    items.sort(key=lambda item: place_of(item.nodeid.partition("::")[0]))


def pytest_collection_finish() -> None:
    """Exempt imported modules and collected tests, a million objects, from every later garbage collection."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ScopeScheduling | None:
    """Return what gives tests to processes for `--dist loadfile`."""
    return ScopeScheduling(config, log) if config.getvalue("dist") == "loadfile" else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Database:
    """One new database with the catalog installed. `demo`, `alice` and `bob` are ordinary users of it."""

    name: str
    cluster: Cluster

    def dsn(self, user: str = "postgres") -> str:
        """Return a connection string for one of ROLES."""
        return self.cluster.dsn(user=user, database=self.name)

    def connect(self, user: str = "postgres") -> psycopg.Connection:
        """Return a connection in autocommit mode."""
        return psycopg.connect(self.dsn(user), autocommit=True)

    def cluster_connection(self) -> psycopg.Connection:
        """Return a superuser's connection to the maintenance database, which has settings of its own."""
        return psycopg.connect(self.cluster.dsn(database="postgres"), autocommit=True)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Yield a running private cluster below a temporary directory."""
    settings = "max_connections = 60\nmax_wal_size = 128MB\n"
    with (
        open_directory("suite-") as directory,
        temporary_cluster(
            ROLES,
            settings + server_settings(directory),
            within=directory,
            environment=server_environment(directory),
        ) as created,
    ):
        yield created
        _maintenance.close()


@pytest.fixture(scope="session")
def template(cluster: Cluster) -> str:
    """Return the name of a database with the catalog installed, to be cloned."""
    with psycopg.connect(cluster.dsn(database="postgres"), autocommit=True) as connection:
        connection.execute(sql.SQL("create database {}").format(sql.Identifier(_TEMPLATE)))
    with psycopg.connect(cluster.dsn(database=_TEMPLATE), autocommit=True) as connection:
        install.install(connection)
        for role in ("demo", "alice", "bob", "monitor", "admin"):
            connection.execute(sql.SQL("create role {} login").format(sql.Identifier(role)))
        connection.execute("alter role tensile_worker login")
        connection.execute("grant tensile_user to demo, alice, bob")
        connection.execute("grant tensile_monitor to monitor")
        connection.execute("grant tensile_admin to admin")
        connection.execute("grant create on schema public to demo, alice, bob")
    return _TEMPLATE


@pytest.fixture(scope="module")
def database_of_module(cluster: Cluster, template: str) -> Iterator[Database]:
    """Yield a new database for all tests of a module that are marked `shares_database`."""
    with fresh_database(cluster, template) as created:
        yield created


@pytest.fixture(scope="module")
def clear_database_of_module(database_of_module: Database) -> Iterator[Callable[[], None]]:
    """Yield a function that leaves the module's database as it was, and fails if it cannot."""
    with database_of_module.connect() as connection:
        before = clear(connection)

        def clear_it() -> None:
            nonlocal before
            before, expected = clear(connection), before
            assert before == expected, "the test leaves objects behind: mark it own_database"

        yield clear_it


def clears_database(request: pytest.FixtureRequest) -> bool:
    """Return whether the test uses the database of its module, which is cleared afterwards."""
    if os.environ.get(PLAIN) or request.node.get_closest_marker("own_database"):
        return False
    return request.node.get_closest_marker("clears_database") is not None


@pytest.fixture
def database(request: pytest.FixtureRequest, cluster: Cluster, template: str) -> Iterator[Database]:
    """Yield a new database for one test, or that of the module for a test with one of the marks for that."""
    if request.node.get_closest_marker("shares_database"):
        yield request.getfixturevalue("database_of_module")
        return
    if clears_database(request):
        clear_it = request.getfixturevalue("clear_database_of_module")
        yield request.getfixturevalue("database_of_module")
        clear_it()
        return
    with fresh_database(cluster, template) as created:
        yield created


@contextlib.contextmanager
def fresh_database(cluster: Cluster, template: str) -> Iterator[Database]:
    """Yield a new database, and drop it when the block ends."""
    created = Database(name=f"test_{next(_numbers)}", cluster=cluster)
    name = sql.Identifier(created.name)
    _maintenance.run(
        cluster, sql.SQL("create database {} template {} strategy file_copy").format(name, sql.Identifier(template))
    )
    yield created
    _maintenance.run(cluster, sql.SQL("drop database {} with (force)").format(name))


class _Maintenance:
    """Runs statements in the maintenance database over one connection. A new one takes as long as a new database."""

    def __init__(self) -> None:
        self._connection: psycopg.Connection | None = None

    def run(self, cluster: Cluster, statement: sql.Composed) -> None:
        """Run the statement, over a new connection if the test has restarted the cluster."""
        dsn = cluster.dsn(database="postgres")
        if self._connection is None or self._connection.info.host != str(cluster.run) or not self._answers():
            self.close()
            self._connection = psycopg.connect(dsn, autocommit=True)
        self._connection.execute(statement)

    def close(self) -> None:
        """Close the connection, if there is one."""
        if self._connection is not None:
            self._connection.close()

    def _answers(self) -> bool:
        assert self._connection is not None
        try:
            self._connection.execute("")
        except psycopg.OperationalError:
            return False
        return True


_maintenance = _Maintenance()
