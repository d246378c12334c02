"""An SQLAlchemy engine's connections follow the rules of our psycopg connections, and its pool is small."""

import psycopg
import pytest
import sqlalchemy
from psycopg import sql
from sqlalchemy import text

from indb_tensile.catalog.sqlalchemy.engine import catalog_engine, transaction
from indb_tensile.errors import DatabaseError, RequestError
from tests.conftest import Database
from tests.pgbouncer import pooled
from tests.sql.traps import set_traps, trap_calls


def test_an_engine_reports_an_unreachable_server_as_a_connection_does() -> None:
    engine = catalog_engine("host=/nowhere port=5999 dbname=x", application_name="test")
    with pytest.raises(DatabaseError) as caught, transaction(engine):
        pytest.fail("there is no connection")
    assert 'at host "/nowhere", port 5999' in caught.value.message
    assert caught.value.hint == "Is PostgreSQL running there? tensile up starts the embedded one."


def test_an_engine_reports_an_unreadable_connection_string_as_a_connection_does() -> None:
    with (
        pytest.raises(RequestError, match="the connection string cannot be read"),
        transaction(catalog_engine("host", application_name="test")),
    ):
        pytest.fail("there is no connection")


@pytest.mark.postgres
def test_an_engines_connection_has_the_role_the_timeouts_and_the_name_of_a_connection(database: Database) -> None:
    engine = catalog_engine(database.dsn("alice"), application_name="tensile")
    with transaction(engine) as connection:
        driver_connection = connection.connection.driver_connection
        assert isinstance(driver_connection, psycopg.Connection)
        assert driver_connection.info.get_parameters()["tcp_user_timeout"] == "10000"
        assert driver_connection.prepare_threshold is None
        assert _settings(connection) == ("alice", "tensile", "on", "pg_catalog, pg_temp")
    engine.dispose()


@pytest.mark.postgres
def test_the_connection_string_goes_before_the_defaults(database: Database) -> None:
    engine = catalog_engine(
        f"{database.dsn()} application_name=mine tcp_user_timeout=5000", application_name="tensile"
    )
    with transaction(engine) as connection:
        driver_connection = connection.connection.driver_connection
        assert isinstance(driver_connection, psycopg.Connection)
        assert driver_connection.info.get_parameters()["tcp_user_timeout"] == "5000"
        assert _settings(connection)[1] == "mine"
    engine.dispose()


@pytest.mark.postgres
def test_an_engine_that_reads_cannot_write(database: Database) -> None:
    with database.connect() as admin:
        admin.execute("create table public.t (a int); grant insert on public.t to demo")
    reader = catalog_engine(database.dsn("demo"), application_name="test")
    for _ in range(2):  # a second transaction, which gets its connection from the pool
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction), transaction(reader) as connection:
            connection.execute(text("insert into public.t values (1)"))
    writer = catalog_engine(database.dsn("demo"), application_name="test", read_only=False)
    with transaction(writer) as connection:
        connection.execute(text("insert into public.t values (1)"))
    with database.connect() as admin:
        assert admin.execute("select count(*) from public.t").fetchone() == (1,)
    for engine in (reader, writer):
        engine.dispose()


@pytest.mark.postgres
def test_a_failed_statement_raises_psycopgs_exception_and_the_pool_goes_on(database: Database) -> None:
    engine = catalog_engine(database.dsn("demo"), application_name="test")
    with pytest.raises(psycopg.errors.DivisionByZero) as caught, transaction(engine) as connection:
        connection.execute(text("select 1 / 0"))
    assert caught.value.sqlstate == "22012"
    with transaction(engine) as connection:
        assert connection.scalar(text("select 1")) == 1
    engine.dispose()


@pytest.mark.postgres
def test_a_pooled_connection_that_broke_is_replaced(database: Database) -> None:
    engine = catalog_engine(database.dsn("demo"), application_name="test")
    with transaction(engine) as connection:
        first = connection.scalar(text("select pg_backend_pid()"))
    with database.connect() as admin:
        admin.execute(sql.SQL("select pg_terminate_backend({}, 60000)").format(sql.Literal(first)))
    with transaction(engine) as connection:
        assert connection.scalar(text("select pg_backend_pid()")) != first
    engine.dispose()


@pytest.mark.postgres
def test_a_pool_has_at_most_two_connections_and_uses_them_again(database: Database) -> None:
    engine = catalog_engine(database.dsn("demo"), application_name="pool of the test")
    for _ in range(3):
        with transaction(engine) as first, transaction(engine) as second:
            assert first.scalar(text("select 1")) == second.scalar(text("select 1"))
    with database.connect() as admin:
        sessions = "select count(*) from pg_stat_activity where application_name = 'pool of the test'"
        assert admin.execute(sessions).fetchone() == (2,)
    engine.dispose()


@pytest.mark.postgres
def test_an_engine_behind_pgbouncer_leaves_no_setting_to_other_clients(
    database: Database,
) -> None:
    with pooled(database, "transaction", "default_pool_size = 1\n") as pooler:
        engine = catalog_engine(pooler.dsn("demo"), application_name="test")
        for _ in range(2):
            with transaction(engine) as connection:
                assert _settings(connection)[2:] == ("on", "pg_catalog, pg_temp")
            with pooler.connect("demo") as other:
                assert other.execute("show search_path").fetchone() == ('"$user", public',)
                assert other.execute("show transaction_read_only").fetchone() == ("off",)
        engine.dispose()


@pytest.mark.postgres
def test_no_statement_of_an_engine_runs_a_function_of_another_role(database: Database) -> None:
    """SQLAlchemy's own first statements name functions without their schema."""
    with database.connect("alice") as alice, database.connect() as postgres:
        set_traps(alice, "public")
        for name in ("version", "current_schema"):
            # These raise, because SQLAlchemy rolls back the transaction of its own first statements.
            body = f"begin raise exception '{name} ran'; end"
            alice.execute(f"create function public.{name}() returns text language plpgsql as $${body}$$".encode())
        postgres.execute("alter role bob set search_path = public, pg_catalog")
        try:
            engine = catalog_engine(database.dsn("bob"), application_name="test", read_only=False)
            with transaction(engine) as connection, transaction(engine) as second:
                assert connection.scalar(text("select to_jsonb('a'::text)")) == "a"
                assert second.scalar(text("select current_schema()")) == "pg_catalog"
            engine.dispose()
        finally:
            postgres.execute("alter role bob reset search_path")
        assert trap_calls(postgres) == []


def _settings(connection: sqlalchemy.Connection) -> tuple[str, ...]:
    names = ("application_name", "transaction_read_only", "search_path")
    values = [connection.scalar(text("select current_setting(:name)"), {"name": name}) for name in names]
    return (connection.scalar(text("select current_user::text")), *values)
