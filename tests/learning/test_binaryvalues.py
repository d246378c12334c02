"""Values in COPY's binary format become the numbers and texts that PostgreSQL's own casts produce."""

import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import psycopg
import pytest

from indb_tensile.job import Relation
from indb_tensile.learning.decoding.jsonrows import column_of
from indb_tensile.learning.relation.relation_reader import read
from indb_tensile.learning.storage.columns import Column, ColumnData, ColumnKind, TableData
from indb_tensile.learning.storage.splits import row_hashes
from tests.conftest import Database

pytestmark = pytest.mark.postgres

Connection = psycopg.Connection[Any]

# For each type of key: listed values, then an expression of `i` that produces 300 random or consecutive values.
_KEYS: dict[str, tuple[str, str]] = {
    "uuid": ("'00000000-0000-0000-0000-000000000000'", "gen_random_uuid()"),
    "bytea": (r"'', '\x00ff'", "decode(md5(i::text), 'hex')"),
    "bit(11)": ("B'00000000000', B'11111111111'", "(i * 7 % 2048)::bit(11)"),
    "bit varying": ("B'', B'1', B'00000000', B'000000001'", "substring((i * 7919)::bit(24) for 1 + i % 23)::varbit"),
    "inet": (
        """'0.0.0.0', '255.255.255.255/32', '10.1.2.3/8', '::', '::1', '::2', '::1.2.3.4', '::ffff:1.2.3.4/100',
           '1::', '0:1::/16', '1:0:2:0:0:3:0:0', '1:0:0:2:0:0:0:3', '::ffff', '::1:0', '0:0:0:0:0:1:0:0',
           '1:2:3:4:5:6:7:0', '0:2:3:4:5:6:7:8', '1:0:0:4:5:6:7:8', '::8:7:6:5:4:3:2/128', '::abcd', '::ffff:0:1'""",
        """case when i % 3 = 0 then set_masklen('1.2.3.4'::inet + i * 8191, i % 33)
                when i % 3 = 1 then set_masklen('::'::inet + (i::bigint << (i % 50)), i % 129)
                else (translate(regexp_replace(md5(i::text), '(....)(?!$)', '\\1:', 'g'), 'abc', '000'))::inet end""",
    ),
    "cidr": ("'0.0.0.0/0', '10.0.0.0/8', '::/0', '::ffff:0:0/96'", "set_masklen('10.0.0.0'::cidr, 8 + i % 25)"),
    "macaddr": ("'00:00:00:00:00:00'", "substring(md5(i::text) for 12)::macaddr"),
    "macaddr8": ("'00:00:00:00:00:00:00:00'", "substring(md5(i::text) for 16)::macaddr8"),
    "interval": (
        """'0', '1 year', '-1 year', '1 mon', '-14 mons', '1 day', '-1 day', '1 day -1 second', '-1 day 1 second',
           '-1 mon 1 day', '-1 mon 1 day -3 hours', '1 mon -1 day 3 hours', '0.000001 s', '-0.5 s', '1000000 hours',
           '1 year -2 mons', '-1 year 1 day 00:00:01'""",
        "make_interval(0, (i * 7 % 61) - 30, 0, (i * 11 % 41) - 20, (i * 13 % 99) - 50, 0, (i * 17 % 201) / 8.0 - 9)",
    ),
    "time": ("'00:00', '24:00', '23:59:59.999999', '12:00:00.5'", "time '00:00' + i * interval '287.000013 s'"),
    "time with time zone": (
        "'00:00+00', '24:00-15:59', '12:00+05:30', '12:00+05:30:07', '12:00-00:00:01', '01:02:03.4+14'",
        "make_time(i % 24, i % 60, i % 59)::time at time zone make_interval(0, 0, 0, 0, i % 15 - 7, i % 60, i % 60)",
    ),
    "oid": ("0, 4294967295", "(i::bigint * 14000000)::oid"),
    "xid8": ("'0', '18446744073709551615'", "(i::bigint << 40)::text::xid8"),
    "pg_lsn": ("'0/0', 'FFFFFFFF/FFFFFFFF', '0/A'", "'0/0'::pg_lsn + i::numeric * 123456789012"),
    "jsonb": ("""'1', '"x"', '{"b": [1, 2.50], "a": null}'""", """jsonb_build_object('k', i, 'é', i / 3.0)"""),
    "text": ("'', ' x ', 'é€😀'", "md5(i::text)"),
    "character(6)": ("'', 'a  b', ' x'", "(i)::text"),
    "character varying(9)": ("'', 'x  '", "(i)::text"),
    "name": ("'x'", "('n' || i)::name"),
    '"char"': ("'', 'a', '~'", 'chr(i % 127 + 1)::"char"'),
    "citext": ("'Ab', 'É'", "md5(i::text)::citext"),
    "mood": ("'sad', 'gläd ''x'' '", "'sad'::mood"),
    "serial_number": ("'x', 'a b'", "('s' || i)::serial_number"),
}


def as_text(values: Sequence[Any]) -> ColumnData:
    return column_of("k", ColumnKind.TEXT, list(values))


@pytest.fixture
def admin(database: Database) -> Iterator[Connection]:
    with database.connect() as connection:
        connection.execute("create extension citext; create type mood as enum ('sad', 'gläd ''x'' ')")
        connection.execute("create domain serial_number as varchar(20)")
        yield connection


def read_as_reader(database: Database, admin: Connection, columns: tuple[str, ...]) -> TableData:
    admin.execute("grant select on t to tensile_reader")
    row = admin.execute("select 't'::regclass::oid").fetchone()
    assert row is not None

    def choose(_: Sequence[Column]) -> tuple[str, ...]:
        return columns

    with database.connect("tensile_reader") as connection:
        return read(connection, Relation(oid=row[0], schema="public", name="t"), choose)


@pytest.mark.by_day("uuid", "bytea", "inet", "interval", "time with", "jsonb", "text", "mood", "serial_number")
@pytest.mark.parametrize("type_name", _KEYS)
def test_rows_with_a_key_of_this_type_are_split_as_by_its_text(
    database: Database, admin: Connection, type_name: str
) -> None:
    """Stored splits depend on this: version 0.1.0 read `k::text` and hashed that text."""
    by_hand, running = _KEYS[type_name]
    values = f"select v::{type_name} from unnest(array[{by_hand}]) as v"
    if type_name == "bit(11)":
        values = f"select v from unnest(array[{by_hand}]) as v"
    more = f"select ({running})::{type_name} from generate_series(1, 300) as i"
    statement = f"""create table t as select distinct k, 1.5::float8 as x from ({values} union all {more}) as s (k);
                    alter table t add primary key (k)"""
    admin.execute(statement.encode())
    table = read_as_reader(database, admin, ("x",))
    texts = [row[0] for row in admin.execute("select k::text from t order by ctid")]
    assert len(texts) >= 2
    assert table.row_hash.tolist() == row_hashes([as_text(texts)], len(texts)).tolist()


_SIGNED = [
    *(
        "0",
        "1",
        "-1",
        "0.1",
        "-0.1",
        "0.5",
        "9999",
        "10000",
        "10001",
        "99999999",
        "1e22",
        "1e23",
        "12345678901234567890",
    ),
    *("0.00001", "9007199254740993", "9007199254740992.5", "9007199254740991", "90071992547409930000", "1e-16383"),
    *("2.2250738585072011e-308", "4.9406564584124654e-324", "2.5e-324", "1.7976931348623157e308", "1e-300", "NaN"),
    *(
        "Infinity",
        "-Infinity",
        "0.3333333333333333333333333",
        "922337203685477580799999999999999999",
        "1e-22",
        "1e-23",
    ),
    *("92199999999999999999", "92200000000000000000", "100000000000000000000.0001", "0.00000000000000000001"),
]


def numbers() -> list[str]:
    """Return listed numbers and random numbers of all lengths."""
    choose = random.Random(7)
    made = []
    for _ in range(4000):
        digits = str(choose.randrange(10 ** choose.randint(1, choose.choice((4, 16, 17, 20, 40)))))
        sign = choose.choice(("", "-"))
        exponent = choose.randint(-40, 40) - choose.choice((0, 0, len(digits)))
        made.append(f"{sign}{digits}e{exponent}")
    return [*_SIGNED, *made]


def test_numbers_are_rounded_as_the_server_rounds_them(database: Database, admin: Connection) -> None:
    admin.execute("create table t (id int primary key, v numeric)")
    in_range = []
    for number in numbers():
        try:
            admin.execute("select %s::numeric::float8", (number,))
        except psycopg.errors.NumericValueOutOfRange:
            continue
        in_range.append(number)
    with admin.cursor() as cursor:
        cursor.executemany("insert into t values (%s, %s::numeric)", list(enumerate(in_range)))
    table = read_as_reader(database, admin, ("v",))
    expected = np.array([row[0] for row in admin.execute("select v::float8 from t order by ctid")])
    assert len(in_range) > 4000
    assert table.columns["v"].values.view(np.uint64).tolist() == expected.view(np.uint64).tolist()


_ARRAYS = {
    "numeric[]": ("array[i / 3.0, -i, 1e30, 'NaN', 0]::numeric[]", "float8[]", np.float64),
    "smallint[]": ("array[i, -i, 32767]::smallint[]", "float4[]", np.float32),
    "integer[]": ("array[i, -i, 2147483647]::integer[]", "float8[]", np.float64),
    "bigint[]": ("array[i, 9007199254740993, -9223372036854775807]::bigint[]", "float8[]", np.float64),
}


@pytest.mark.parametrize("type_name", _ARRAYS)
def test_arrays_become_the_floats_of_the_servers_casts(database: Database, admin: Connection, type_name: str) -> None:
    made_by, cast, dtype = _ARRAYS[type_name]
    made = f"create table t as select array[{made_by}, {made_by}] as v from generate_series(1, 300) as i"
    admin.execute(made.encode())
    table = read_as_reader(database, admin, ("v",))
    expected = np.array([row[0] for row in admin.execute(f"select v::{cast} from t order by ctid".encode())], dtype)
    values = table.columns["v"].values
    assert values.dtype == dtype
    assert np.array_equal(values, expected, equal_nan=True)


def test_key_columns_and_rows_without_a_key_have_the_splits_of_version_0_1(
    database: Database, admin: Connection
) -> None:
    admin.execute(
        """create table t as select i / 7.0 as n, (i % 5)::smallint as s, i::text::character(9) as c,
                                    date '2020-01-01' + i as d
             from generate_series(1, 500) as i"""
    )
    cast = "select n::float8, s::int8, c::text, extract(epoch from d)::float8 from t order by ctid"
    rows = admin.execute(cast.encode()).fetchall()
    kinds = {"n": ColumnKind.FLOAT, "s": ColumnKind.INTEGER, "c": ColumnKind.TEXT, "d": ColumnKind.FLOAT}
    old = {name: column_of(name, kind, [r[i] for r in rows]) for i, (name, kind) in enumerate(kinds.items())}
    keyless = read_as_reader(database, admin, ("s", "n", "d", "c"))
    assert keyless.row_hash.tolist() == row_hashes([old[name] for name in sorted(old)], len(rows)).tolist()
    admin.execute("alter table t add primary key (d, n)")
    keyed = read_as_reader(database, admin, ("s",))
    assert keyed.row_hash.tolist() == row_hashes([old["n"], old["d"]], len(rows)).tolist()
