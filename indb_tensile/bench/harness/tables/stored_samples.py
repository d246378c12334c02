"""Stores tables in a benchmark's database: those of `tensile_load_dataset`, without a service, and sample tables."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from psycopg import sql

from indb_tensile.bench.harness.tables.sample_tables import SampleTable
from indb_tensile.catalog.connection import Connection
from indb_tensile.catalog.queries import parse
from indb_tensile.learning.relation import datasets
from indb_tensile.learning.storage.columns import ColumnData, ColumnKind

_SQL = parse(Path(__file__).with_name("stored_samples.sql").read_text(encoding="utf-8"))
_TYPES = {
    ColumnKind.INTEGER: "bigint",
    ColumnKind.FLOAT: "double precision",
    ColumnKind.BOOLEAN: "boolean",
    ColumnKind.TEXT: "text",
    ColumnKind.TIME: "timestamptz",
    ColumnKind.ARRAY: "real[]",
}


def store_samples(connection: Connection, names: Sequence[str]) -> None:
    """Create these data sets as tables in schema public, and let every role read them."""
    for name in names:
        _store(connection, name, datasets.columns(name), datasets.rows(name))


def store_table(connection: Connection, table: SampleTable) -> None:
    """Create a sample table in schema public, and let every role read it."""
    columns = table.table.columns
    described = [(name, _TYPES[data.kind]) for name, data in columns.items()]
    _store(connection, table.name, described, zip(*map(_values, columns.values()), strict=True))


def _store(
    connection: Connection, name: str, columns: Sequence[tuple[str, str]], rows: Iterable[Sequence[Any]]
) -> None:
    """Create a table whose first column is its key."""
    table = sql.Identifier("public", name)
    declared = [sql.SQL(f"{{}} {kind}").format(sql.Identifier(column)) for column, kind in columns]
    create = sql.SQL(_SQL["create_table"])
    key = sql.Identifier(columns[0][0])
    connection.execute(create.format(table=table, columns=sql.SQL(", ").join(declared), key=key))
    with connection.cursor().copy(sql.SQL(_SQL["copy_table"]).format(table)) as copy:
        for row in rows:
            copy.write_row(row)
    for statement in ("analyze_table", "grant_table"):
        connection.execute(sql.SQL(_SQL[statement]).format(table))


def _values(data: ColumnData) -> list[Any]:
    """Return the column's values as psycopg writes them, with None for NULL."""
    if data.kind is ColumnKind.TIME:
        values = list(np.asarray(data.values).astype("datetime64[s]").astype(object))
    else:
        values = list(data.values.tolist())
    return [None if missing else value for value, missing in zip(values, data.missing.tolist(), strict=True)]
