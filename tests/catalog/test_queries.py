"""Check that the catalog's named SQL blocks are parsed, and that none is missing or unused."""

import re
from pathlib import Path

import pytest

from indb_tensile.catalog import queries
from indb_tensile.errors import InvariantError

CATALOG = Path(queries.__file__).parent


def test_block_extends_from_its_name_to_the_next_name() -> None:
    assert queries.parse("-- a --\nselect 1\n-- why\n\n-- b --\nselect 2\n") == {
        "a": "select 1\n-- why",
        "b": "select 2",
    }


def test_duplicate_name_is_refused() -> None:
    with pytest.raises(InvariantError, match="block a is defined twice"):
        queries.parse("-- a --\nselect 1\n-- a --\nselect 2\n")


def test_block_without_a_statement_is_refused() -> None:
    with pytest.raises(InvariantError, match="block a is empty"):
        queries.parse("-- a --\n-- nothing\n")


def test_every_block_is_used_and_every_used_name_is_a_block() -> None:
    blocks = set(queries.parse((CATALOG / "queries.sql").read_text()))
    source = "\n".join(path.read_text() for path in CATALOG.glob("*.py"))
    quoted_names = set(re.findall(r'"(\w+)"', source))
    assert blocks <= quoted_names
    used_names = re.findall(
        r'(?:query|_guarded|_only|_about_plan|_write_chunks|_read_chunks)\(\s*(?:connection,\s*)?"(\w+)"', source
    )
    assert set(used_names) <= blocks
