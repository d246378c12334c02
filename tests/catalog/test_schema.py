"""The catalog documents itself, and agrees with the Python types."""

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


def test_foreign_keys_form_no_circle(database: Database) -> None:
    with database.connect() as connection:
        rows = connection.execute(
            "select conrelid::regclass::text, confrelid::regclass::text from pg_constraint"
            " where contype = 'f' and connamespace = 'tensile'::regnamespace"
        ).fetchall()
    waiting = {table for row in rows for table in row}
    assert "tensile.jobs" in waiting
    while waiting:
        free = {table for table in waiting if not any(a == table and b in waiting for a, b in rows)}
        assert free, f"these tables refer to one another in a circle: {sorted(waiting)}"
        waiting -= free


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
    public = {"settings", "workers", "devices", "device_paces", "device_links", "graphs", "op_latency"}
    public |= {"op_descriptions", "predictors"}
    with database.connect() as connection:
        rows = connection.execute(
            "select relname from pg_class where relnamespace = 'tensile'::regnamespace and relkind = 'r'"
            " and not relrowsecurity"
        ).fetchall()
        assert {row[0] for row in rows} == public


def test_definers_functions_pin_their_search_path(database: Database) -> None:
    with database.connect() as connection:
        rows = connection.execute(
            "select proname from pg_proc where prosecdef and proowner = 'postgres'::regrole"
            " and (pronamespace = 'tensile'::regnamespace or proname like 'tensile%')"
            " and not coalesce(proconfig::text like '%search_path=%', false)"
        ).fetchall()
        assert rows == []


def test_a_template_copy_is_another_installation(database: Database) -> None:
    with database.connect() as connection, database.connect("alice") as alice:
        here = connection.execute("select tensile.installation()").fetchone()
        assert here == alice.execute("select tensile.installation()").fetchone()
        connection.execute("create database copied template template_tensile")
    try:
        with psycopg.connect(database.cluster.dsn(database="copied")) as copied:
            assert copied.execute("select tensile.installation()").fetchone() != here
    finally:
        with database.connect() as connection:
            connection.execute("drop database copied with (force)")
