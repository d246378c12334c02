"""Reading real tables from a real PostgreSQL."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import psycopg
import pytest
from psycopg.pq import TransactionStatus

from indb_tensile.errors import (
    DataError,
    InvariantError,
    MissingError,
    PrivilegeError,
    RequestError,
    TableBusyError,
)
from indb_tensile.job import Relation
from indb_tensile.learning.columns import Column, ColumnKind, TableData
from indb_tensile.learning.jsonrows import column_of, number
from indb_tensile.learning.relation_reader import ProtectedError, ReadLimits, UnreadableError, describe, read
from indb_tensile.request import copyable_relation
from tests.conftest import Database

pytestmark = pytest.mark.postgres

Connection = psycopg.Connection[Any]

_SCALARS = """
create type mood as enum ('sad', 'glad');
create domain positive as float8 check (value > 0);
create table t (
    id bigint generated always as identity primary key,
    small smallint, plain int, big bigint, single real, twice double precision, exact numeric(10, 3), yes boolean,
    words text, short varchar(8), fixed char(4), feeling mood, rooms positive, day date,
    moment timestamp, instant timestamptz
);
insert into t (small, plain, big, single, twice, exact, yes, words, short, fixed, feeling, rooms,
               day, moment, instant)
select i, -i, 5000000000 + i, i / 2.0, i / 3.0, i / 8.0, i % 2 = 0, 'w' || i % 3, 'v' || i, 'ab', 'glad', 1 + i,
       date '2020-01-01' + i, timestamp '2020-01-01 12:00' + i * interval '1 hour', '2020-01-01 00:00+02'
  from generate_series(1, 500) as i;
insert into t (small) values (null);
insert into t (day, moment, twice, exact) values ('infinity', '-infinity', 'NaN', 'NaN');
"""


_REPLACED = """
alter table t rename to old;
create table t (a int, secret int);
insert into t values (3, 3);
grant select (a) on t to tensile_reader;
alter table t rename to new; alter table old rename to t; update t set a = 2; alter table t alter secret type bigint
"""
_REWRITTEN = "update t set a = 2; alter table t alter secret type bigint"


def relation(connection: Connection, name: str) -> Relation:
    row = connection.execute("select %s::regclass::oid", [name]).fetchone()
    assert row is not None
    return Relation(oid=row[0], schema="public", name=name)


def every(described: Sequence[Column]) -> tuple[str, ...]:
    return tuple(column.name for column in described)


def read_all(database: Database, name: str) -> TableData:
    """The whole table, as the trainers' role, which is granted all that there is."""
    with database.connect() as admin, database.connect("tensile_reader") as reader:
        admin.execute("grant select on all tables in schema public to tensile_reader")
        return read(reader, relation(admin, name), every)


def test_every_scalar_type_arrives_as_it_was_stored(database: Database) -> None:
    with database.connect() as connection:
        connection.execute(_SCALARS)
        table = read_all(database, "t")
        columns = table.columns
    assert table.rows == 502
    assert list(columns) == [column.name for column in table.described]
    assert columns["small"].values[:3].tolist() == [1, 2, 3]
    assert columns["plain"].values[499] == -500
    assert columns["big"].values[0] == 5_000_000_001
    assert columns["single"].values[2] == 1.5
    assert columns["twice"].values[1] == 2 / 3
    assert columns["exact"].values[0] == 0.125
    assert columns["yes"].values[:2].tolist() == [False, True]
    assert columns["words"].values[:3].tolist() == ["w1", "w2", "w0"]
    assert columns["fixed"].values[0] == "ab"
    assert columns["feeling"].values[7] == "glad"
    assert columns["rooms"].values[0] == 2.0
    assert columns["day"].values[0] == 1_577_923_200.0  # 2020-01-02
    assert columns["moment"].values[0] == 1_577_883_600.0  # 2020-01-01 13:00
    assert columns["instant"].values[0] == 1_577_829_600.0  # 2019-12-31 22:00 UTC
    assert columns["small"].missing.tolist() == [False] * 500 + [True, True]
    assert columns["words"].missing[500]
    assert columns["day"].values[501] == np.inf
    assert columns["moment"].values[501] == -np.inf
    assert np.isnan(columns["twice"].values[501])
    assert np.isnan(columns["exact"].values[501])


def test_a_description_names_types_keys_identities_and_what_is_generated(database: Database) -> None:
    with database.connect() as connection:
        connection.execute(
            "create table t (id int generated always as identity primary key, a float8 not null,"
            " b float8 generated always as (a * 2) stored, c uuid, d real[][])"
        )
        described = describe(connection, relation(connection, "t"))
    facts = [(c.name, c.type, c.not_null, c.primary_key, c.identity, c.generated, c.dims) for c in described]
    assert facts == [
        ("id", "integer", True, True, True, False, 0),
        ("a", "double precision", True, False, False, False, 0),
        ("b", "double precision", False, False, False, True, 0),
        ("c", "uuid", False, False, False, False, 0),
        ("d", "real[]", False, False, False, False, 2),
    ]
    assert [column.wire is None for column in described] == [False, False, False, True, False]


def test_arrays_arrive_as_tensors_of_one_shape(database: Database) -> None:
    with database.connect() as connection:
        connection.execute(
            "create table t (a real[], b float8[], c numeric[], d int[]);"
            "insert into t select array[[i, 2], [3, 4.5]], array[i, 0.1], array[i, 'NaN'::numeric], array[i] "
            "from generate_series(1, 200) as i; insert into t values (null, '{1,2}', null, '{9}')"
        )
        columns = read_all(database, "t").columns
    assert columns["a"].values.shape == (201, 2, 2)
    assert columns["a"].values.dtype == np.float32
    assert columns["a"].values[4].tolist() == [[5, 2], [3, 4.5]]
    assert columns["b"].values[1].tolist() == [2, 0.1]
    assert np.isnan(columns["c"].values[0, 1])
    assert columns["d"].values[200].tolist() == [9]
    assert columns["a"].missing.tolist() == [False] * 200 + [True]
    assert {data.kind for data in columns.values()} == {ColumnKind.ARRAY}


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
def test_an_array_that_makes_no_tensor_is_refused_by_column_and_row(
    database: Database, value: str, fault: str
) -> None:
    with database.connect() as connection:
        connection.execute("create table t (a real[]); insert into t select '{1,2}' from generate_series(1, 300)")
        connection.execute(f"insert into t values ({value})")
        with pytest.raises(DataError, match=f'column "a", row 301: .*{fault}'):
            read_all(database, "t")


def test_rows_come_in_physical_order_and_equal_tables_have_equal_digests(database: Database) -> None:
    with database.connect() as connection:
        connection.execute(
            "create table t (id int primary key, x float8);"
            "insert into t select i, i from generate_series(2000, 1, -1) i"
        )
        connection.execute("analyze t")
        first, second = read_all(database, "t"), read_all(database, "t")
        physical = [row[0] for row in connection.execute("select id from t order by ctid")]
        connection.execute("update t set x = -1 where id = 7")
        third = read_all(database, "t")
    assert first.columns["id"].values.tolist() == physical
    assert first.digest == second.digest
    assert first.digest != third.digest
    assert len(first.digest) == 64


def test_no_index_changes_the_order(database: Database) -> None:
    with database.connect() as connection:
        connection.execute("create table t (id int primary key, wide text)")
        connection.execute("insert into t select i, repeat('x', 1000) from generate_series(5000, 1, -1) i")
        connection.execute("vacuum analyze t")
        plan = connection.execute("explain select id from t").fetchall()
        table = read(connection, relation(connection, "t"), lambda _: ("id",))
    assert "Index Only Scan" in plan[0][0]  # what an ordinary query would use
    assert table.columns["id"].values.tolist() == list(range(5000, 0, -1))


def test_a_rows_hash_follows_its_key_and_not_its_place(database: Database) -> None:
    with database.connect() as connection, database.connect() as reader:
        connection.execute("create table t (id uuid primary key, x int, y text)")
        connection.execute("insert into t select gen_random_uuid(), i, 'y' from generate_series(1, 50) i")
        before = read(reader, relation(connection, "t"), lambda _: ("x",))
        connection.execute("update t set y = 'z' where x <= 25")  # moves these rows to the end
        after = read(reader, relation(connection, "t"), lambda _: ("x",))
    assert list(before.columns) == ["x"]
    old = dict(zip(before.columns["x"].values.tolist(), before.row_hash.tolist(), strict=True))
    new = dict(zip(after.columns["x"].values.tolist(), after.row_hash.tolist(), strict=True))
    assert old == new
    assert before.row_hash.tolist() != after.row_hash.tolist()
    assert len(set(old.values())) == 50


def test_a_partitioned_table_is_read_whole(database: Database) -> None:
    with database.connect() as connection:
        connection.execute(
            "create table t (a int) partition by range (a);"
            "create table t1 partition of t for values from (0) to (10);"
            "create table t2 partition of t for values from (10) to (20); insert into t select generate_series(0, 19)"
        )
        table = read_all(database, "t")
    assert sorted(table.columns["a"].values.tolist()) == list(range(20))


def test_names_that_need_quotes_are_quoted(database: Database) -> None:
    with database.connect() as connection:
        connection.execute("""create table "o""dd 'name %s" ("a ""b" int, "select" int)""")
        connection.execute("""insert into "o""dd 'name %s" values (1, 2)""")
        row = connection.execute("select oid from pg_class where relname like 'o%%dd%%'").fetchone()
        assert row is not None
        table = read(connection, Relation(oid=row[0], schema="public", name="o\"dd 'name %s"), every)
    assert {name: data.values.tolist() for name, data in table.columns.items()} == {'a "b': [1], "select": [2]}


def test_an_empty_table_has_no_rows(database: Database) -> None:
    with database.connect() as connection:
        connection.execute("create table t (a int, b text, c real[])")
        table = read_all(database, "t")
    assert (table.rows, len(table.row_hash)) == (0, 0)


def test_a_type_that_cannot_be_learned_from_is_refused_by_name(database: Database) -> None:
    with database.connect() as connection:
        connection.execute("create table t (a int, b uuid, c json)")
        with pytest.raises(RequestError, match=r'column "b" \(uuid\), "c" \(json\)') as caught:
            read_all(database, "t")
    assert "double precision" in caught.value.detail
    assert caught.value.hint == "Leave it out: exclude => '{b, c}'."


def test_a_table_created_again_under_its_name_is_another_one(database: Database) -> None:
    with database.connect() as connection, database.connect() as reader:
        connection.execute("create table t (a int)")
        asked = relation(connection, "t")
        connection.execute("drop table t; create table t (a int)")
        with pytest.raises(MissingError, match=r"public\.t was dropped and created again"):
            read(reader, asked, every)
        connection.execute("drop table t")
        with pytest.raises(MissingError, match="no longer exists"):
            describe(reader, asked)


def test_a_table_that_was_renamed_is_still_the_same(database: Database) -> None:
    with database.connect() as connection:
        connection.execute("create table t (a int); insert into t values (4)")
        asked = relation(connection, "t")
        connection.execute("alter table t rename to u")
        assert read(connection, asked, every).columns["a"].values.tolist() == [4]


def test_a_table_that_is_read_can_be_neither_dropped_nor_emptied(database: Database) -> None:
    faults = []
    with database.connect() as connection, database.connect() as other:
        connection.execute(
            """create table t (a int) partition by list (a); create table t1 partition of t default;
               insert into t values (1)"""
        )
        other.execute("set lock_timeout = '10ms'")

        def choose(described: Sequence[Column]) -> tuple[str, ...]:
            for statement in ("drop table t", "truncate t1", "alter table t1 rename to t2"):
                with pytest.raises(psycopg.errors.LockNotAvailable) as caught:
                    other.execute(statement.encode())
                faults.append(str(caught.value))
            return every(described)

        assert read(connection, relation(connection, "t"), choose).rows == 1
    assert len(faults) == 3


@pytest.mark.parametrize("change", ["truncate t; insert into t values (2, 2)", _REPLACED, _REWRITTEN])
def test_a_table_of_granted_columns_that_changes_meanwhile_is_read_again(database: Database, change: str) -> None:
    calls = []
    with database.connect() as admin, database.connect("tensile_reader") as reader:
        admin.execute("create table t (a int, secret int); insert into t values (1, 1)")
        admin.execute("grant select (a) on t to tensile_reader")

        def choose(described: Sequence[Column]) -> tuple[str, ...]:
            calls.append(len(described))
            if len(calls) == 1:
                admin.execute(change.encode())
            return ("a",)

        table = read(reader, relation(admin, "t"), choose)
    assert len(calls) == 2
    assert table.columns["a"].values.tolist() == [2]


def test_a_table_that_changes_again_and_again_is_given_up(database: Database) -> None:
    with database.connect() as admin, database.connect("tensile_reader") as reader:
        admin.execute("create table t (a int); grant select (a) on t to tensile_reader")

        def choose(described: Sequence[Column]) -> tuple[str, ...]:
            admin.execute("truncate t")
            return ("a",)

        with pytest.raises(MissingError, match="was changed 3 times while it was read"):
            read(reader, relation(admin, "t"), choose)

        def replace(described: Sequence[Column]) -> tuple[str, ...]:
            admin.execute("drop table t; create table t (a int); grant select on t to tensile_reader")
            return ("a",)

        with pytest.raises(MissingError, match=r"public\.t was dropped and created again"):
            read(reader, relation(admin, "t"), replace)


def test_a_table_that_another_session_locks_is_busy_and_its_holder_named(database: Database) -> None:
    with (
        database.connect() as admin,
        database.connect("alice") as alice,
        database.connect("tensile_reader") as reader,
    ):
        alice.execute(
            """create table t (a int, b int) partition by list (a); create table t1 partition of t default;
               grant select on t, t1 to tensile_reader; create table u (a int);
               grant select (a) on u to tensile_reader"""
        )
        for name in ("t1", "u"):
            with alice.transaction():
                alice.execute(f"lock table {name} in access exclusive mode".encode())
                with pytest.raises(TableBusyError, match=rf"table public\.{name} is locked") as caught:
                    read(reader, relation(admin, name[0]), lambda _: ("a",), limits=ReadLimits(lock_s=0.1))
            assert caught.value.hint == (
                f"Process {alice.info.backend_pid} of role alice locks it: end its transaction."
            )
            assert caught.value.sqlstate == "55P03"
        assert read(reader, relation(admin, "t"), every).rows == 0


@pytest.mark.parametrize(
    ("statement", "fault"),
    [
        ("create view t as select 1 as a", "is a view"),
        ("create materialized view t as select 1 as a", "is a materialized view"),
        ("create sequence t", "is a sequence"),
    ],
)
def test_what_is_no_table_is_refused_with_a_way_out(database: Database, statement: str, fault: str) -> None:
    with database.connect() as connection:
        connection.execute(statement)
        with pytest.raises(RequestError, match=fault) as caught:
            read_all(database, "t")
    assert "create table" in caught.value.hint


def test_a_temporary_table_is_refused(database: Database) -> None:
    with database.connect() as connection:
        connection.execute("create temporary table t (a int)")
        row = connection.execute("select 't'::regclass::oid, pg_my_temp_schema()::regnamespace::text").fetchone()
        assert row is not None
        with pytest.raises(UnreadableError, match="temporary table"):
            read(connection, Relation(oid=row[0], schema=row[1], name="t"), every)


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
def test_what_cannot_be_copied_is_refused_with_its_reason(
    database: Database, statement: str, error: type[UnreadableError], reasons: list[tuple[str, str, str]]
) -> None:
    with database.connect() as connection:
        connection.execute(statement.encode())
        names = ("a", "b") if " b " in statement else ("a",)
        with pytest.raises(error) as caught:
            read(connection, relation(connection, "t"), lambda _: names)
    assert [(reason.code, reason.name, reason.column) for reason in caught.value.reasons] == reasons
    assert caught.value.hint


def test_a_generated_column_that_is_not_used_does_not_matter(database: Database) -> None:
    with database.connect() as connection:
        connection.execute(
            "create table t (a int, b int generated always as (a * 2) stored); insert into t values (1)"
        )
        assert read(connection, relation(connection, "t"), lambda _: ("a",)).rows == 1


def test_each_missing_grant_is_a_statement_in_the_hint(database: Database) -> None:
    with database.connect() as owner, database.connect("tensile_reader") as reader:
        owner.execute(
            """create schema hidden; create table hidden.t (a int) partition by list (a);
               create table hidden.t1 partition of hidden.t for values in (1);
               create table "T 2" partition of hidden.t for values in (2)"""
        )
        row = owner.execute("select 'hidden.t'::regclass::oid").fetchone()
        assert row is not None
        asked = Relation(oid=row[0], schema="hidden", name="t")
        with pytest.raises(PrivilegeError) as caught:
            read(reader, asked, every)
        assert caught.value.hint == (
            'Run: grant usage on schema "hidden" to "tensile_reader"; '
            'grant select on "hidden"."t1", "public"."T 2" to "tensile_reader";'
        )
        owner.execute(caught.value.hint.removeprefix("Run: "))
        assert read(reader, asked, every).rows == 0


def test_a_parent_is_read_with_its_children_once_each(database: Database) -> None:
    with database.connect() as connection:
        connection.execute(
            """create table t (a int, b text); create table u () inherits (t); create table v (c int) inherits (t);
               create table w (a int) inherits (u, v);
               insert into t values (1, 'x'); insert into u values (2, 'y'); insert into v values (3, 'z', 9);
               insert into w values (4, 'w', 8)"""
        )
        expected = connection.execute("select a, b from t order by a").fetchall()
    columns = read_all(database, "t").columns
    assert sorted(zip(columns["a"].values.tolist(), columns["b"].values.tolist(), strict=True)) == expected


def test_the_owner_of_the_job_must_be_able_to_read_the_columns(database: Database) -> None:
    with database.connect() as connection:
        connection.execute("create table t (id int primary key, a int, secret int); grant select (a) on t to bob")
        row = connection.execute("select 'bob'::regrole::oid").fetchone()
        assert row is not None
        asked = relation(connection, "t")
        assert list(read(connection, asked, lambda _: ("a",), owner_oid=row[0]).columns) == ["a"]
        with pytest.raises(PrivilegeError, match=r"role bob may not read table public\.t"):
            read(connection, asked, lambda _: ("a", "secret"), owner_oid=row[0])
        with pytest.raises(MissingError, match="role 1\\)"):
            read(connection, asked, lambda _: ("a",), owner_oid=1)


def test_the_snapshot_ends_with_the_reading_and_the_sessions_settings_stay(database: Database) -> None:
    with database.connect() as connection:
        connection.execute("create table t (a int)")
        read(connection, relation(connection, "t"), every)
        assert connection.info.transaction_status is TransactionStatus.IDLE
        shown = [connection.execute(f"show {name}".encode()).fetchone() for name in _SETTINGS]
        assert dict(zip(_SETTINGS, (row[0] for row in shown if row), strict=True)) == _SETTINGS
        with connection.transaction(), pytest.raises(InvariantError, match="in a transaction"):
            describe(connection, Relation(oid=1, schema="public", name="t"))


_SETTINGS = {
    "search_path": "pg_catalog, pg_temp",
    "default_transaction_read_only": "on",
    "row_security": "off",
    "synchronize_seqscans": "off",
    "client_encoding": "UTF8",
    "statement_timeout": "1min",
    "idle_in_transaction_session_timeout": "10min",
}


def test_more_than_the_limit_is_refused_with_the_figures(database: Database) -> None:
    with database.connect() as connection:
        connection.execute("create table t (a float8[]); insert into t select array_fill(1::float8, array[100000])")
        asked = relation(connection, "t")
        with pytest.raises(DataError, match=r"781\.3 kB, and the limit is 488\.3 kB") as caught:
            read(connection, asked, every, limits=ReadLimits(size_bytes=500_000))
        assert "TENSILE_READ_LIMIT_BYTES" in caught.value.hint
        assert read(connection, asked, every, limits=ReadLimits(size_bytes=800_009)).rows == 1


def test_a_row_beyond_the_limit_is_refused_before_it_is_decoded(database: Database) -> None:
    with database.connect() as connection:
        connection.execute("create table t (a text); insert into t values (repeat('a', 20000000))")
        asked = relation(connection, "t")
        with pytest.raises(DataError, match=r"19\.1 MB, and the limit is 976\.6 kB"):
            read(connection, asked, every, limits=ReadLimits(size_bytes=1_000_000))


def test_a_number_beyond_a_double_is_infinite_as_it_is_in_json(database: Database) -> None:
    with database.connect() as connection:
        connection.execute(
            """create table t (a numeric, v numeric[]);
               insert into t select n, array[n, 1]
                 from unnest('{1,1e400,-1e400,1e-400,NaN,-Infinity}'::numeric[]) as n"""
        )
        table = read_all(database, "t")
        rows = [row for (row,) in connection.execute("select to_jsonb(t) from t")]
    known = [1.0, math.inf, -math.inf, 0.0, math.nan, -math.inf]
    assert np.array_equal(table.columns["a"].values, known, equal_nan=True)
    assert np.array_equal(table.columns["v"].values[:, 0], known, equal_nan=True)
    assert np.array_equal([number("a", row["a"]) for row in rows], known, equal_nan=True)
    sent = column_of("v", ColumnKind.ARRAY, [row["v"] for row in rows])
    assert np.array_equal(sent.values[:, 0], known, equal_nan=True)


def test_a_moment_is_the_same_read_from_a_table_and_sent_as_json(database: Database) -> None:
    with database.connect() as connection:
        connection.execute(
            """create table t (day date, moment timestamp, instant timestamptz);
               set time zone 'Asia/Kolkata';
               insert into t select d, d, d + time '11:12:13.123457'
                 from unnest('{4713-01-01 BC,0044-03-15 BC,0001-12-31 BC,0001-01-01,1582-10-15,1969-12-31,2024-02-29,
                               9999-12-31,10000-01-01,12000-02-29,290000-06-30}'::date[]) as d;
               insert into t (day) values ('5874897-12-31'), ('infinity'), ('-infinity'), (null)"""
        )
        table = read_all(database, "t")
        rows = [row for (row,) in connection.execute("select to_jsonb(t) from t")]
    for name, column in table.columns.items():
        sent = column_of(name, ColumnKind.TIME, [row[name] for row in rows])
        assert sent.missing.tolist() == column.missing.tolist()
        known = ~column.missing
        assert sent.values[known].tolist() == column.values[known].tolist()


def test_a_key_of_an_extension_that_no_superuser_owns_is_refused(database: Database) -> None:
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
