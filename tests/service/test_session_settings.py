"""Check that predictions have the same bits in any session, and features the same bits as in the training."""

import re
from typing import Any

import psycopg
import pytest

from indb_tensile.catalog.reader_connection import open_reader
from indb_tensile.job import Relation
from indb_tensile.learning.relation.relation_reader import read
from tests.conftest import Database

from .conftest import Published, Service, publish

pytestmark = pytest.mark.postgres

Connection = psycopg.Connection[Any]

TABLE = """
create table mixed (
  id bigint primary key, single real, twice double precision, exact numeric, yes boolean, word text, fixed char(6),
  day date, moment timestamp, instant timestamptz, singles real[], exacts numeric[], y double precision);
insert into mixed
select i, (sin(i) * 1000)::real, cos(i) * 1e-7, 1.0 / i, i % 2 = 0, 'v' || i % 3, 'w' || i % 4,
       date '1999-12-01' + 37 * i,
       timestamp '2001-02-03 04:05:06.789012' + i * interval '3 days 01:02:03.000004',
       timestamptz '2001-02-03 04:05:06.789012+00' + i * interval '3 days 01:02:03.000004',
       array[sin(i), cos(i) / 3]::real[], array[1.0 / i, i / 7.0], sin(i) + cos(i)
  from generate_series(1, 120) as i;
insert into mixed (id, single, twice, exact, y) values (0, 'NaN', '-Infinity', '1e400', 0.1);
grant select on mixed to tensile_reader;
"""
SETTINGS = (
    "set extra_float_digits = -10",
    "set datestyle = 'German'; set time zone 'Asia/Kathmandu'",
    "set time zone interval '-15:59' hour to minute; set bytea_output = 'escape'",
)


@pytest.fixture(scope="module")
def mixed(database: Database) -> Published:
    """A model with columns of many types."""
    with database.connect(user="demo") as demo:
        demo.execute(TABLE)
    return publish(database, "mixed", "mixed")


@pytest.mark.nightly
def test_settings_change_no_bit_of_a_prediction(database: Database, service: Service, mixed: Published) -> None:
    answers = []
    for settings in ("", *SETTINGS):
        with database.connect(user="demo") as demo:
            demo.execute(settings.encode())
            bits = "select encode(float8send(tensile_predict('mixed', m)), 'hex') from mixed as m order by id"
            answers.append(demo.execute(bits.encode()).fetchall())
    assert answers == answers[:1] * len(answers)
    assert len(answers[0]) == 121


@pytest.mark.nightly
def test_features_equal_those_of_the_training_bit_for_bit(database: Database, mixed: Published) -> None:
    """Columns of type real are excepted. JSON has their shortest digits, and 0.1 as a double differs from 0.1 as a
    float.
    """
    preprocessor = mixed.predictor.preprocessor
    with database.connect(user="demo") as demo:
        demo.execute("set time zone 'Asia/Kathmandu'")
        rows = [row for (row,) in demo.execute("select tensile.row_json(m) from mixed as m order by id").fetchall()]
        oid_row = demo.execute("select 'mixed'::regclass::oid::bigint").fetchone()
    assert oid_row is not None
    relation = Relation(oid=oid_row[0], schema="public", name="mixed")
    with open_reader(database.dsn("tensile_reader"), application_name="test") as reader:
        table = read(reader, relation, lambda described: tuple(column.name for column in described))
    trained = preprocessor.transform(table.take(table.columns["id"].values.argsort()))
    sent = preprocessor.transform_rows(rows)
    exact_columns = [place for place, name in enumerate(preprocessor.outputs) if not re.match("single", name)]
    assert sent[:, exact_columns].tolist() == trained[:, exact_columns].tolist()
    assert sent == pytest.approx(trained, rel=1e-6)
