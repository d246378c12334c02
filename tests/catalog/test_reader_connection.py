"""Check how a trainer connects as the role that reads tables."""

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from indb_tensile.catalog.connection import UnreachableError
from indb_tensile.catalog.reader_connection import open_reader, reader_dsn
from indb_tensile.config import Settings
from indb_tensile.errors import DatabaseError, RequestError
from tests.conftest import Database


@pytest.mark.parametrize(
    ("dsn", "expected"),
    [
        ("", {"user": "tensile_reader"}),
        (
            "host=db port=5433 user=tensile_worker password='a b' dbname=app sslmode=require",
            {"host": "db", "port": "5433", "user": "tensile_reader", "dbname": "app", "sslmode": "require"},
        ),
        ("postgresql://w:secret@db/app", {"host": "db", "user": "tensile_reader", "dbname": "app"}),
        ("service=worker", {"service": "worker", "user": "tensile_reader"}),
    ],
)
def test_reader_connects_to_the_workers_server_without_the_workers_password(
    dsn: str, expected: dict[str, str]
) -> None:
    assert conninfo_to_dict(reader_dsn(Settings(dsn=dsn))) == expected


def test_reader_dsn_setting_takes_precedence() -> None:
    assert reader_dsn(Settings(dsn="host=a", reader_dsn="host=b password=x")) == "host=b password=x"


def test_unreadable_connection_string_is_refused() -> None:
    with pytest.raises(RequestError, match="the connection string cannot be read"):
        reader_dsn(Settings(dsn="host='"))


@pytest.mark.postgres
def test_connection_is_closed_after_its_block(database: Database) -> None:
    with open_reader(database.dsn("tensile_reader"), application_name="test") as connection:
        assert connection.execute("select current_user").fetchone() == ("tensile_reader",)
    assert connection.closed


@pytest.mark.postgres
def test_server_that_refuses_the_reader_does_not_count_as_unreachable(database: Database) -> None:
    with pytest.raises(DatabaseError, match="authentication failed") as caught:  # noqa: SIM117
        with open_reader(database.cluster.dsn(user="nobody", database=database.name), application_name="test"):
            raise AssertionError("the server must refuse the connection")
    assert not isinstance(caught.value, UnreachableError)
    assert "pg_ident.conf" in caught.value.hint
    with database.connect() as admin:
        admin.execute("alter role tensile_reader connection limit 0")
        try:
            with pytest.raises(DatabaseError, match="too many connections") as full:  # noqa: SIM117
                with open_reader(database.dsn("tensile_reader"), application_name="test"):
                    raise AssertionError("the server must refuse the connection")
        finally:
            admin.execute("alter role tensile_reader connection limit -1")
        assert full.value.hint.endswith("alter role tensile_reader connection limit -1;")
        admin.execute("alter role tensile_reader nologin")
        try:
            with pytest.raises(DatabaseError, match="not permitted to log in") as second_error:  # noqa: SIM117
                with open_reader(database.dsn("tensile_reader"), application_name="test"):
                    raise AssertionError("the server must refuse the connection")
        finally:
            admin.execute("alter role tensile_reader login")
    assert not isinstance(second_error.value, UnreachableError)
    with pytest.raises(UnreachableError):  # noqa: SIM117
        with open_reader("host=/nowhere", application_name="test"):
            raise AssertionError("the server must refuse the connection")
    with psycopg.connect(database.dsn("tensile_reader")) as connection:
        assert connection.execute("select 1").fetchone() == (1,)
