"""Check what a model answers when the columns, enums and values of its table have changed since its training."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tests.conftest import Database

from .conftest import Service, publish

pytestmark = pytest.mark.postgres

TABLE = """
create type mood as enum ('sad', 'glad');
create domain pair as real[] check (cardinality(value) <= 4);
create table grown (id int primary key, x float8, exact numeric, at timestamp, span interval, mood mood, word text,
  pair pair, tags text[], y int);
insert into grown
select i, i % 7, i % 5, timestamp '2024-01-01' + i * interval '1 day', i * interval '1 hour',
       (array['sad', 'glad'])[1 + i % 2]::mood, chr(192 + i % 30), array[i, 1], array['t' || i % 3], i % 2
  from generate_series(1, 80) as i;
grant select on grown to tensile_reader"""
ALL = "select array_agg(value order by (key ->> 'id')::int) from tensile_predict_table('grown', 'grown')"
ONE = "select tensile_predict('grown', t) from grown as t where id = 1"


@pytest.fixture(scope="module")
def module_connection(database: Database) -> Iterator[psycopg.Connection[Any]]:
    """The owner of `grown` and of a model of it."""
    with database.connect("demo") as connection:
        connection.execute(TABLE)
    publish(database, "grown", "grown", ", target => 'y'")
    with database.connect("demo") as connection:
        yield connection


@pytest.fixture
def demo(module_connection: psycopg.Connection[Any], service: Service) -> Iterator[psycopg.Connection[Any]]:
    """The same owner in a transaction that is rolled back."""
    with module_connection.transaction(force_rollback=True):
        yield module_connection


def value(connection: psycopg.Connection[Any], statement: str) -> Any:
    row = connection.execute(statement.encode()).fetchone()
    assert row is not None
    return row[0]


def refusal(connection: psycopg.Connection[Any], statement: str) -> tuple[str, str, str]:
    """Return SQLSTATE, message and HINT of the error of a statement."""
    with pytest.raises(psycopg.Error) as caught, connection.transaction():
        connection.execute(statement.encode())
    diag = caught.value.diag
    return diag.sqlstate or "", diag.message_primary or "", diag.message_hint or ""


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("alter table grown rename x to z", ("x",)),
        ("alter table grown drop column word", ("word",)),
        ("alter table grown alter x type text using 'many'", ("x", "many")),
        ("alter table grown alter at type text using 'noon'", ("at", "noon")),
        ("alter table grown alter pair type real[] using array[[1, 2], [3, 4]]", ("pair", "2 x 2")),
        ("alter table grown alter pair type real[] using array[1, null]", ("pair",)),
        ("alter table grown alter pair type real[] using '{}'", ("pair",)),
        ("alter table grown alter span type text using 'soon'", ("span", "soon")),
        ("alter table grown alter tags type int using 5", ("tags", "5")),
    ],
)
def test_a_changed_column_is_named_with_its_value_and_the_way_out(
    demo: psycopg.Connection[Any], change: str, words: tuple[str, ...]
) -> None:
    demo.execute(change.encode())
    for statement in (ONE, ALL, "select * from tensile_evaluate('grown', 'grown')"):
        sqlstate, message, hint = refusal(demo, statement)
        assert sqlstate[:2] in ("22", "42"), (sqlstate, message)
        assert [word for word in words if word not in message] == [], (message, statement)
        assert hint, statement


def test_a_column_of_another_numeric_type_and_a_further_column_change_no_prediction(
    demo: psycopg.Connection[Any],
) -> None:
    before = value(demo, ALL)
    demo.execute("alter table grown alter x type numeric, alter exact type int, add column more text default 'm'")
    assert value(demo, ALL) == before
    assert value(demo, ONE) == before[0]


def test_a_label_of_an_enum_that_is_new_or_renamed_is_one_of_the_rest(demo: psycopg.Connection[Any]) -> None:
    demo.execute("alter type mood rename value 'glad' to 'cheerful'")
    renamed = value(demo, ALL)
    demo.execute("alter table grown alter mood type text using case mood when 'sad' then 'sad' else 'unheard of' end")
    assert value(demo, ALL) == renamed
    demo.execute("update grown set mood = 'sad'")
    assert value(demo, ALL) != renamed


@pytest.mark.parametrize(
    "change",
    [
        "x = 'NaN', exact = 'NaN'",
        "x = 'Infinity', exact = '-Infinity'",
        "at = 'infinity'",
        "at = '-infinity', x = null",
        "pair = null, tags = null, mood = null",
    ],
)
def test_an_infinite_or_undefined_value_is_predicted_as_null(demo: psycopg.Connection[Any], change: str) -> None:
    demo.execute(f"update grown set {change}".encode())
    answers = value(demo, ALL)
    names = [part.split("=")[0].strip() for part in change.split(", ")]
    demo.execute(f"update grown set {', '.join(f'{name} = null' for name in names)}".encode())
    assert value(demo, ALL) == answers
    assert value(demo, ONE) == answers[0]


@pytest.mark.parametrize(
    "change",
    [
        "at = '4713-01-01 BC'",
        "at = '294276-12-31 23:59:59.999999'",
        "span = '178000000 years -7 mons 3 days'",
        "span = '-14 mons 1 day -00:00:00.000001'",
        "exact = 1e-16383",
        "x = 5e-324, exact = -0.0",
        "x = 1.7976931348623157e308",
        "tags = array[null, '', 't1', e'\\\\', '\"', '{}']",
        "tags = '{}'",
        "word = e'\\U0001F600\\u0301\\u202E\\uFEFF\\x01\\n\\t'",
        "word = repeat('\U0010ffff', 10000)",
        "word = ''",
    ],
)
def test_a_value_at_the_edge_of_its_type_is_predicted_alike_from_a_row_and_from_a_table(
    demo: psycopg.Connection[Any], change: str
) -> None:
    demo.execute(f"update grown set {change} where id <= 40".encode())
    answers = value(demo, ALL)
    assert all(answer in (0.0, 1.0) for answer in answers)
    single = "select array_agg(tensile_predict('grown', t) order by id) from grown as t where id <= 3"
    assert value(demo, single) == answers[:3]
    json = "select array_agg(tensile_predict('grown', to_jsonb(t)) order by id) from grown as t where id <= 3"
    assert value(demo, json) == answers[:3]
    vectors = "select tensile_predict_vector('grown', {})::text from grown as t where id = 1"
    assert value(demo, vectors.format("t")) == value(demo, vectors.format("to_jsonb(t)"))
