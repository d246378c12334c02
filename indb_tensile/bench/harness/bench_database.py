"""Creates a benchmark's own database, with the catalog, on the server that the user names, and drops it."""

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
    """Yield a connection string to the new database. `dsn` is a superuser's, to any database of the server."""
    name, purpose = f"tensile_bench_{benchmark}_{os.getpid()}", f"tensile bench {benchmark}"
    with connect(dsn, application_name=purpose) as connection:
        connection.execute(sql.SQL(_SQL["create_database"]).format(sql.Identifier(name)))
        try:
            own = make_conninfo(dsn, dbname=name)
            with connect(own, application_name=purpose) as inside:
                install.install(inside)
            yield own
        finally:
            connection.execute(sql.SQL(_SQL["drop_database"]).format(sql.Identifier(name)))
