"""Brings what a user gives as a relation within reach of our SQL functions: as a relation's name, or as a query.

A name is taken as SQL takes it, so quotes belong to it where the name needs them. A table of SQLAlchemy is named with
its own quotes. A frame is copied into a temporary table, which only this session sees. A `select()` becomes the text
of a query, whose values psycopg quotes.
"""

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql
from sqlalchemy import BigInteger, Column, Connection, MetaData, Table
from sqlalchemy.engine.interfaces import AdaptedConnection
from sqlalchemy.exc import CompileError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import CreateTable, DropTable, ExecutableDDLElement
from sqlalchemy.sql import Select
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.selectable import CompoundSelect

from indb_tensile.client.frame_columns import (
    ROW_NUMBER,
    Frame,
    FrameColumn,
    as_frame,
    described_columns,
    frame_rows,
)
from indb_tensile.client.statement_errors import translated_errors
from indb_tensile.errors import RequestError

_WAYS = "Give the name of a relation, a Table, a select(), or a DataFrame of pandas, polars or pyarrow."


@dataclass(frozen=True, slots=True, kw_only=True)
class RelationSource:
    """A relation by its name in SQL, or the text of a query. `frame` is the frame that it was copied from."""

    relation: str | None = None
    query: str | None = None
    frame: Frame | None = None


@contextmanager
def relation_source(
    connection: Connection, relation: object, *, views: bool, numbered: bool = False
) -> Iterator[RelationSource]:
    """Yield the relation within the connection's transaction.

    With `views` a query becomes a temporary view, for functions that take no query. With `numbered` the table of a
    frame has the column ROW_NUMBER. Temporary objects are dropped at the end; after an error they go with the
    transaction. Raises RequestError for any other object.
    """
    frame = as_frame(relation)
    if frame is not None:
        table = _copied(connection, frame, numbered=numbered)
        with _dropped_after(connection, DropTable(table)):
            yield RelationSource(relation=_name_of(table), frame=frame)
    elif isinstance(relation, Table):
        yield RelationSource(relation=_name_of(relation))
    elif isinstance(relation, Select | CompoundSelect):
        text = query_text(connection, relation)
        if not views:
            yield RelationSource(query=text)
            return
        name = _temporary_name()
        connection.execute(_CreateView(name, text))
        with _dropped_after(connection, _DropView(name)):
            yield RelationSource(relation=f"pg_temp.{name}")
    elif isinstance(relation, str):
        yield RelationSource(relation=relation)
    else:
        raise RequestError(f"the relation is of type {type(relation).__name__}", hint=_WAYS)


@contextmanager
def _dropped_after(connection: Connection, drop: ExecutableDDLElement) -> Iterator[None]:
    """Drop a temporary object at the end, also where an iterator is closed early."""
    try:
        yield
    except GeneratorExit:
        connection.execute(drop)
        raise
    connection.execute(drop)


def query_text(connection: Connection, statement: Select[Any] | CompoundSelect[Any]) -> str:
    """Return a statement with its values as SQL. psycopg quotes the values."""
    with translated_errors():
        try:
            compiled = statement.compile(dialect=connection.dialect)
            assert isinstance(compiled, SQLCompiler)
            state = compiled.construct_expanded_state()
        except CompileError as error:
            raise RequestError(f"the select() has no SQL: {str(error).splitlines()[0]}") from None
        values = {
            name: state.processors[name](value) if name in state.processors else value
            for name, value in state.parameters.items()
        }
        return _quoted(connection, state.statement, values)


def _quoted(connection: Connection, statement: str, values: dict[str, Any]) -> str:
    driver: Any = connection.connection.driver_connection
    if isinstance(driver, psycopg.AsyncConnection):
        return psycopg.AsyncClientCursor(driver).mogrify(statement.encode(), values)
    return psycopg.ClientCursor(driver).mogrify(statement.encode(), values)


def _copied(connection: Connection, frame: Frame, *, numbered: bool) -> Table:
    """Copy a frame into a new temporary table."""
    columns = described_columns(frame)
    number = [Column(ROW_NUMBER, BigInteger, primary_key=True, autoincrement=False)] if numbered else []
    if numbered and ROW_NUMBER in frame.names:
        raise RequestError(f'the frame has a column named "{ROW_NUMBER}"', hint="Rename the column.")
    table = Table(
        _temporary_name(),
        MetaData(),
        *(Column(column.name, column.type, quote=True) for column in columns),
        *number,
        schema="pg_temp",
    )
    connection.execute(CreateTable(table))
    _copy(connection, _name_of(table), frame, columns, numbered=numbered)
    return table


def _copy(connection: Connection, name: str, frame: Frame, columns: Sequence[FrameColumn], *, numbered: bool) -> None:
    """Send the rows of a frame by COPY."""
    statement = f"copy {name} from stdin".encode()  # the name is our own
    rows = frame_rows(frame, columns, numbered=numbered)
    raw: Any = connection.connection.dbapi_connection
    if not isinstance(raw, AdaptedConnection):
        with translated_errors(), raw.cursor() as cursor, cursor.copy(statement) as copy:
            for row in rows:
                copy.write_row(row)
        return

    async def copy_rows(driver: Any) -> None:
        async with driver.cursor() as cursor, cursor.copy(statement) as copy:
            for row in rows:
                await copy.write_row(row)

    with translated_errors():
        raw.run_async(copy_rows)


def _temporary_name() -> str:
    return f"tensile_{secrets.token_hex(8)}"


def _name_of(table: Table) -> str:
    parts = (table.name,) if table.schema is None else (table.schema, table.name)
    return sql.Identifier(*parts).as_string()


class _CreateView(ExecutableDDLElement):
    """Creates a temporary view. Its name is our own, and its query is that of `query_text`."""

    def __init__(self, name: str, query: str) -> None:
        self.name = name
        self.query = query


class _DropView(ExecutableDDLElement):
    """Drops a temporary view."""

    def __init__(self, name: str) -> None:
        self.name = name


@compiles(_CreateView)
def _write_create(element: _CreateView, compiler: Any, **_: Any) -> str:
    query = element.query.replace("%", "%%")  # the driver formats every statement
    return f"create temporary view {element.name} as {query}"


@compiles(_DropView)
def _write_drop(element: _DropView, compiler: Any, **_: Any) -> str:
    return f"drop view pg_temp.{element.name}"
