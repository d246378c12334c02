"""Reads the command line's SQL statements from the named blocks of `statements.sql`."""

from functools import cache
from pathlib import Path
from typing import LiteralString

from indb_tensile.catalog.queries import parse


def statement(name: str) -> LiteralString:
    """Return the statement `name`."""
    return _statements()[name]


@cache
def _statements() -> dict[str, str]:
    return dict(parse(Path(__file__).with_name("statements.sql").read_text(encoding="utf-8")))
