"""Check each type that models learn from: a table, a row, jsonb and a batch give the network the same numbers."""

import math
from typing import Any

import numpy as np
import psycopg
import pytest

from indb_tensile.catalog.reader_connection import open_reader
from indb_tensile.job import Relation
from indb_tensile.learning.decoding.jsonrows import column_of
from indb_tensile.learning.relation.relation_reader import read
from indb_tensile.learning.storage.columns import ColumnData, TableData
from tests.conftest import Database
from tests.learning.test_copyvectors import IN_EXTENSION
from worker.serving.answers import Answers

from .conftest import Published, Service, publish

pytestmark = pytest.mark.postgres

_DAY = 86_400.0
_YEAR = 365.25 * _DAY
# Of each type: SQL values, and the values that the package has for them. None is a missing value; so are infinite and
# undefined numbers and times, which the encoders treat alike.
CASES: dict[str, tuple[tuple[str, ...], tuple[Any, ...]]] = {
    "smallint": (("1", "-2", "null"), (1, -2, None)),
    "integer": (("1", "-2147483648", "null"), (1, -(2**31), None)),
    "bigint": (("9223372036854775807", "0", "null"), (2**63 - 1, 0, None)),
    "real": (("0.5", "'-Infinity'", "'NaN'"), (0.5, -math.inf, math.nan)),
    "double precision": (("1e-300", "'Infinity'", "null"), (1e-300, math.inf, None)),
    "numeric": (("0.1", "'NaN'", "'-Infinity'", "1e400"), (0.1, math.nan, -math.inf, math.inf)),
    "boolean": (("true", "false", "null"), (True, False, None)),
    "text": (("'x'", "''", "null"), ("x", "", None)),
    "varchar(5)": (("'x '", "null"), ("x ", None)),
    "char(4)": (("'x'", "null"), ("x", None)),
    "name": (("'x'", "null"), ("x", None)),
    "uuid": (("'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'", "null"), ("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", None)),
    "mood": (("'glad'", "null"), ("glad", None)),
    "moody": (("'so so'", "null"), ("so so", None)),
    "share": (("0.25", "null"), (0.25, None)),
    "date": (
        ("'1970-01-02'", "'0044-03-15 BC'", "'infinity'", "null"),
        (_DAY, -63_517_824_000.0, math.inf, None),
    ),
    "timestamp": (
        ("'1969-12-31 23:59:59.5'", "'4713-01-01 BC'", "'-infinity'"),
        (-0.5, -210_863_520_000.0, -math.inf),
    ),
    "timestamptz": (("'1970-01-01 02:00+02'", "'0001-01-01 BC'", "null"), (0.0, -62_167_219_200.0, None)),
    "time": (("'00:00:01.5'", "'24:00'", "null"), (1.5, _DAY, None)),
    "timetz": (("'01:00+02'", "'24:00-15:59'", "'12:00:00.000001+00:00:30'"), (82_800.0, 57_540.0, 43_170.000001)),
    "interval": (
        (
            "'1 year 2 mons -3 days 04:05:06.7'",
            "'-14 mons 1 day'",
            "'-3 days -00:00:00.5'",
            "'-1 year -2 mons'",
            "'0'",
        ),
        (_YEAR + 57 * _DAY + 14_706.7, -_YEAR - 59 * _DAY, -3 * _DAY - 0.5, -_YEAR - 60 * _DAY, 0.0),
    ),
    "smallint[]": (("'{1,2}'", "null"), ([1, 2], None)),
    "bigint[]": (("'{1,2}'", "null"), ([1, 2], None)),
    "real[]": (("'{0.5,NaN}'", "null"), ([0.5, math.nan], None)),
    "double precision[]": (("'{{1,2},{3,4}}'", "null"), ([[1, 2], [3, 4]], None)),
    "numeric[]": (("'{{{{{{1.5}}}}}}'", "null"), ([[[[[[1.5]]]]]], None)),
    "share[]": (("'{0.5,0.25}'", "null"), ([0.5, 0.25], None)),
    "boolean[]": (("'{t,f,t}'", "null"), ([True, False, True], None)),
    "text[]": (("'{b,a,NULL,b}'", "'{}'", "'{{x,y},{y,z}}'", "null"), (("a", "b"), (), ("x", "y", "z"), None)),
    "char(2)[]": (("'{a,bc}'", "null"), (("a", "bc"), None)),
    "uuid[]": (("'{A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11}'",), (("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",),)),
    "mood[]": (("'{glad,sad}'", "'{}'"), (("glad", "sad"), ())),
    "named": (("'{x}'", "null"), (("x",), None)),
}
ROWS = 60
PATHS = """preprocess => '{"paths": {"doc": {"price": "number", "on.day": "time", "kind": "text", "paid": "boolean",
  "tags": "labels", "lines.-1.qty": "number"}, "raw": {"a\\\\.b": "number"}}}'"""
TYPES = """
create type mood as enum ('sad', 'glad', 'so so');
create domain moody as mood;
create domain share as numeric(20, 15);
create domain named as text[];
"""
SETTINGS = (
    "set datestyle = 'German, DMY'; set intervalstyle = 'iso_8601'; set time zone 'Asia/Kathmandu'",
    "set datestyle = 'SQL, MDY'; set intervalstyle = 'sql_standard'; set bytea_output = 'escape'",
    "set datestyle = 'Postgres, YMD'; set intervalstyle = 'postgres_verbose'; set time zone 'America/St_Johns'",
)


def typed_table() -> str:
    """Return statements that create a table with a column of each type and with documents."""
    columns = ", ".join(f"c{place} {name}" for place, name in enumerate(CASES))
    rows = []
    for row in range(ROWS):
        day = f"2024-01-{1 + row % 28:02d}T06:00:00+02:00"
        values = [values[row % len(values)] for values, _ in CASES.values()]
        document = (
            f"""'{{"price": {row}.5, "on": {{"day": "{day}"}}, "kind": {row % 3}, """
            f""""paid": {("true", "null", "2")[row % 3]}, "tags": ["t{row % 4}", "u"], "lines": [{{"qty": 1}}, """
            f"""{{"qty": {row}}}]}}'"""
        )
        documents = (document if row % 7 else "null", f"""'{{"a.b": "{row}e-3"}}'""")
        singles = f"{row} * 0.1, array[{row} * 0.3, 0.7]"  # which JSON has with other digits than the binary form
        rows.append(f"({row}, {', '.join((*values, *documents))}, {singles}, 'team {row % 9}', {row % 2}, {row}.25)")
    return f"""create table typed (id int primary key, {columns}, doc jsonb, raw json, tenth real, tenths real[],
          team text, y int, z float8);
        insert into typed values {", ".join(rows)}; grant select on typed to tensile_reader;"""


@pytest.fixture(scope="module")
def typed(database: Database) -> Published:
    """A model of a table with a column of each type."""
    with database.connect(user="demo") as demo:
        demo.execute((TYPES + typed_table()).encode())
    return publish(database, "typed", "typed", f", target => 'y', exclude => array['team', 'z'], {PATHS}")


def _read(database: Database) -> TableData:
    with database.connect(user="demo") as demo:
        row = demo.execute("select 'typed'::regclass::oid::bigint").fetchone()
    assert row is not None
    with open_reader(database.dsn("tensile_reader"), application_name="test") as reader:
        relation = Relation(oid=row[0], schema="public", name="typed")
        return read(reader, relation, lambda described: tuple(column.name for column in described))


def _listed(data: ColumnData, rows: int) -> list[Any]:
    """Return the first values, None where missing."""
    return [None if data.missing[row] else data.values[row : row + 1].tolist()[0] for row in range(rows)]


def test_every_type_has_the_same_values_in_a_table_and_in_json_of_any_session(
    database: Database, typed: Published
) -> None:
    table = _read(database)
    for place, (name, (_, expected)) in enumerate(CASES.items()):
        data = table.columns[f"c{place}"]
        np.testing.assert_equal(_listed(data, len(expected)), list(expected), err_msg=name)
    for settings in SETTINGS:
        with database.connect(user="demo") as demo:
            demo.execute(settings.encode())
            rows = [row for (row,) in demo.execute("select to_jsonb(t) from typed as t order by ctid")]
        for place, name in enumerate(CASES):
            data = table.columns[f"c{place}"]
            sent = column_of(name, data.kind, [row[f"c{place}"] for row in rows])
            if not name.startswith("char"):  # JSON pads these with blanks, which the encoders strip
                np.testing.assert_equal(_listed(sent, ROWS), _listed(data, ROWS), err_msg=f"{name}: {settings}")


def test_a_table_and_its_rows_are_encoded_with_the_same_bits(database: Database, typed: Published) -> None:
    preprocessor = typed.predictor.preprocessor
    with database.connect(user="demo") as demo:
        demo.execute("set intervalstyle = 'iso_8601'; set time zone 'Asia/Kathmandu'")
        rows = [row for (row,) in demo.execute("select tensile.row_json(t) from typed as t order by ctid")]
    trained, sent = preprocessor.transform(_read(database).columns), preprocessor.transform_rows(rows)
    assert sent.tolist() == trained.tolist()
    by_name = dict(zip(preprocessor.outputs, sent[8].tolist(), strict=True))
    assert {name: value for name, value in by_name.items() if name.startswith("doc.tags") and value} == {
        "doc.tags has t0": 1.0,
        "doc.tags has u": 1.0,
    }


def test_a_relation_is_predicted_from_the_binary_form_of_every_type(
    database: Database, service: Service, typed: Published
) -> None:
    kinds = {name: data.kind for name, data in _read(database).columns.items()}
    shared = {"integer": "number", "float": "number", "boolean": "number", "date": "time"}
    features = Answers(typed.predictor).features()
    assert features == [(name, shared.get(kinds[name], kinds[name])) for name, _ in features]
    with database.connect(user="demo") as demo:
        rows = "select value from tensile_predict_table('typed', 'typed') order by (key ->> 'id')::int"
        single = "select tensile_predict('typed', t) from typed as t order by id"
        assert demo.execute(rows).fetchall() == demo.execute(single).fetchall()


@pytest.mark.nightly
def test_row_jsonb_and_batch_predict_alike_in_any_session(
    database: Database, service: Service, typed: Published
) -> None:
    answers = []
    for settings in ("", *SETTINGS):
        with database.connect(user="demo") as demo:
            demo.execute(settings.encode())
            single = "select array_agg(tensile_predict_vector('typed', {}) order by id)::text from typed as t"
            answers += [demo.execute(single.format(row).encode()).fetchone() for row in ("t", "to_jsonb(t)")]
            batch = """select array_agg(p.value order by place) from unnest(
                tensile_predict_batch('typed', (select array_agg(t order by id) from typed as t)))
                with ordinality as p (value, place)"""
            single = "select array_agg(tensile_predict('typed', t) order by id) from typed as t"
            assert demo.execute(batch.encode()).fetchone() == demo.execute(single.encode()).fetchone()
    assert answers == answers[:1] * len(answers)


def test_every_type_keeps_its_values_and_its_parts_in_a_snapshot(database: Database, typed: Published) -> None:
    with database.connect(user="demo") as demo:
        demo.execute("create table loose as select * from typed; create view seen as select * from loose")
        demo.execute("set intervalstyle = 'sql_standard'")
    plain = publish(database, "plain", "typed", f", target => 'y', exclude => array['team', 'z'], {PATHS}")
    copied = publish(database, "copied", "seen", f", target => 'y', exclude => array['id', 'team', 'z'], {PATHS}")
    assert copied.predictor.preprocessor.outputs == plain.predictor.preprocessor.outputs
    # Without a key the parts follow from the values of all columns, which tensile_split reads in any session.
    with database.connect(user="demo") as demo:
        demo.execute("set intervalstyle = 'postgres_verbose'; set time zone 'Asia/Kathmandu'; set datestyle = 'SQL'")
        parts = demo.execute("select part, count(*) from tensile_split('copied') group by part").fetchall()
    prepared = copied.prepared
    assert dict(parts) == {"train": prepared.train.rows, "valid": prepared.valid.rows, "test": prepared.test.rows}


# Types with the text of pgvector's and the wire format that tests/learning/test_copyvectors.py records.
VECTOR_TYPE = """
create type v.{name};
create function v.{name}_in(cstring) returns v.{name} language internal immutable strict as 'textin';
create function v.{name}_out(v.{name}) returns cstring language internal immutable strict as 'textout';
create type v.{name} (input = v.{name}_in, output = v.{name}_out, internallength = variable);
create function v.{name}_send(v.{name}) returns bytea language plpgsql immutable strict as $$
  begin
    return (select int2send(count(*)::int2) || '\\x0000' || string_agg(case '{name}' when 'vector' then float4send(e)
                     else decode(('{{"1": "3c00", "-2": "c000", "0.5": "3800"}}'::jsonb ->> e::text), 'hex') end, '')
              from unnest(translate($1::text, '[]', '{{}}')::float4[]) as e);
  end $$;
alter type v.{name} set (send = v.{name}_send);
"""


@pytest.mark.nightly
def test_vectors_of_pgvector_are_trained_split_and_predicted(database: Database, service: Service) -> None:
    with database.connect() as admin:
        admin.execute("create schema v; grant usage on schema v to public")
        for name in ("vector", "halfvec"):
            admin.execute(VECTOR_TYPE.format(name=name).encode())
            admin.execute(IN_EXTENSION.format(name=name).encode())
    with database.connect(user="demo") as demo:
        demo.execute(
            """create table embedded (id int primary key, e v.vector, h v.halfvec, y int);
               insert into embedded select i, (array['[1,-2,0.5]', '[0.5,0.5,1]', null])[i % 3 + 1]::v.vector,
                      (array['[1,-2]', '[0.5,1]'])[i % 2 + 1]::v.halfvec, i % 2 from generate_series(1, 60) as i;
               create view embeddings as select e, h, y, id as number from embedded;
               create table uneven as select id, '[1,2]'::v.vector as e, y from embedded;
               update uneven set e = '[1]' where id = 5;
               grant select on embedded, uneven to tensile_reader"""
        )
        with pytest.raises(psycopg.Error, match='"e"'):  # found in the first rows, before the job is enqueued
            demo.execute("select tensile_train('m', 'uneven', 'y')")
    direct = publish(database, "direct", "embedded", ", target => 'y'")
    copied = publish(database, "copied_vectors", "embeddings", ", target => 'y', split => '{\"key\": [\"number\"]}'")
    for published in (direct, copied):
        arrays = published.predictor.preprocessor.recipe.arrays
        assert [(part.name, part.shape) for part in arrays] == [("e", (3,)), ("h", (2,))]
    with database.connect(user="demo") as demo:
        for model, relation, key, published in (
            ("direct", "embedded", "id", direct),
            ("copied_vectors", "embeddings", "number", copied),
        ):
            parts = demo.execute(
                f"select part, count(*) from tensile_split('{model}') group by part".encode()
            ).fetchall()
            prepared = published.prepared
            assert dict(parts) == {part: getattr(prepared, part).rows for part in ("train", "valid", "test")}
            whole = f"""select value from tensile_predict_table('{model}', '{relation}', keys => array['{key}'])
                         order by (key ->> '{key}')::int"""
            single = f"select tensile_predict('{model}', t) from {relation} as t order by {key}"
            assert demo.execute(whole.encode()).fetchall() == demo.execute(single.encode()).fetchall()


@pytest.mark.parametrize("split", ['{"group": "team"}', '{"stratify": "y"}'])
def test_rows_that_are_divided_by_a_column_have_their_parts_in_tensile_split(
    database: Database, typed: Published, split: str
) -> None:
    name = split[2:7]
    published = publish(database, name, "typed", f", target => 'y', features => array['c1', 'z'], split => '{split}'")
    with database.connect(user="demo") as demo:
        rows = demo.execute(f"select part, count(*) from tensile_split('{name}') group by part".encode()).fetchall()
    prepared = published.prepared
    counted = {"train": prepared.train.rows, "valid": prepared.valid.rows, "test": prepared.test.rows}
    assert dict(rows) == {part: count for part, count in counted.items() if count}


@pytest.mark.nightly
def test_a_training_on_every_type_is_explained_with_weights_and_encodings(
    database: Database, service: Service, typed: Published
) -> None:
    with database.connect(user="demo") as demo:
        rows = demo.execute(
            f"""select policy, peak_bytes from tensile_explain('new', 'typed', target => 'y', {PATHS[:-2]},
                  "encode": {{"c7": "hash", "team": "target", "doc.kind": "ordinal"}}, "scale": "quantile"}}',
                  hyperparams => '{{"class_weight": "balanced", "weight": "z"}}',
                  split => '{{"stratify": "team"}}')""".encode()
        ).fetchall()
    assert rows
    assert all(peak > 0 for _, peak in rows)
