"""The session's own database, as PL/Python gives access to it; names and texts as SQL writes them."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

Json = dict[str, Any]
Row = Mapping[str, Any]


class Plan(Protocol):
    """A prepared statement of PL/Python."""


class Cursor(Protocol):
    """A statement's rows, some at a time."""

    def fetch(self, count: int) -> Iterable[Row]:
        """The next rows; none where all were fetched."""


class Plpy(Protocol):
    """What is used of PL/Python's module `plpy`."""

    @property
    def SPIError(self) -> type[Exception]:  # noqa: N802 - its name there
        """What an error of SQL is raised as."""

    def prepare(self, query: str, types: Sequence[str]) -> Plan:
        """Prepare a statement."""

    def execute(self, plan: Plan | str, arguments: Sequence[object] = ()) -> Iterable[Row]:
        """Run it; an error is an SPIError."""

    def cursor(self, query: str) -> Cursor:
        """Begin it; its rows are computed when they are fetched."""

    def notice(self, message: str) -> None:
        """Tell the client."""

    def quote_ident(self, name: str) -> str:
        """The name as SQL wants it."""


def fetch(plpy: Plpy, statement: str, *arguments: object) -> Sequence[Row]:
    """All rows of a statement, prepared once per session; its casts say the parameters' types."""
    if statement not in _plans:
        types = dict(re.findall(r"\$(\d+)::([\w.]+)", statement))
        _plans[statement] = plpy.prepare(statement, [types[number] for number in sorted(types, key=int)])
    return list(plpy.execute(_plans[statement], arguments))


@contextmanager
def callers_path(plpy: Plpy, path: str | None) -> Iterator[None]:
    """Run the block under the caller's search_path, then restore the path before it, also after an error.

    Every public function pins `search_path`, so a caller's relation whose functions use unqualified names can only
    be read inside such a block. Text that we write for the block must qualify every function, type and operator.
    `path` None leaves the path as it is. Raises SPIError for a path that is not a list of names.
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
    """The name with its schema, quoted."""
    return f"{plpy.quote_ident(schema)}.{plpy.quote_ident(name)}"


def literal(text: str) -> str:
    """The text as a SQL literal, for hints."""
    return "'" + text.replace("'", "''") + "'"


CURRENT_PATH = "select pg_catalog.current_setting('search_path') as path"
# Local: PostgreSQL undoes it at the end of the function that pins search_path, whatever happens here.
SET_PATH = "select pg_catalog.set_config('search_path', $1::pg_catalog.text, true)"
_plans: dict[str, Plan] = {}
