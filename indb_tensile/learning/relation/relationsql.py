"""Loads the named statements of relation_reader.sql, and reads the statistics of a table."""

import re
from pathlib import Path
from typing import Any, LiteralString, cast

import psycopg

from indb_tensile.learning.relation.memory_estimate import ColumnStatistics, Statistics
from indb_tensile.learning.storage.columns import CopyEncoding

_BLOCK = re.compile(r"^-- (\w+) --$", re.MULTILINE)


def statement(name: str) -> LiteralString:
    """Return the text of a named block."""
    return _STATEMENTS[name]


def read_statistics(
    connection: psycopg.Connection[Any], oids: list[int], wires: dict[str, CopyEncoding]
) -> Statistics:
    """Return PostgreSQL's statistics of these tables together, without reading a row."""
    parameters = {"oids": oids}
    row = connection.execute(statement("table_statistics"), parameters).fetchone()
    assert row is not None
    column_statistics = {
        name: ColumnStatistics(width_bytes=width_bytes, distinct=distinct, null_share=null_share)
        for name, width_bytes, distinct, null_share in connection.execute(statement("column_statistics"), parameters)
    }
    return Statistics(rows=row[0], analyzed=row[1], stored_bytes=row[2], columns=column_statistics, wires=wires)


def _blocks(text: str) -> dict[str, LiteralString]:
    """Return the named blocks of an SQL file."""
    parts = _BLOCK.split(text)
    return {name: cast(LiteralString, body.strip()) for name, body in zip(parts[1::2], parts[2::2], strict=True)}


_STATEMENTS = _blocks(Path(__file__).with_name("relation_reader.sql").read_text())
