"""Check rules of the schema: comments, foreign keys, row-level security, search paths, and enums as in Python."""

from enum import StrEnum

import psycopg
import pytest

from indb_tensile.job import CheckpointStore, JobState, Phase, Task
from indb_tensile.scheduler.link import CopyDirection
from tests.conftest import Database

pytestmark = pytest.mark.postgres

ENUMS = [
    ("job_state", JobState),
    ("job_phase", Phase),
    ("task", Task),
    ("copy_way", CopyDirection),
    ("checkpoint_store", CheckpointStore),
]


@pytest.mark.parametrize(("name", "labels"), ENUMS)
def test_enums_equal_the_types_in_python(database: Database, name: str, labels: type[StrEnum]) -> None:
    with database.connect() as connection:
        rows = connection.execute(
            "select enumlabel from pg_enum where enumtypid = ('tensile.' || %s)::regtype order by enumsortorder",
            (name,),
        )
        assert [row[0] for row in rows] == [label.value for label in labels]


def test_every_table_column_view_enum_sequence_and_function_has_a_comment(database: Database) -> None:
    with database.connect() as connection:
        rows = connection.execute(
            """
            select c.relname
              from pg_class as c
             where c.relnamespace = 'tensile'::regnamespace and c.relkind in ('r', 'v', 'S')
               and obj_description(c.oid, 'pg_class') is null
               and not exists (select from pg_depend as d where d.objid = c.oid and d.deptype = 'i'
                                                            and c.relkind = 'S')  -- an identity column's
            union all
            select c.relname || '.' || a.attname
              from pg_class as c join pg_attribute as a on a.attrelid = c.oid
             where c.relnamespace = 'tensile'::regnamespace and c.relkind in ('r', 'v')
               and a.attnum > 0 and not a.attisdropped and col_description(c.oid, a.attnum) is null
            union all
            select typname from pg_type
             where typnamespace = 'tensile'::regnamespace and typtype = 'e'
               and obj_description(oid, 'pg_type') is null
            union all
            select proname from pg_proc
             where pronamespace = 'tensile'::regnamespace and obj_description(oid, 'pg_proc') is null
            """
        ).fetchall()
        assert rows == []


def test_foreign_keys_form_no_cycle(database: Database) -> None:
    with database.connect() as connection:
        rows = connection.execute(
            "select conrelid::regclass::text, confrelid::regclass::text from pg_constraint"
            " where contype = 'f' and connamespace = 'tensile'::regnamespace"
        ).fetchall()
    remaining = {table for row in rows for table in row}
    assert "tensile.jobs" in remaining
    while remaining:
        unreferencing = {table for table in remaining if not any(a == table and b in remaining for a, b in rows)}
        assert unreferencing, f"these tables refer to one another in a circle: {sorted(remaining)}"
        remaining -= unreferencing


def test_every_foreign_key_has_an_index_on_its_own_side(database: Database) -> None:
    with database.connect() as connection:
        rows = connection.execute(
            """
            select conname from pg_constraint as f
             where contype = 'f' and connamespace = 'tensile'::regnamespace
               and not exists (select from pg_index as i where i.indrelid = f.conrelid and i.indkey[0] = f.conkey[1])
            """
        ).fetchall()
        assert rows == []


def test_every_table_of_users_rows_has_row_level_security(database: Database) -> None:
    shared_tables = {"settings", "workers", "devices", "device_paces", "device_links", "graphs", "op_latency"}
    shared_tables |= {"device_contention", "device_overheads", "device_samples", "op_descriptions", "predictors"}
    shared_tables |= {"rank_networks", "rank_memory"}
    with database.connect() as connection:
        rows = connection.execute(
            "select relname from pg_class where relnamespace = 'tensile'::regnamespace and relkind = 'r'"
            " and not relrowsecurity"
        ).fetchall()
        assert {row[0] for row in rows} == shared_tables


def test_security_definer_functions_pin_their_search_path(database: Database) -> None:
    with database.connect() as connection:
        rows = connection.execute(
            "select proname from pg_proc where prosecdef and proowner = 'postgres'::regrole"
            " and (pronamespace = 'tensile'::regnamespace or proname like 'tensile%')"
            " and not coalesce(proconfig::text like '%search_path=%', false)"
        ).fetchall()
        assert rows == []


def test_copy_from_a_template_is_another_installation(database: Database) -> None:
    with database.connect() as connection, database.connect("alice") as alice:
        own_id = connection.execute("select tensile.installation()").fetchone()
        assert own_id == alice.execute("select tensile.installation()").fetchone()
        connection.execute("create database copied template template_tensile")
    try:
        with psycopg.connect(database.cluster.dsn(database="copied")) as copied:
            assert copied.execute("select tensile.installation()").fetchone() != own_id
    finally:
        with database.connect() as connection:
            connection.execute("drop database copied with (force)")
