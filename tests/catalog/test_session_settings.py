"""Check that a worker's session does not depend on the settings of its role or database."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from psycopg import sql

from indb_tensile.catalog import jobs
from indb_tensile.catalog.connection import connect
from indb_tensile.errors import DatabaseError
from tests.catalog.enqueue import claim, enqueue, register
from tests.conftest import Database

pytestmark = pytest.mark.postgres

# The value that an administrator gives each setting, and the value that a worker's session has anyway.
SETTINGS = {
    "statement_timeout": ("5ms", "0"),
    "lock_timeout": ("1ms", "100ms"),
    "idle_in_transaction_session_timeout": ("5ms", "0"),
    "idle_session_timeout": ("5ms", "0"),
    "default_transaction_isolation": ("serializable", "read committed"),
    "default_transaction_read_only": ("on", "off"),
    "default_transaction_deferrable": ("on", "off"),
    "search_path": ("public", "pg_catalog, pg_temp"),
    "role": ("demo", "none"),
    "jit": ("on", "off"),
    "row_security": ("off", "on"),
    "client_encoding": ("SQL_ASCII", "UTF8"),
    "standard_conforming_strings": ("off", "on"),
    "array_nulls": ("off", "on"),
    "timezone": ("Asia/Kathmandu", "UTC"),
    "datestyle": ("German, DMY", "ISO, MDY"),
    "intervalstyle": ("iso_8601", "postgres"),
    "extra_float_digits": ("-10", "1"),
    "bytea_output": ("escape", "hex"),
    "synchronous_commit": ("off", "on"),
}


@contextmanager
def altered_settings_of(database: Database, settings: dict[str, str], *, of_database: bool = False) -> Iterator[None]:
    """Alter the worker's role, or the database, so that it has these settings in this context."""
    kind, name = ("database", database.name) if of_database else ("role", "tensile_worker")
    subject = sql.SQL("{} {}").format(sql.SQL(kind), sql.Identifier(name))
    with database.connect() as superuser:
        superuser.execute("grant demo to tensile_worker")
        for setting, value in settings.items():
            superuser.execute(
                sql.SQL("alter {} set {} = {}").format(subject, sql.Identifier(setting), sql.Literal(value))
            )
    try:
        yield
    finally:
        with database.cluster_connection() as superuser:
            superuser.execute(sql.SQL("alter {} reset all").format(subject))
            superuser.execute("revoke demo from tensile_worker")


@pytest.mark.parametrize("of_database", [False, True], ids=["role", "database"])
def test_worker_overrides_settings_of_its_role_and_database(database: Database, of_database: bool) -> None:
    altered_settings = {name: value for name, (value, _) in SETTINGS.items() if not (of_database and name == "role")}
    with database.connect("alice") as alice:
        job = enqueue(alice, "größe")
    with altered_settings_of(database, altered_settings, of_database=of_database):
        connection = connect(database.dsn("tensile_worker"), application_name="test", lock_timeout_ms=100)
        with connection:
            session_settings = {name: connection.execute(f"show {name}").fetchone() for name in SETTINGS}
            assert session_settings == {name: (session_value,) for name, (_, session_value) in SETTINGS.items()}
            worker = register(connection)
            claimed = claim(connection, worker)
            assert (claimed.job, claimed.spec.model) == (job, "größe")
            jobs.cancelled(connection, job, claimed.claim)


def test_setting_that_only_a_superuser_can_override_is_refused_with_a_hint(database: Database) -> None:
    with altered_settings_of(database, {"session_replication_role": "replica"}):
        with pytest.raises(DatabaseError) as caught:
            connect(database.dsn("tensile_worker"), application_name="test", lock_timeout_ms=100)
        assert caught.value.message == (
            f'session_replication_role is "replica" for role "tensile_worker" in database "{database.name}"'
        )
        assert 'alter role "tensile_worker" reset session_replication_role;' in caught.value.hint


def test_session_of_a_user_keeps_the_users_settings(database: Database) -> None:
    with database.connect() as superuser:
        superuser.execute(
            sql.SQL("alter database {} set statement_timeout = '7s'").format(sql.Identifier(database.name))
        )
    with connect(database.dsn("alice"), application_name="test") as connection:
        assert connection.execute("show statement_timeout").fetchone() == ("7s",)
