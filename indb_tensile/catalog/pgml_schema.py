"""Installs the schema `pgml`, whose functions have the names and arguments of PostgresML's.

The source is the files `sql/pgml/*.sql` in the order of their names. The schema is a script even where the catalog is
an extension: docs/developer/decisions.md says why.
"""

from indb_tensile.catalog.connection import Connection
from indb_tensile.catalog.install import check_version, sql_directory
from indb_tensile.catalog.queries import query


def install_pgml(connection: Connection) -> None:
    """Create the schema, or replace its functions and views. Needs an autocommit connection of a superuser.

    Raises CatalogVersionError if the catalog is missing or of another version, and psycopg's error where another
    schema `pgml` is in the way.
    """
    check_version(connection)
    with connection.transaction():
        connection.execute(query("lock_database"))
        connection.execute(query("script_settings"))
        connection.execute(_source())


def _source() -> str:
    paths = sorted((sql_directory() / "pgml").glob("*.sql"))
    return "\n".join(path.read_text(encoding="utf-8") for path in paths)
