"""Reads the command line's SQL statements from the named blocks of `statements.sql`.

A block may name another one between at signs, which stands for its text.
"""

from functools import cache
from pathlib import Path
from typing import LiteralString

from indb_tensile.catalog.queries import parse

_SHARED = "training_request"  # the block that others name


def statement(name: str) -> LiteralString:
    """Return the statement `name`."""
    return _statements()[name]


@cache
def _statements() -> dict[str, str]:
    blocks = parse(Path(__file__).with_name("statements.sql").read_text(encoding="utf-8"))
    lines = blocks[_SHARED].splitlines()
    shared = "\n".join(line for line in lines if not line.startswith("--"))
    return {name: text.replace(f"@{_SHARED}@", shared) for name, text in blocks.items()}
