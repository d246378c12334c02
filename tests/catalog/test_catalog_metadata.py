"""The SQLAlchemy metadata of schema `tensile` is compared with an installed catalog, in both directions."""

from collections.abc import Iterator

import pytest
from sqlalchemy import Column, ForeignKeyConstraint, Table, create_engine
from sqlalchemy.dialects import postgresql

from indb_tensile.catalog.sqlalchemy import (  # noqa: F401 - adds them to the metadata
    catalog_views,
    device_tables,
    rank_tables,
    search_tables,
    usage_tables,
)
from indb_tensile.catalog.sqlalchemy.catalog_tables import metadata
from tests.conftest import Database

pytestmark = pytest.mark.postgres

TABLES = tuple(metadata.sorted_tables)
DIALECT = create_engine("postgresql+psycopg://").dialect


def test_the_metadata_has_the_tables_and_views_of_the_catalog_and_no_others(database: Database) -> None:
    with database.connect() as connection:
        relations = connection.execute(
            """select relname, relkind = 'v' from pg_class
                where relnamespace = 'tensile'::regnamespace and relkind in ('r', 'p', 'v', 'm', 'f')"""
        ).fetchall()
    assert len(relations) > 30
    assert {(table.name, bool(table.info.get("view"))) for table in TABLES} == set(relations)
    assert {table.schema for table in TABLES} == {"tensile"}


def test_the_metadata_has_the_columns_of_the_catalog_with_their_types_and_nullability(database: Database) -> None:
    """A column that the metadata forgets, invents or types otherwise fails this test with its name."""
    types = sorted({_type(column) for column in _columns()})
    with database.connect() as connection:
        named: dict[str, str | None] = dict(
            connection.execute(
                "select name, format_type(to_regtype(name), null) from unnest(%s::text[]) as name", (types,)
            ).fetchall()
        )
        columns = connection.execute(
            """select c.relname, a.attname, format_type(a.atttypid, a.atttypmod), not a.attnotnull
                 from pg_class as c join pg_attribute as a on a.attrelid = c.oid
                where c.relnamespace = 'tensile'::regnamespace and c.relkind in ('r', 'p', 'v', 'm', 'f')
                  and a.attnum > 0 and not a.attisdropped"""
        ).fetchall()
    assert None not in named.values(), named
    described = {(column.table.name, column.name, named[_type(column)], column.nullable) for column in _columns()}
    assert described == set(columns)


def test_the_metadata_has_the_primary_and_foreign_keys_of_the_catalog(database: Database) -> None:
    with database.connect() as connection:
        keys = connection.execute(
            """select k.contype::text, k.conrelid::regclass::text,
                      case k.contype when 'f' then k.confrelid::regclass::text else '' end,
                      array(select a.attname::text from unnest(k.conkey) with ordinality as n (number, place)
                              join pg_attribute as a on a.attrelid = k.conrelid and a.attnum = n.number
                             order by n.place),
                      array(select a.attname::text from unnest(k.confkey) with ordinality as n (number, place)
                              join pg_attribute as a on a.attrelid = k.confrelid and a.attnum = n.number
                             order by n.place)
                 from pg_constraint as k
                where k.connamespace = 'tensile'::regnamespace and k.contype in ('p', 'f')"""
        ).fetchall()
    assert {key for table in TABLES for key in _keys(table)} == {
        (kind, table, other, tuple(columns), tuple(others)) for kind, table, other, columns, others in keys
    }


def test_the_enums_have_the_labels_of_the_catalog_in_their_order(database: Database) -> None:
    enums = {
        str(column.type.name): list(column.type.enums)
        for column in _columns()
        if isinstance(column.type, postgresql.ENUM)
    }
    with database.connect() as connection:
        labels = connection.execute(
            """select t.typname, array_agg(e.enumlabel::text order by e.enumsortorder)
                 from pg_type as t join pg_enum as e on e.enumtypid = t.oid
                where t.typnamespace = 'tensile'::regnamespace group by t.typname"""
        ).fetchall()
    assert enums == dict(labels)


def _columns() -> Iterator[Column[object]]:
    for table in TABLES:
        yield from table.columns


def _type(column: Column[object]) -> str:
    """Return the type as SQLAlchemy writes it in SQL."""
    return column.type.compile(dialect=DIALECT)


def _keys(table: Table) -> Iterator[tuple[str, str, str, tuple[str, ...], tuple[str, ...]]]:
    name = f"tensile.{table.name}"
    if table.primary_key.columns:
        yield "p", name, "", tuple(column.name for column in table.primary_key.columns), ()
    for constraint in table.constraints:
        if isinstance(constraint, ForeignKeyConstraint):
            columns = tuple(column.name for column in constraint.columns)
            others = tuple(element.column.name for element in constraint.elements)
            yield "f", name, f"tensile.{constraint.referred_table.name}", columns, others
