"""Reads SQL statements from files of named blocks.

A block begins with a line `-- name --` and ends where the next block begins.
"""

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import LiteralString

from indb_tensile.errors import InvariantError


def query(name: str) -> LiteralString:
    """Return the statement `name` of `queries.sql`."""
    return _queries()[name]


def parse(text: str) -> Mapping[str, str]:
    """Split a file into its blocks, by name. Raises InvariantError for a repeated name or a block without SQL."""
    parts = _NAME.split(text)
    blocks: dict[str, str] = {}
    for name, body in zip(parts[1::2], parts[2::2], strict=True):
        if name in blocks:
            raise InvariantError(f"the SQL block {name} is defined twice")
        if not _COMMENT.sub("", body).strip():
            raise InvariantError(f"the SQL block {name} is empty")
        blocks[name] = body.strip()
    return blocks


_NAME = re.compile(r"^-- (\w+) --$", re.MULTILINE)
_COMMENT = re.compile(r"^\s*--.*$", re.MULTILINE)


@cache
def _queries() -> Mapping[str, str]:
    return parse(Path(__file__).with_name("queries.sql").read_text(encoding="utf-8"))
