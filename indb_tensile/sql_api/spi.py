"""The session's own database as PL/Python gives access to it, and the quoting of names and texts."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

Json = dict[str, Any]
Row = Mapping[str, Any]


class PreparedStatement(Protocol):
    """A prepared statement of PL/Python."""


class Cursor(Protocol):
    """The rows of a statement, fetched some at a time."""

    def fetch(self, count: int) -> Iterable[Row]:
        """Return the next rows, or no rows at the end."""

    def close(self) -> None:
        """End the statement."""


class Plpy(Protocol):
    """The part of PL/Python's module `plpy` that the bridge uses."""

    @property
    def SPIError(self) -> type[Exception]:  # noqa: N802 - the name in plpy
        """Return the class of exceptions that SQL errors are raised as."""

    def prepare(self, query: str, types: Sequence[str]) -> PreparedStatement:
        """Prepare a statement."""

    def execute(self, plan: PreparedStatement | str, arguments: Sequence[object] = ()) -> Iterable[Row]:
        """Run a statement. Raises SPIError for an SQL error."""

    def cursor(self, query: str) -> Cursor:
        """Start a statement. Its rows are computed when they are fetched."""

    def notice(self, message: str) -> None:
        """Send a NOTICE to the client."""

    def quote_ident(self, name: str) -> str:
        """Quote a name for use in SQL, if necessary."""

    def quote_literal(self, text: str) -> str:
        """Quote a text for use in SQL, whatever the session's standard_conforming_strings."""


def fetch(plpy: Plpy, statement: str, *arguments: object) -> Sequence[Row]:
    """Return all rows of a statement, which is prepared once per session.

    The types of the parameters are taken from the casts in the statement.
    """
    if statement not in _plans:
        types = dict(re.findall(r"\$(\d+)::([\w.]+)", statement))
        _plans[statement] = plpy.prepare(statement, [types[number] for number in sorted(types, key=int)])
    return list(plpy.execute(_plans[statement], arguments))


def takes_any_statement(plpy: Plpy) -> bool:
    """Return whether statements can have characters beyond ASCII: PL/Python hands over their text in UTF-8.

    In SQL_ASCII PostgreSQL takes all bytes as they are.
    """
    return encoding(plpy) in ("UTF8", SQL_ASCII)


def encoding(plpy: Plpy) -> str:
    """Return the encoding of the database."""
    if not _encoding:
        _encoding.append(next(iter(plpy.execute(ENCODING)))["encoding"])
    return _encoding[0]


def check_for_cancel(plpy: Plpy) -> None:
    """Run a statement, which raises the error of a cancel request or a timeout that has arrived."""
    plpy.execute("select 1")


@contextmanager
def callers_path(plpy: Plpy, path: str | None) -> Iterator[None]:
    """Run the block with the caller's search_path, then restore the previous path, also after an error.

    Every public function pins `search_path`, so a caller's relation whose functions use unqualified names can only be
    read inside such a block. SQL text that we write for the block must qualify every function, type and operator.
    With `path` None the path does not change. Raises SPIError for a path that is not a list of names.
    """
    if path is None:
        yield
        return
    pinned = fetch(plpy, CURRENT_PATH)[0]["path"]
    fetch(plpy, SET_PATH, path)
    try:
        yield
    finally:
        fetch(plpy, SET_PATH, pinned)


def qualified(plpy: Plpy, schema: str, name: str) -> str:
    """Return the name with its schema, quoted."""
    return f"{plpy.quote_ident(schema)}.{plpy.quote_ident(name)}"


def literal(text: str) -> str:
    """Return the text as a SQL literal, for hints."""
    return "'" + text.replace("'", "''") + "'"


SQL_ASCII = "SQL_ASCII"  # the encoding in which PostgreSQL accepts any bytes
ENCODING = "select pg_catalog.getdatabaseencoding() as encoding"
CURRENT_PATH = "select pg_catalog.current_setting('search_path') as path"
# The setting is local, so PostgreSQL reverts it at the end of the function that pins search_path in any case.
SET_PATH = "select pg_catalog.set_config('search_path', $1::pg_catalog.text, true)"
_plans: dict[str, PreparedStatement] = {}
_encoding: list[str] = []  # of the session's database, once it is known
