"""A controller on a database whose encoding is not UTF-8."""

from collections.abc import Iterator
from contextlib import contextmanager

from psycopg import sql

from indb_tensile.catalog import install
from indb_tensile.catalog.connection import connect
from indb_tensile.cluster import Cluster
from tests.conftest import Database
from tests.e2e.conftest import Service, service_on


@contextmanager
def encoded_service(cluster: Cluster, encoding: str) -> Iterator[Service]:
    """Yield a controller, which the test starts, on a new database with this encoding and a catalog."""
    name = f"encoded_{encoding.lower()}"
    create = sql.SQL("create database {} encoding {} locale 'C' template template0")
    drop = sql.SQL("drop database {} with (force)").format(sql.Identifier(name))
    database = Database(name=name, cluster=cluster)
    with database.cluster_connection() as server:
        server.execute(create.format(sql.Identifier(name), sql.Literal(encoding)))
        try:
            with connect(database.dsn(), application_name="test") as connection:
                install.install(connection)
                connection.execute("grant create on schema public to demo")
                connection.execute("grant tensile_user to demo")
            with service_on(database) as service:
                service.connection.execute("set client_encoding = 'UTF8'")
                yield service
        finally:
            server.execute(drop)
