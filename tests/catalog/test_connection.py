"""Check the errors of connections that fail, and how statements are retried during an outage."""

from typing import Any

import psycopg
import pytest
from psycopg import sql

from indb_tensile.catalog.connection import Session, UnreachableError, connect, is_outage, pinned, retrying
from indb_tensile.errors import DatabaseError, RequestError
from tests.conftest import Database


def test_error_of_a_missing_server_names_host_and_port_with_a_hint() -> None:
    with pytest.raises(DatabaseError) as caught:
        connect("host=/nowhere port=5999 dbname=x", application_name="test")
    assert 'at host "/nowhere", port 5999' in caught.value.message
    assert caught.value.hint == "Is PostgreSQL running there? tensile up starts the embedded one."


def test_unreadable_connection_string_is_refused() -> None:
    with pytest.raises(RequestError, match="the connection string cannot be read"):
        connect("host", application_name="test")


def test_retrying_pauses_longer_each_time_until_the_database_is_back() -> None:
    outcomes = iter([UnreachableError("gone"), psycopg.OperationalError("gone"), UnreachableError("gone")])
    pauses: list[float] = []

    def action() -> str:
        for error in outcomes:
            raise error
        return "done"

    assert retrying(action, retry_s=60, pause=pauses.append) == "done"
    assert pauses == [0.1, 0.2, 0.4]


def test_retrying_ends_after_the_time_for_retries() -> None:
    def action() -> None:
        raise UnreachableError("the server is down")

    with pytest.raises(DatabaseError, match=r"did not come back within 0\.05 s: the server is down"):
        retrying(action, retry_s=0.05, pause=lambda _: None)


def test_first_outage_is_raised_unchanged_without_retries() -> None:
    def lose() -> None:
        raise psycopg.OperationalError("server closed the connection unexpectedly")

    with pytest.raises(UnreachableError, match="the database went away: server closed the connection unexpectedly"):
        retrying(lose, retry_s=0, pause=lambda _: pytest.fail("no retry, no pause"))

    def miss() -> None:
        raise UnreachableError("no connection to PostgreSQL")

    with pytest.raises(UnreachableError, match=r"^no connection to PostgreSQL$"):
        retrying(miss, retry_s=0, pause=lambda _: pytest.fail("no retry, no pause"))


def test_error_that_is_no_outage_is_raised_at_once() -> None:
    def action() -> None:
        raise psycopg.errors.UniqueViolation("twice")

    with pytest.raises(psycopg.errors.UniqueViolation):
        retrying(action, retry_s=60, pause=lambda _: pytest.fail("there is nothing to wait for"))


@pytest.mark.parametrize(
    ("error", "outage"),
    [
        (psycopg.OperationalError("server closed the connection unexpectedly"), True),
        (psycopg.errors.AdminShutdown("terminating connection"), True),
        (psycopg.errors.CannotConnectNow("starting up"), True),
        (psycopg.InterfaceError("the connection is closed"), True),
        (psycopg.errors.DeadlockDetected("deadlock"), False),
        (psycopg.errors.OutOfMemory("memory"), False),
        (psycopg.errors.SyntaxError("syntax"), False),
    ],
)
def test_only_a_lost_database_is_an_outage(error: psycopg.Error, outage: bool) -> None:
    assert is_outage(error) is outage


@pytest.mark.postgres
def test_connection_has_keepalives_and_an_application_name(database: Database) -> None:
    with connect(database.dsn("tensile_worker"), application_name="tensile trainer") as connection:
        parameters = connection.info.get_parameters()
        assert connection.autocommit
        assert parameters["tcp_user_timeout"] == "10000"
        assert parameters["keepalives_idle"] == "4"
        assert connection.execute("show application_name").fetchone() == ("tensile trainer",)


@pytest.mark.postgres
def test_options_of_the_connection_string_take_precedence(database: Database) -> None:
    dsn = f"{database.dsn()} tcp_user_timeout=5000 application_name=mine"
    with connect(dsn, application_name="tensile") as connection:
        assert connection.info.get_parameters()["tcp_user_timeout"] == "5000"
        assert connection.execute("show application_name").fetchone() == ("mine",)


@pytest.mark.postgres
def test_missing_database_is_refused_with_a_hint(database: Database) -> None:
    with pytest.raises(DatabaseError) as caught:
        connect(database.cluster.dsn(database="nothing"), application_name="test")
    assert 'database "nothing" does not exist' in caught.value.message
    assert caught.value.hint.startswith("Create it, or name another")


@pytest.mark.postgres
def test_session_repeats_its_work_on_a_new_connection(database: Database) -> None:
    backend_pids: list[int] = []

    def backend(connection: psycopg.Connection[Any]) -> int:
        backend_pids.append(connection.info.backend_pid)
        if len(backend_pids) == 1:
            with database.connect() as other:
                other.execute(sql.SQL("select pg_terminate_backend({})").format(connection.info.backend_pid))
        row = connection.execute("select pg_backend_pid()").fetchone()
        assert row is not None
        return int(row[0])

    with Session(database.dsn(), application_name="test", retry_s=30) as session:
        assert session.run(backend) == backend_pids[1] != backend_pids[0]


@pytest.mark.postgres
def test_connection_pins_its_search_path_whatever_the_roles_setting(database: Database) -> None:
    with database.connect() as postgres:
        postgres.execute("alter role alice set search_path = alice, public, pg_catalog")
    try:
        with connect(database.dsn("alice"), application_name="test") as connection:
            assert connection.execute("show search_path").fetchone() == ("pg_catalog, pg_temp",)
        with Session(database.dsn("alice"), application_name="test") as session:
            assert session.run(_path) == ("pg_catalog, pg_temp",)
    finally:
        with database.connect() as postgres:
            postgres.execute("alter role alice reset search_path")


@pytest.mark.postgres
def test_connection_with_the_callers_path_pins_it_only_in_a_pinned_transaction(database: Database) -> None:
    with connect(database.dsn("alice"), application_name="test", callers_path=True) as connection:
        assert _path(connection) == ('"$user", public',)
        with pinned(connection):
            assert _path(connection) == ("pg_catalog, pg_temp",)
        assert _path(connection) == ('"$user", public',)
        with pytest.raises(psycopg.errors.DivisionByZero), pinned(connection):
            connection.execute("select 1 / 0")
        assert _path(connection) == ('"$user", public',)


def _path(connection: psycopg.Connection[Any]) -> Any:
    return connection.execute("show search_path").fetchone()
