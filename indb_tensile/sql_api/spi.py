"""The session's own database, as PL/Python gives access to it; names and texts as SQL writes them."""

import re
from collections.abc import Iterable, Mapping, Sequence
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
        types = dict(re.findall(r"\$(\d+)::(\w+)", statement))
        _plans[statement] = plpy.prepare(statement, [types[number] for number in sorted(types, key=int)])
    return list(plpy.execute(_plans[statement], arguments))


def qualified(plpy: Plpy, schema: str, name: str) -> str:
    """The name with its schema, quoted."""
    return f"{plpy.quote_ident(schema)}.{plpy.quote_ident(name)}"


def literal(text: str) -> str:
    """The text as a SQL literal, for hints."""
    return "'" + text.replace("'", "''") + "'"


_plans: dict[str, Plan] = {}
