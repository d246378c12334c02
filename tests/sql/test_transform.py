"""Check features that SQL expressions compute: the same values at training and at prediction, and nothing unsafe."""

import json
from typing import Any

import pytest
from psycopg.types.json import Jsonb

from tests.conftest import Database
from tests.learning.test_copyvectors import IN_EXTENSION
from tests.service.test_types import VECTOR_TYPE

from .conftest import Connect, Connection, Refused, Serve, refused, value
from .fakes import result

pytestmark = [pytest.mark.postgres, pytest.mark.clears_database]

EXPRESSIONS = {
    "hour": "extract(hour from at at time zone 'UTC')",
    "ratio": "a / nullif(b, 0)",
    "long": "length(word) > 2",
    "shown": "(a / 3)::text || int4send(b)::text",
    "span": "extract(epoch from interval '90 minutes' * b)",
}
ROW = {"id": 1, "at": "2024-03-05T22:30:00+00:00", "a": 7.5, "b": 2, "word": "abc", "mood": "good", "y": 1}


@pytest.fixture
def owner(connect: Connect) -> Connection:
    """Alice, who has table `t`."""
    connection = connect("alice")
    connection.execute(
        """create type mood as enum ('good', 'bad');
           create table t as
             select i as id, timestamptz '2024-03-05 00:00+00' + i * interval '37 minutes' as at,
                    i * 1.5::float8 as a, i % 7 as b, 'w' || i as word,
                    (array['good', 'bad'])[1 + i % 2]::mood as mood, i % 3 as y
               from generate_series(1, 60) as i;
           alter table t add primary key (id);
           grant select on t to tensile_reader"""
    )
    return connection


def train(connection: Connection, transform: object, arguments: str = "", relation: str = "t") -> int:
    call = f"select tensile_train('m', '{relation}', target => 'y', transform => %s{arguments})"
    return int(value(connection, call, Jsonb(transform)))


def stored(connection: Connection, job: int) -> Any:
    return value(connection, "select spec -> 'transform' from tensile.jobs where job_id = %s", job)


def publish(admin: Connection, transform: object, name: str = "m") -> int:
    """Publish a version of a model with this `transform`, as a worker does."""
    return int(
        value(
            admin,
            """insert into tensile.model_versions (model_id, number, task, target, architecture, metric_name,
                   metric, higher_is_better, metrics, parameters, weights_bytes, deployed, training)
               select model_id, 1, 'regression', 'y', '{"type": "mlp"}', 'rmse', 0.97, false,
                      '{"rmse": 0.97}', 10, 40, true, %s
                 from tensile.models where name = %s
               returning version_id""",
            Jsonb({"features": ["a"], "transform": transform}),
            name,
        )
    )


def echo(request: dict[str, Any]) -> dict[str, Any]:
    """Answer as a model that needs all columns."""
    if request["verb"] == "features":
        names = [*EXPRESSIONS, "a"]
        features = [{"name": name, "kind": "number"} for name in names]
        return result({"features": features, "kind": "value", "several": False})
    if request["verb"] == "evaluate":
        return result({"metrics": {"rmse": 1.0}} if request["last"] else {"rows": 1})
    if request["kind"] == "table":
        rows = len(request["rows"])
        return result(
            {"values": f"{{{','.join('1' * rows)}}}", "labels": None, "probabilities": None, "targets": None}
        )
    return result({"values": [1.0] * len(request["rows"])})


def computed(row: dict[str, Any]) -> dict[str, Any]:
    return {name: row.get(name) for name in EXPRESSIONS}


def test_snapshot_has_the_values_that_predictions_get(
    owner: Connection, admin: Connection, database: Database, serve: Serve
) -> None:
    job = train(owner, EXPRESSIONS)
    transform = stored(owner, job)
    publish(admin, transform)
    service = serve(echo)

    owner.execute("select tensile_predict('m', t) from t order by id")
    predicted = [computed(request["rows"][0]) for request in service.requests if request["verb"] == "predict"]
    with database.connect("tensile_reader") as reader:
        trained = value(
            reader,
            f"""select json_agg(s order by id)
                  from (select id, hour, ratio, long, shown, span from tensile_data.job_{job}) as s""",
        )
    assert predicted == [computed(row) for row in trained]
    assert len(predicted) == 60
    assert transform["inputs"] == {"at": "timestamptz", "a": "float8", "b": "int4", "word": "text"}
    assert value(owner, "select settings -> 'transform' from tensile_training_info('m')") == transform


SESSIONS = (
    "set timezone = 'Asia/Tokyo'",
    "set datestyle = 'German'",
    "set intervalstyle = 'iso_8601'",
    "set extra_float_digits = -10",
    "set bytea_output = 'escape'",
    "set standard_conforming_strings = off",
    "set transform_null_equals = on",
    "set quote_all_identifiers = on",
    "set search_path = evil, public, pg_catalog",
)
EVIL = """
create schema evil; grant usage on schema evil to public;
create function evil.text_length(text) returns int language sql immutable as 'select 1 / 0';
create function evil.length(text) returns int language sql immutable as 'select -1';
create function evil.divide(double precision, integer) returns double precision language sql immutable
  as 'select -1::float8';
create operator evil./ (leftarg = double precision, rightarg = integer, function = evil.divide);
create function evil.same(integer, integer) returns boolean language sql immutable as 'select true';
create operator evil.= (leftarg = integer, rightarg = integer, function = evil.same);
"""


@pytest.mark.own_database
@pytest.mark.by_day("search_path", "timezone", "transform_null_equals")
@pytest.mark.parametrize("setting", SESSIONS)
def test_no_setting_of_a_session_changes_a_feature(
    owner: Connection, admin: Connection, database: Database, serve: Serve, setting: str
) -> None:
    admin.execute(EVIL)
    first = train(owner, EXPRESSIONS)
    publish(admin, stored(owner, first))
    service = serve(echo)
    owner.execute("select tensile_predict('m', t) from t where id = 5")

    owner.execute(setting)
    second = train(owner, EXPRESSIONS, relation="public.t")
    owner.execute("select public.tensile_predict('m', t) from public.t where id = 5")
    owner.execute("select public.tensile_predict_batch('m', array_agg(t)) from public.t where id = 5")
    owner.execute("select * from public.tensile_predict_table('m', 'public.t') where key ->> 'id' = '5'")
    owner.execute("select * from public.tensile_evaluate('m', 'public.t')")

    assert stored(owner, second) == stored(owner, first)
    rows = [row for request in service.requests for row in request.get("rows", [])]
    fifth = [computed(row) for row in rows if row.get("word") == "w5"]
    assert len(fifth) == 5
    assert all(row == fifth[0] for row in fifth)
    with database.connect("tensile_reader") as reader:
        table = "select md5(string_agg(s::text, ',' order by id)) from tensile_data.job_{} as s"
        assert value(reader, table.format(first)) == value(reader, table.format(second))


REFUSED = {
    "a sub-select": ("(select count(*) from t)", '"select" stands for a query', 2),
    "an aggregate": ("sum(a)", "it is an aggregate or a window function, which needs many rows", 1),
    "a window": ("rank() over (order by a)", '"over" stands for a window function', 8),
    "several rows": ("1 + generate_series(1, b)", "it returns several rows", 5),
    "a volatile function": ("a * random()", "it is volatile", 5),
    "another schema's function": ("public.mine(a)", "a name has a schema or a table", 7),
    "a function of public": ("mine(a)", "pg_catalog has no such function", 1),
    "another schema's operator": ("a operator(public.+) b", '"operator" stands for an operator with a schema', 3),
    "another schema's type": ("mood::text::public.mood", "a name has a schema or a table", 19),
    "a type of public": ("word::amount", 'type "amount" does not exist', 7),
    "a table's oid": ("word::regclass::int", "its value may change from session to session", 1),
    "a table's own oid": ("'t'::regclass::int", 'relation "t" does not exist', 1),
    "the session's time zone": ("extract(hour from at)", "its value may change from session to session", 1),
    "the session's language": ("to_char(at, 'TMDay')", "its value may change from session to session", 1),
    "the present": ("at - current_timestamp", '"current_timestamp" stands for the time of the session', 6),
    "the present as a function": ("at - now()", "its value may change from session to session", 1),
    "a user's collation": ("word < 'a' collate mine", 'collation "mine" for encoding "UTF8" does not exist', 12),
    "a system column": ("ctid::text", 'there is no column "ctid"', 1),
    "the whole row": ("t::text", 'there is no column "t"', 1),
    "another expression": ("a, b", "it is not one expression", 2),
    "an open bracket": ("a) , (b", 'a ")" closes nothing', 2),
    "a statement": ("a; drop table t", "it is not one expression", 2),
    "a comment": ("a -- b", "it has a comment", 3),
    "a syntax error": ("a +", 'syntax error at or near ")"', 5),
    "a text of any size": ("length(repeat(word, 1000000000))", "function repeat can make a value of any size", 8),
    "a padded text": ("lpad(word, 1000000000)", "the length of lpad is not a number up to 10000", 1),
    "a missing column": ("nope + 1", 'there is no column "nope"', 1),
}


@pytest.mark.own_database
def test_each_refused_expression_is_named_with_its_text_and_place(owner: Connection, admin: Connection) -> None:
    admin.execute(
        """create function public.mine(float8) returns float8 language sql immutable as 'select 1::float8';
           create domain public.amount as text check (public.mine(1) > 0);
           create collation public.mine from "C";
           create function public.plus(float8, int4) returns float8 language sql immutable as 'select 0::float8';
           create operator public.+ (leftarg = float8, rightarg = int4, function = public.plus)"""
    )
    for expression, fault, place in REFUSED.values():
        error = refused(
            owner, "select tensile_train('m', 't', target => 'y', transform => %s)", Jsonb({"f": expression})
        )
        assert error.message == 'transform: feature of table "public.t" cannot be computed: "f"', expression
        assert (
            error.sqlstate,
            error.detail is not None and error.detail.endswith(f"{fault}, at character {place}."),
        ) == (
            "22023",
            True,
        ), (expression, error)
        assert error.hint, expression


def test_all_refused_expressions_are_named_at_once(owner: Connection) -> None:
    transform = {"one": "sum(a)", "two": "(select 1)", "three": "a + 1", "b": "a", "hour": "extract(hour from at)"}
    error = refused(owner, "select tensile_train('m', 't', target => 'y', transform => %s)", Jsonb(transform))
    assert error.message == 'transform: 4 features of table "public.t" cannot be computed: "b", "two", "one", "hour"'
    assert error.detail is not None
    assert '"b" (a): the table has a column "b", and the expression does not use it, at character 1.' in error.detail


def test_feature_replaces_the_column_that_it_is_computed_from(owner: Connection, database: Database) -> None:
    job = train(owner, {"a": "ln(a + 1)"})
    with database.connect("tensile_reader") as reader:
        assert value(reader, f"select a from tensile_data.job_{job} where id = 1") == pytest.approx(0.9163, abs=1e-4)
    for arguments, role in (
        (', split => \'{"column": "part"}\'', "split"),
        (', hyperparams => \'{"weight": "part"}\'', "hyperparams: weight"),
    ):
        expression = "case when b > 3 then 'test' else 'train' end" if role == "split" else "a"
        error = refused(
            owner,
            f"select tensile_train('m', 't', target => 'y', transform => %s{arguments})",
            Jsonb({"part": expression}),
        )
        assert error.message == f'{role} is "part", which transform computes'


def test_faulty_row_names_the_feature_at_training_and_at_prediction(
    owner: Connection, admin: Connection, serve: Serve
) -> None:
    error = refused(owner, "select tensile_train('m', 't', target => 'y', transform => %s)", Jsonb({"f": "a / b"}))
    assert error == Refused(
        "22012",
        'transform: feature "f" cannot be computed for a row of table "public.t": division by zero',
        "It is computed as (a / (b)::double precision).",
        "Cover such rows: a / nullif(b, 0), or case when ... then ... end.",
    )
    owner.execute("delete from t where b = 0")
    publish(admin, stored(owner, train(owner, {"f": "a / b"})))
    serve(echo)
    statement = "select tensile_predict_batch('m', array[%s::jsonb, %s::jsonb])"
    error = refused(owner, statement, Jsonb(ROW), Jsonb(ROW | {"b": 0}))
    assert (error.sqlstate, error.message) == ("22012", 'feature "f" of row 2 cannot be computed: division by zero')
    error = refused(owner, "select tensile_predict('m', %s::jsonb)", Jsonb({"a": 1}))
    assert error.message == 'row has no column "b", from which the model computes "f"'
    for row in ("array[1, 2]", "row(1, 2)", "'[1, 2]'"):
        assert refused(owner, f"select tensile_predict('m', {row})").sqlstate == "42809"
    assert value(owner, "select tensile_predict('m', null::t)") is None


FORGED = (
    "pg_sleep(1)",
    "1) from (select pg_sleep(1)) as s, (select 1",
    "(select 1)",
    "public.mine(a)",
    "pg_catalog.pg_sleep(1)",
    "set_config('search_path', 'evil', false)",
    "a operator(public.+) 1",
    "query_to_xml('drop table t', true, true, '')",
    "lo_import('/etc/passwd')",
    "E'a'\n'\\' ) ; drop table t; --'",
    'U&"\\0061" + 1',
    "$$a$$",
    "repeat('a', 1000000000)",
    "length(bpchar('a', 1000000000, true))",
    'length("bit"(1, 1000000000))',
    "length(table_to_xml('public.trap', true, true, '')::text)",
    "length(database_to_xml(true, true, '')::text)",
    "domain_in('1', 1, 1)",
)


@pytest.mark.by_day("(select 1)", "public.mine", "set_config", "operator(public", "drop table t; --", "bpchar")
@pytest.mark.parametrize("expression", FORGED)
def test_session_that_predicts_refuses_an_expression_that_training_would_not_store(
    owner: Connection, bob: Connection, admin: Connection, serve: Serve, expression: str
) -> None:
    owner.execute("select tensile_create_model('m'); select tensile_grant_model('m', 'bob')")
    publish(admin, {"expressions": {"f": expression}, "inputs": {"a": "float8"}})
    service = serve(echo)
    error = refused(bob, "select tensile_predict('m', %s::jsonb)", Jsonb(ROW))
    assert (error.sqlstate, error.message) == (
        "42501",
        "version 1 of the model computes features by an expression that is not admitted",
    )
    assert not service.requests
    assert value(owner, "select count(*) from t") == 60


def test_last_run_hands_its_expressions_on(owner: Connection, admin: Connection) -> None:
    job = train(owner, {"hour": EXPRESSIONS["hour"]})
    admin.execute(
        "update tensile.models set last_spec = (select spec from tensile.jobs where job_id = %s), last_job_id = %s",
        (job, job),
    )
    again = int(value(owner, "select tensile_train('m', 't')"))
    repeated = int(value(owner, "select tensile_retrain('m')"))
    assert stored(owner, again) == stored(owner, repeated) == stored(owner, job)
    assert stored(owner, int(value(owner, "select tensile_train('m', 't', transform => '{}')"))) is None
    owner.execute("create view narrow as select id, a, y from t")
    assert stored(owner, int(value(owner, "select tensile_train('m', 'narrow')"))) is None


def test_query_trains_with_features_and_leaves_no_temporary_object(owner: Connection, database: Database) -> None:
    owner.execute("set search_path = pg_temp, public")
    call = "select tensile_train_query('q', 'select * from t order by id;', target => 'y', transform => %s)"
    job = int(value(owner, call, Jsonb(EXPRESSIONS | {"happy": "mood = 'good'"})))
    with database.connect("tensile_reader") as reader:
        row = value(reader, f"select to_jsonb(s) from tensile_data.job_{job} as s where word = 'w2'")
    assert (row["happy"], row["ratio"], row["long"]) == (True, 1.5, False)
    left = "select count(*) from pg_class where relnamespace = pg_my_temp_schema() and relkind in ('r', 'v')"
    assert value(owner, left) == 0


def test_table_and_views_are_predicted_with_features(owner: Connection, admin: Connection, serve: Serve) -> None:
    publish(admin, stored(owner, train(owner, EXPRESSIONS)))
    service = serve(echo)
    assert value(owner, "select count(*) from tensile_predict_table('m', 't')") == 60
    owner.execute("select tensile_create_predict_view('m', 't', 'seen'); alter table t add column p float8")
    owner.execute("select tensile_create_predict_trigger('m', 't', 'p')")
    assert value(owner, "select predicted_y from seen where id = 1") == 1.0
    assert value(owner, "insert into t (id, at, a, b, word) values (99, '2024-01-01', 1, 1, 'w') returning p") == 1.0
    rows = [row for request in service.requests for row in request.get("rows", [])]
    assert all(row.keys() >= EXPRESSIONS.keys() for row in rows)
    owner.execute("create table partial as select id, a from t")
    error = refused(owner, "select * from tensile_predict_table('m', 'partial')")
    assert error.message == 'relation public.partial has no column "b", which model "m" needs'
    assert json.dumps(rows)


@pytest.mark.own_database
def test_features_of_vectors_have_one_value_in_a_snapshot_and_in_a_row(
    owner: Connection, admin: Connection, database: Database, serve: Serve
) -> None:
    admin.execute("create schema v; grant usage on schema v to public")
    admin.execute(VECTOR_TYPE.format(name="vector").encode())
    admin.execute(IN_EXTENSION.format(name="vector").encode())
    owner.execute(
        """create table embedded as
             select i as id, ('[' || i || ',-2,0.1]')::v.vector as e, array['good']::mood[] as moods, i % 3 as y
               from generate_series(1, 60) as i;
           alter table embedded add primary key (id)"""
    )
    expressions = {"first": "e[1] + e[3]", "number": "cardinality(moods)"}
    job = train(owner, expressions, ", exclude => '{e,moods}'", "embedded")
    publish(admin, stored(owner, job))
    service = serve(lambda request: result({"values": [1.0] * len(request["rows"])}))
    owner.execute("select tensile_predict('m', t), tensile_predict('m', null::embedded) from embedded as t")
    sent = [request["rows"][0] for request in service.requests if request["rows"]]
    with database.connect("tensile_reader") as reader:
        copied = value(reader, f"select json_agg(s order by id) from tensile_data.job_{job} as s")
    assert [[row["first"], row["number"]] for row in sent] == [[row["first"], row["number"]] for row in copied]
    assert len(sent) == 60
    error = refused(owner, "select tensile_predict('m', %s::jsonb)", Jsonb({"e": "[1", "moods": []}))
    assert (error.sqlstate[:2], error.message[:46]) == ("22", 'feature "first" of row cannot be computed: inv')


def test_features_and_tables_of_parts_are_refused_together(owner: Connection) -> None:
    owner.execute("create table later as select * from t; grant select on later to tensile_reader")
    call = "select tensile_train('m', 't', target => 'y', transform => %s, split => '{\"test\": \"later\"}')"
    error = refused(owner, call, Jsonb({"long": "length(word) > 2"}))
    assert error.sqlstate == "0A000"
    assert error.message == "split: tables of parts cannot be combined with computed features (transform)"


def test_job_that_predicts_reads_the_features_that_the_callers_session_computes(
    owner: Connection, bob: Connection, admin: Connection, database: Database, serve: Serve
) -> None:
    """Also for a role that only predicts, with its own settings, and from a view with a join."""
    publish(admin, stored(owner, train(owner, EXPRESSIONS)))
    service = serve(echo)
    owner.execute("select tensile_predict('m', t) from t order by id; select tensile_grant_model('m', 'bob')")
    single = [computed(request["rows"][0]) for request in service.requests if request["verb"] == "predict"]
    owner.execute(
        """create view joined as select id, at, a, other.b, word::varchar from t join (select id, b from t) as other
             using (id) order by id;
           grant select on t, joined to bob"""
    )
    for connection, relation in ((owner, "t"), (bob, "joined")):
        connection.execute("set timezone = 'Asia/Tokyo'; set bytea_output = 'escape'; set extra_float_digits = -10")
        job = value(connection, f"select tensile_predict_into('m', '{relation}', 'own_{relation}', '{{id}}')")
        with database.connect("tensile_reader") as reader:
            rows = f"select json_agg(s order by id) from tensile_data.job_{job} as s"
            assert [computed(row) for row in value(reader, rows)] == single
        left = "select count(*) from pg_class where relnamespace = pg_my_temp_schema() and relkind in ('r', 'v')"
        assert value(connection, left) == 0


NOT_COMPUTED = {
    "select id, at, a, b, word::bytea from t": Refused(
        "42809",
        'column "word" of table "public.r" has type bytea, and model "m" computes features from a column of '
        "type text",
        None,
        "Name a view that casts the column to text, or use tensile_predict_table, which converts each value.",
    ),
    "select id, at, a, b from t": Refused(
        "42703",
        'relation "public.r" has no column "word", which model "m" needs',
        None,
        'Name a relation that has it. The columns of "public.r" are id, at, a, b.',
    ),
    "select id, id as hour, at, a, b, word from t": Refused(
        "22023",
        'column "hour" of table "public.r" is a key, and model "m" computes a feature of this name',
        "The model computes it as EXTRACT(hour FROM (at AT TIME ZONE 'UTC'::text)).",
        "Name other columns in keys, or a view that has the column under two names.",
    ),
    "select id, at, a, 0 as b, word from t": Refused(
        "22012",
        'transform: feature "ratio" cannot be computed for a row of table "public.r": division by zero',
        "It is computed as (a / (b)::double precision).",
        "Correct the row, or name a view without it.",
    ),
}


def test_relation_whose_features_cannot_be_computed_is_refused_at_the_call(
    owner: Connection, admin: Connection, serve: Serve
) -> None:
    owner.execute("delete from t where b = 0")
    publish(admin, stored(owner, train(owner, {**EXPRESSIONS, "ratio": "a / b"})))
    serve(echo)
    for relation, error in NOT_COMPUTED.items():
        with owner.transaction(force_rollback=True):
            owner.execute(f"create view r as {relation}".encode())
            keys = "{hour}" if "as hour" in relation else "{id}"
            assert refused(owner, f"select tensile_predict_into('m', 'r', 'answers', '{keys}')") == error


def test_job_that_predicts_refuses_an_expression_that_training_would_not_store(
    owner: Connection, bob: Connection, admin: Connection, serve: Serve
) -> None:
    owner.execute(
        "select tensile_create_model('m'); select tensile_grant_model('m', 'bob'); grant select on t to bob"
    )
    serve(lambda _: result({"features": [{"name": "f", "kind": "number"}], "kind": "value", "several": False}))
    publish(admin, {"expressions": {"f": "a"}, "inputs": {"a": "float8"}})
    change = "update tensile.model_versions set training = jsonb_set(training, '{transform,expressions,f}', %s)"
    for expression in FORGED:
        admin.execute(change, (Jsonb(expression),))
        error = refused(bob, "select tensile_predict_into('m', 't', 'answers')")
        assert (error.sqlstate, error.message) == (
            "42501",
            "version 1 of the model computes features by an expression that is not admitted",
        )
    assert value(owner, "select count(*) from t") == 60
