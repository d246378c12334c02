"""Fixtures: a session whose changes are undone, and for upgrades a server and a catalog of an older release."""

from collections.abc import Iterator

import psycopg
import pytest

from indb_tensile.catalog import install
from indb_tensile.catalog.install import SCRIPT
from indb_tensile.cluster import Cluster
from tests.catalog import released
from tests.catalog.copies import drop_database, new_database
from tests.catalog.old_release import OLD, Connection
from tests.catalog.own_server import own_server
from tests.conftest import ROLES, Database
from tests.open_directory import open_directory


@pytest.fixture
def connection(database: Database) -> Iterator[psycopg.Connection]:
    """A superuser's session whose changes are undone after the test."""
    with database.connect() as connection, connection.transaction(force_rollback=True):
        connection.execute("select tensile_set_quota('postgres', jobs_running => 1000)")
        yield connection


@pytest.fixture(scope="module")
def upgrade_server() -> Iterator[Cluster]:
    """A server with the extension's files of this release and of older releases."""
    with open_directory("suite-upgrade-") as directory:
        cluster, extensions = own_server(directory)
        install.write_extension(extensions)
        released.write_extension(extensions, OLD)
        cluster.create(roles=ROLES)
        try:
            cluster.start()
            with psycopg.connect(cluster.dsn(database="postgres"), autocommit=True) as connection:
                connection.execute("create role alice login; create role bob login")
            yield cluster
        finally:
            cluster.stop(mode="immediate")


@pytest.fixture
def way() -> str:
    """How the old catalog is installed, unless a test is parametrised with `way`."""
    return SCRIPT


@pytest.fixture
def old_catalog(upgrade_server: Cluster, way: str) -> Iterator[Connection]:
    """A superuser's connection to a new database with the catalog of version 0.1.0."""
    with new_database(upgrade_server, "upgraded") as connection:
        released.install(connection, OLD, way)
        connection.execute("grant tensile_user to alice, bob")
        yield connection
    drop_database(upgrade_server, "upgraded")
