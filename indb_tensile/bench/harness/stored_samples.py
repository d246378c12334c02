"""Stores the sample tables of `tensile_load_dataset` in a benchmark's database, without a service."""

from collections.abc import Sequence
from pathlib import Path

from psycopg import sql

from indb_tensile.catalog.connection import Connection
from indb_tensile.catalog.queries import parse
from indb_tensile.learning import datasets

_SQL = parse(Path(__file__).with_name("stored_samples.sql").read_text(encoding="utf-8"))


def store_samples(connection: Connection, names: Sequence[str]) -> None:
    """Create these tables in schema public, with their rows, and let every role read them."""
    for name in names:
        table, columns = sql.Identifier("public", name), datasets.columns(name)
        declared = [sql.SQL(f"{{}} {kind}").format(sql.Identifier(column)) for column, kind in columns]
        create = sql.SQL(_SQL["create_table"])
        key = sql.Identifier(columns[0][0])
        connection.execute(create.format(table=table, columns=sql.SQL(", ").join(declared), key=key))
        with connection.cursor().copy(sql.SQL(_SQL["copy_table"]).format(table)) as copy:
            for row in datasets.rows(name):
                copy.write_row(row)
        for statement in ("analyze_table", "grant_table"):
            connection.execute(sql.SQL(_SQL[statement]).format(table))
