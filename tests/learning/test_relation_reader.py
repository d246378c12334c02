"""The rows of a real PostgreSQL table are read with their values, types, order and hashes."""

import math

import numpy as np
import pytest
from psycopg.pq import TransactionStatus

from indb_tensile.errors import (
    InvariantError,
)
from indb_tensile.job import Relation
from indb_tensile.learning.decoding.jsonrows import column_of, number
from indb_tensile.learning.relation.relation_reader import describe, read
from indb_tensile.learning.storage.columns import ColumnKind
from tests.conftest import Database
from tests.learning.relations import all_columns, read_all, relation

pytestmark = pytest.mark.postgres


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


def test_values_of_every_scalar_type_are_read_unchanged(database: Database) -> None:
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


def test_a_description_has_types_keys_identities_and_generated_columns(database: Database) -> None:
    with database.connect() as connection:
        connection.execute(
            "create table t (id int generated always as identity primary key, a float8 not null,"
            " b float8 generated always as (a * 2) stored, c inet, d real[][])"
        )
        described = describe(connection, relation(connection, "t"))
    facts = [(c.name, c.type, c.not_null, c.primary_key, c.identity, c.generated, c.dims) for c in described]
    assert facts == [
        ("id", "integer", True, True, True, False, 0),
        ("a", "double precision", True, False, False, False, 0),
        ("b", "double precision", False, False, False, True, 0),
        ("c", "inet", False, False, False, False, 0),
        ("d", "real[]", False, False, False, False, 2),
    ]
    assert [column.wire is None for column in described] == [False, False, False, True, False]


def test_arrays_are_read_as_tensors_of_one_shape(database: Database) -> None:
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


def test_an_index_does_not_change_the_order(database: Database) -> None:
    with database.connect() as connection:
        connection.execute("create table t (id int primary key, wide text)")
        connection.execute("insert into t select i, repeat('x', 1000) from generate_series(5000, 1, -1) i")
        connection.execute("vacuum analyze t")
        plan = connection.execute("explain select id from t").fetchall()
        table = read(connection, relation(connection, "t"), lambda _: ("id",))
    assert "Index Only Scan" in plan[0][0]  # the plan of an ordinary query
    assert table.columns["id"].values.tolist() == list(range(5000, 0, -1))


def test_a_rows_hash_depends_on_its_key_and_not_on_its_position(database: Database) -> None:
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


def test_all_partitions_of_a_table_are_read(database: Database) -> None:
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
        table = read(connection, Relation(oid=row[0], schema="public", name="o\"dd 'name %s"), all_columns)
    assert {name: data.values.tolist() for name, data in table.columns.items()} == {'a "b': [1], "select": [2]}


def test_an_empty_table_has_no_rows(database: Database) -> None:
    with database.connect() as connection:
        connection.execute("create table t (a int, b text, c real[])")
        table = read_all(database, "t")
    assert (table.rows, len(table.row_hash)) == (0, 0)


def test_a_parent_table_is_read_with_each_child_once(database: Database) -> None:
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


def test_reading_ends_its_snapshot_and_keeps_the_sessions_settings(database: Database) -> None:
    with database.connect() as connection:
        connection.execute("create table t (a int)")
        read(connection, relation(connection, "t"), all_columns)
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


def test_a_number_beyond_a_double_is_infinite_as_in_json(database: Database) -> None:
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


def test_a_timestamp_has_the_same_value_from_a_table_and_from_json(database: Database) -> None:
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
