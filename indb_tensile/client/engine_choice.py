"""Makes the engine of a client from a URL, a connection string of libpq, or nothing."""

from typing import Any

import psycopg
from sqlalchemy import URL, Engine, create_engine
from sqlalchemy.dialects.postgresql.base import PGDialect
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from indb_tensile.catalog.connection import connect, connection_options
from indb_tensile.client.statement_errors import translated_errors
from indb_tensile.default_database import resolve
from indb_tensile.errors import RequestError
from indb_tensile.request.json_text import json_text

APPLICATION = "tensile client"
_DRIVER = "postgresql+psycopg"
_WAYS = "Give an engine of SQLAlchemy, a URL, a connection string of libpq, or nothing for the embedded database."
# Connections are tested before they are used again, so that a restart of the database causes no error.
_OPTIONS: dict[str, Any] = {
    "pool_pre_ping": True,
    "hide_parameters": True,
    "use_native_hstore": False,
    "json_serializer": json_text,
}


def open_engine(database: object) -> Engine:
    """Return a new engine for a URL, a connection string, or None."""
    url = _sqlalchemy_url(database)
    with translated_errors():
        if url is not None:
            return create_engine(url, **_OPTIONS)
    dsn = _dsn(database)

    def open_connection() -> psycopg.Connection[Any]:
        connection = connect(dsn, application_name=APPLICATION, callers_path=True)
        connection.autocommit = False
        return connection

    return create_engine(f"{_DRIVER}://", creator=open_connection, **_OPTIONS)


def open_async_engine(database: object) -> AsyncEngine:
    """Return a new asynchronous engine for a URL, a connection string, or None."""
    url = _sqlalchemy_url(database)
    with translated_errors():
        if url is not None:
            return create_async_engine(url, **_OPTIONS)
    options = connection_options(_dsn(database), APPLICATION)

    async def open_connection() -> psycopg.AsyncConnection[Any]:
        with translated_errors():
            return await psycopg.AsyncConnection.connect(prepare_threshold=None, **options)

    return create_async_engine(f"{_DRIVER}://", async_creator=open_connection, **_OPTIONS)


def check_driver(engine: Any) -> None:
    """Raise RequestError for an engine of another database or driver."""
    dialect = engine.dialect
    if not isinstance(dialect, PGDialect) or dialect.driver not in ("psycopg", "psycopg_async"):
        raise RequestError(
            f"the engine uses {dialect.name} with the driver {dialect.driver}",
            hint=f"Make one for PostgreSQL with psycopg: create_engine('{_DRIVER}://…').",
        )


def _sqlalchemy_url(database: object) -> URL | None:
    """Return the URL of a database that is named by one of SQLAlchemy."""
    if isinstance(database, URL):
        return database.set(drivername=_DRIVER) if database.drivername == "postgresql" else database
    if isinstance(database, str) and database.startswith("postgresql+"):
        with translated_errors():
            return make_url(database)
    return None


def _dsn(database: object) -> str:
    """Return the connection string of libpq. Raises DatabaseError if None is given and there is no database."""
    if database is not None and not isinstance(database, str):
        raise RequestError(f"the database is of type {type(database).__name__}", hint=_WAYS)
    return resolve(database)
