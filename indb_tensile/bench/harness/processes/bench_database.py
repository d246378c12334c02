"""Creates a database with the catalog for a benchmark, on the server that the user names, and drops it afterwards."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from psycopg import sql
from psycopg.conninfo import make_conninfo

from indb_tensile.catalog import install
from indb_tensile.catalog.connection import connect
from indb_tensile.catalog.queries import parse

_SQL = parse(Path(__file__).with_name("bench_database.sql").read_text(encoding="utf-8"))


@contextmanager
def temporary_database(dsn: str, benchmark: str) -> Iterator[str]:
    """Yield a connection string to the new database, which exists until the context ends.

    `dsn` must connect as a superuser; it may name any database of the server.
    """
    name, purpose = f"tensile_bench_{benchmark}_{os.getpid()}", f"tensile bench {benchmark}"
    # `connect` opens connections in autocommit mode, which CREATE DATABASE needs. This one stays open to drop the
    # database.
    with connect(dsn, application_name=purpose) as connection:
        connection.execute(sql.SQL(_SQL["create_database"]).format(sql.Identifier(name)))
        try:
            new_dsn = make_conninfo(dsn, dbname=name)
            with connect(new_dsn, application_name=purpose) as new_connection:
                install.install(new_connection)
            yield new_dsn
        finally:
            connection.execute(sql.SQL(_SQL["drop_database"]).format(sql.Identifier(name)))
