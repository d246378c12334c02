"""Helpers of the tests that read relations: a relation by its name, and the whole of a table."""

from collections.abc import Sequence
from typing import Any

import psycopg

from indb_tensile.job import Relation
from indb_tensile.learning.relation.relation_reader import read
from indb_tensile.learning.storage.columns import Column, TableData
from tests.conftest import Database

Connection = psycopg.Connection[Any]


def relation(connection: Connection, name: str) -> Relation:
    row = connection.execute("select %s::regclass::oid", [name]).fetchone()
    assert row is not None
    return Relation(oid=row[0], schema="public", name=name)


def all_columns(described: Sequence[Column]) -> tuple[str, ...]:
    return tuple(column.name for column in described)


def read_all(database: Database, name: str) -> TableData:
    """Read the whole table as the trainers' role, with `select` granted on every table."""
    with database.connect() as admin, database.connect("tensile_reader") as reader:
        admin.execute("grant select on all tables in schema public to tensile_reader")
        return read(reader, relation(admin, name), all_columns)
