"""Check which exception of this package an error of the database becomes."""

import psycopg
import pytest
from sqlalchemy import create_engine, text

from indb_tensile.catalog.connection import LockedError, UnreachableError
from indb_tensile.client import Tensile
from indb_tensile.client.statement_errors import error_with
from indb_tensile.errors import (
    CancelledJobError,
    CatalogVersionError,
    DatabaseError,
    DataError,
    MemoryLimitError,
    MissingColumnError,
    PrivilegeError,
    RequestError,
    TensileError,
    UnavailableError,
)
from tests.conftest import Database


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        ("42501", PrivilegeError),
        ("42703", MissingColumnError),
        ("42601", RequestError),
        ("22000", DataError),
        ("22P02", RequestError),
        ("53200", MemoryLimitError),
        ("55P03", LockedError),
        ("55000", RequestError),
        ("57014", CancelledJobError),
        ("57P03", UnavailableError),
        ("XX000", DatabaseError),
        ("", DatabaseError),
    ],
)
def test_the_sqlstate_tells_whose_fault_it_is(state: str, kind: type[TensileError]) -> None:
    error = error_with(state, "it failed", "why", None)
    assert (type(error), error.sqlstate, error.message, error.detail, error.hint) == (
        kind,
        state,
        "it failed",
        "why",
        "",
    )


@pytest.mark.postgres
def test_faults_of_the_connection_are_sentences(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnreachableError, match='no connection to PostgreSQL at host "/nowhere"'):
        Tensile("host=/nowhere user=demo").models()
    with pytest.raises(RequestError, match="the connection string cannot be read"):
        Tensile("host").models()
    with (
        Tensile(database.cluster.dsn(database="postgres")) as tensile,
        pytest.raises(CatalogVersionError, match="this database lacks a function of indb-tensile") as missing,
    ):
        tensile.evaluate("m")
    assert "tensile init" in missing.value.hint
    monkeypatch.setenv("TENSILE_DSN", database.dsn("alice"))
    with Tensile() as tensile:
        assert tensile.models() == []
        assert "password" not in repr(tensile)
    engine = create_engine(
        "postgresql+psycopg://",
        creator=lambda: psycopg.connect(database.dsn("alice")),
        pool_size=1,
        max_overflow=0,
        pool_timeout=0.01,
    )
    with engine.connect() as connection:
        connection.execute(text("select 1"))
        with pytest.raises(UnreachableError, match="the engine has no free connection"):
            Tensile(engine).models()
    engine.dispose()
