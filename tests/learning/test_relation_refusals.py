"""A relation that cannot be read is refused with the reason and the way out."""

import pytest

from indb_tensile.errors import (
    DataError,
    MissingError,
    PrivilegeError,
    RequestError,
)
from indb_tensile.job import Relation
from indb_tensile.learning.relation.locked_relation import ProtectedError, ReadLimits, UnreadableError
from indb_tensile.learning.relation.relation_reader import read
from indb_tensile.request import copyable_relation
from tests.conftest import Database
from tests.learning.relations import all_columns, read_all, relation

pytestmark = pytest.mark.postgres


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ("'{1,2,3}'", "shape 3, the rows before it have 2"),
        ("'{{1,2}}'", "shape 1 x 2"),
        ("'{1,null}'", "contains NULL"),
        ("'[0:1]={1,2}'", "start at 0, not at 1"),
        ("'{}'", "the array is empty"),
    ],
)
def test_an_array_that_is_not_a_tensor_is_refused_with_column_and_row(
    database: Database, value: str, fault: str
) -> None:
    with database.connect() as connection:
        connection.execute("create table t (a real[]); insert into t select '{1,2}' from generate_series(1, 300)")
        connection.execute(f"insert into t values ({value})")
        with pytest.raises(DataError, match=f'column "a", row 301: .*{fault}'):
            read_all(database, "t")


def test_unsupported_types_are_refused_with_their_columns(database: Database) -> None:
    with database.connect() as connection:
        connection.execute("create table t (a int, b inet, c point)")
        with pytest.raises(RequestError, match=r'column "b" \(inet\), "c" \(point\)') as caught:
            read_all(database, "t")
    assert "double precision" in caught.value.detail
    assert caught.value.hint == "Leave out what cannot be learned from: exclude => '{b, c}'."


@pytest.mark.parametrize(
    ("statement", "fault", "way_out"),
    [
        ("create view t as select 1 as a", "is a view", "a snapshot then takes its rows"),
        ("create materialized view t as select 1 as a", "is a materialized view", "a snapshot then takes its rows"),
        ("create sequence t", "is a sequence", "Name the table that holds the rows"),
    ],
)
def test_a_relation_that_is_not_a_table_is_refused_with_the_way_out(
    database: Database, statement: str, fault: str, way_out: str
) -> None:
    with database.connect() as connection:
        connection.execute(statement)
        with pytest.raises(RequestError, match=fault) as caught:
            read_all(database, "t")
    assert way_out in caught.value.hint


def test_a_temporary_table_is_refused(database: Database) -> None:
    with database.connect() as connection:
        connection.execute("create temporary table t (a int)")
        row = connection.execute("select 't'::regclass::oid, pg_my_temp_schema()::regnamespace::text").fetchone()
        assert row is not None
        with pytest.raises(UnreadableError, match="temporary table"):
            read(connection, Relation(oid=row[0], schema=row[1], name="t"), all_columns)


_FOREIGN = "create extension file_fdw; create server files foreign data wrapper file_fdw; "


@pytest.mark.parametrize(
    ("statement", "error", "reasons"),
    [
        (
            "create table t (a int); alter table t enable row level security",
            ProtectedError,
            [(copyable_relation.ROW_SECURITY, "t", "")],
        ),
        (
            "create table u (a int); create table t () inherits (u); alter table u enable row level security",
            ProtectedError,
            [(copyable_relation.ROW_SECURITY, "u", "")],
        ),
        (
            "create table t (a int); create table u () inherits (t); alter table u enable row level security",
            ProtectedError,
            [(copyable_relation.ROW_SECURITY, "u", "")],
        ),
        (
            """create table t (a int); create table other (a int); create table u () inherits (t, other);
               alter table other enable row level security""",
            ProtectedError,
            [(copyable_relation.ROW_SECURITY, "other", "")],
        ),
        (
            "create table t (a int); create temporary table u () inherits (t)",
            UnreadableError,
            [(copyable_relation.TEMPORARY, "u", "")],
        ),
        (
            _FOREIGN + "create foreign table t (a int) server files options (filename '/dev/null')",
            UnreadableError,
            [(copyable_relation.FOREIGN_TABLE, "t", "")],
        ),
        (
            _FOREIGN
            + """create table t (a int) partition by list (a); create foreign table u partition of t default
               server files options (filename '/dev/null')""",
            UnreadableError,
            [(copyable_relation.FOREIGN_TABLE, "u", "")],
        ),
        (
            "create table t (a int, b int generated always as (a * 2) stored)",
            UnreadableError,
            [(copyable_relation.GENERATED, "t", "b")],
        ),
        (
            "create table t (a int, b int); create table u (b int generated always as (a * 2) stored) inherits (t)",
            UnreadableError,
            [(copyable_relation.GENERATED, "t", "b")],
        ),
        (
            "create table t (k money primary key, a int)",
            UnreadableError,
            [(copyable_relation.KEY_TYPE, "t", "k")],
        ),
    ],
)
def test_a_table_that_cannot_be_copied_is_refused_with_the_reason(
    database: Database, statement: str, error: type[UnreadableError], reasons: list[tuple[str, str, str]]
) -> None:
    with database.connect() as connection:
        connection.execute(statement.encode())
        names = ("a", "b") if " b " in statement else ("a",)
        with pytest.raises(error) as caught:
            read(connection, relation(connection, "t"), lambda _: names)
    assert [(reason.code, reason.name, reason.column) for reason in caught.value.reasons] == reasons
    assert caught.value.hint


def test_a_table_with_an_unused_generated_column_is_read(database: Database) -> None:
    with database.connect() as connection:
        connection.execute(
            "create table t (a int, b int generated always as (a * 2) stored); insert into t values (1)"
        )
        assert read(connection, relation(connection, "t"), lambda _: ("a",)).rows == 1


def test_the_hint_contains_the_statements_for_all_missing_grants(database: Database) -> None:
    with database.connect() as owner, database.connect("tensile_reader") as reader:
        owner.execute(
            """create schema hidden; create table hidden.t (a int) partition by list (a);
               create table hidden.t1 partition of hidden.t for values in (1);
               create table "T 2" partition of hidden.t for values in (2)"""
        )
        row = owner.execute("select 'hidden.t'::regclass::oid").fetchone()
        assert row is not None
        target = Relation(oid=row[0], schema="hidden", name="t")
        with pytest.raises(PrivilegeError) as caught:
            read(reader, target, all_columns)
        assert caught.value.hint == (
            'Run: grant usage on schema "hidden" to "tensile_reader"; '
            'grant select on "hidden"."t1", "public"."T 2" to "tensile_reader";'
        )
        owner.execute(caught.value.hint.removeprefix("Run: "))
        assert read(reader, target, all_columns).rows == 0


def test_the_owner_of_the_job_must_be_able_to_read_the_columns(database: Database) -> None:
    with database.connect() as connection:
        connection.execute("create table t (id int primary key, a int, secret int); grant select (a) on t to bob")
        row = connection.execute("select 'bob'::regrole::oid").fetchone()
        assert row is not None
        target = relation(connection, "t")
        assert list(read(connection, target, lambda _: ("a",), owner_oid=row[0]).columns) == ["a"]
        with pytest.raises(PrivilegeError, match=r"role bob may not read table public\.t"):
            read(connection, target, lambda _: ("a", "secret"), owner_oid=row[0])
        with pytest.raises(MissingError, match="role 1\\)"):
            read(connection, target, lambda _: ("a",), owner_oid=1)


def test_a_table_beyond_the_limit_is_refused_with_the_figures(database: Database) -> None:
    with database.connect() as connection:
        connection.execute("create table t (a float8[]); insert into t select array_fill(1::float8, array[100000])")
        target = relation(connection, "t")
        with pytest.raises(DataError, match=r"781\.3 kB, and the limit is 488\.3 kB") as caught:
            read(connection, target, all_columns, limits=ReadLimits(size_bytes=500_000))
        assert "TENSILE_READ_LIMIT_BYTES" in caught.value.hint
        assert read(connection, target, all_columns, limits=ReadLimits(size_bytes=800_009)).rows == 1


def test_a_row_beyond_the_limit_is_refused_before_it_is_decoded(database: Database) -> None:
    with database.connect() as connection:
        connection.execute("create table t (a text); insert into t values (repeat('a', 20000000))")
        target = relation(connection, "t")
        with pytest.raises(DataError, match=r"19\.1 MB, and the limit is 976\.6 kB"):
            read(connection, target, all_columns, limits=ReadLimits(size_bytes=1_000_000))


def test_a_key_type_of_an_extension_not_owned_by_a_superuser_is_refused(database: Database) -> None:
    with database.connect() as admin, database.connect("alice") as alice:
        admin.execute(
            "do $$ begin execute format('grant create on database %I to alice', current_database()); end $$"
        )
        alice.execute("create extension citext; create table t (k citext primary key, a int)")
        alice.execute("grant select on t to tensile_reader")
        with pytest.raises(UnreadableError) as caught, database.connect("tensile_reader") as reader:
            read(reader, relation(admin, "t"), lambda _: ("a",))
        assert [reason.code for reason in caught.value.reasons] == [copyable_relation.SEND_FUNCTION]
        assert "type public.citext, whose send function does not belong to a superuser" in caught.value.message
        alice.execute("alter table t drop constraint t_pkey")
        with database.connect("tensile_reader") as reader:
            assert read(reader, relation(admin, "t"), lambda _: ("a",)).rows == 0
