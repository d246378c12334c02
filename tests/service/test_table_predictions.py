"""Check predictions of whole tables: the answers of single rows, read with the caller's own rights, and streamed."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tests.conftest import Database

from .conftest import Published, Service, publish
from .test_session_settings import SETTINGS, TABLE

pytestmark = pytest.mark.postgres

Connection = psycopg.Connection[Any]
TABLES = f"""
{TABLE}
create type tint as enum ('red', 'blue');
create domain measure as double precision;
create table flowers (id bigint, part int, a measure, b tint, label text, primary key (id, part));
insert into flowers
select n, n % 2, sin(n), (array['red', 'blue'])[n % 2 + 1]::tint, (array['rö"d,', 'b\\l%s'])[n % 2 + 1]
  from generate_series(1, 60) as n;
grant select on flowers to tensile_reader;
create table grown as select n as id, sin(n) as a, 'red'::tint as b from generate_series(1, 9000) as n;
create view untyped as select a::text as a, b::text as b, gen_random_uuid() as id from flowers;
create view nothing as select * from flowers where false;
create function helper() returns int language sql as 'select 1';
create view calling as select id, a, b from flowers where helper() = 1;
create view seen as select id, part, a, b from flowers;
create schema own create table secret (id int primary key, a float8, b text);
insert into own.secret values (1, 0.5, 'red'), (2, null, null);
"""


@pytest.fixture(scope="module")
def models(database: Database) -> tuple[Published, Published]:
    """A regression with columns of many types, and a classification with text labels."""
    with database.connect() as admin:
        admin.execute(f"grant create on database {database.name} to demo")
    with database.connect(user="demo") as demo:
        demo.execute(TABLES.encode())
    return publish(database, "mixed", "mixed"), publish(database, "flowers", "flowers")


@pytest.fixture
def demo(database: Database, service: Service, models: tuple[Published, Published]) -> Iterator[Connection]:
    with database.connect(user="demo") as connection:
        yield connection


def rows(connection: Connection, statement: str) -> list[tuple[Any, ...]]:
    return connection.execute(statement.encode()).fetchall()


def refusal(connection: Connection, statement: str) -> tuple[str | None, ...]:
    with pytest.raises(psycopg.Error) as caught:
        connection.execute(statement.encode())
    error = caught.value.diag
    return error.sqlstate, error.message_primary, error.message_hint


def test_table_is_predicted_as_its_rows_are_whatever_the_settings_of_the_session(
    database: Database, demo: Connection
) -> None:
    one_by_one = rows(demo, "select jsonb_build_object('id', id), tensile_predict('mixed', m) from mixed as m")
    table = "from public.tensile_predict_table('mixed', 'public.mixed')"
    values = rows(demo, f"select key, value {table}")
    answers = []
    for settings in ("", *SETTINGS, "set search_path = pg_temp", "set intervalstyle = 'sql_standard'"):
        with database.connect(user="demo") as session:
            session.execute(settings.encode())
            answers.append(session.execute(f"select key, value {table}", binary=True).fetchall())

    # A network computes other last digits where a slow machine divides the same rows into other passes.
    for answer in answers:
        assert answer == [(key, pytest.approx(value, rel=1e-5, abs=1e-6)) for key, value in values]
    assert [key for key, _ in values] == [key for key, _ in one_by_one]
    assert [value for _, value in values] == pytest.approx([value for _, value in one_by_one], rel=1e-5, abs=1e-6)


def test_labels_and_probabilities_are_those_of_the_single_functions(demo: Connection) -> None:
    expected = rows(
        demo,
        """select jsonb_build_object('id', id, 'part', part), null::float8, tensile_predict_label('flowers', f),
                  (select jsonb_object_agg(p.label, p.probability) from tensile_predict_proba('flowers', f) as p)
             from flowers as f order by id""",
    )
    whole = (
        "select * from tensile_predict_table('flowers', 'flowers', with_probabilities => true) order by key -> 'id'"
    )
    answered = rows(demo, whole)

    assert [row[:3] for row in answered] == [row[:3] for row in expected]
    assert [row[3] for row in answered] == [pytest.approx(row[3], rel=1e-5) for row in expected]
    assert [row[2] for row in answered[:2]] == [row[2] for row in expected[:2]]
    assert rows(demo, "select probabilities from tensile_predict_table('flowers', 'flowers') limit 1") == [(None,)]


@pytest.mark.parametrize(
    ("relation", "keys", "key"),
    [
        ("flowers", "array['part', 'id']", {"id": 1, "part": 1}),
        ("flowers", "array['b']", {"b": "blue"}),
        ("flowers", "'{}'", {}),
        ("seen", "null", {"id": 1, "part": 1}),
        ("seen", "array['*']", {"id": 1, "part": 1, "a": 0.8414709848078965, "b": "blue"}),
        ("grown", "array['id']", {"id": 1}),
        ("calling", "array['id', 'a']", {"id": 1, "a": 0.8414709848078965}),
    ],
)
def test_key_has_the_named_columns(demo: Connection, relation: str, keys: str, key: Any) -> None:
    """Also for columns whose names and values travel with the rows, and those that do not."""
    first = rows(demo, f"select key from tensile_predict_table('flowers', '{relation}', {keys}) limit 1")
    assert first == [(key,)]


RELATIONS = {
    "unlogged table": "create unlogged table s as select id, a, b from flowers",
    "table with children": """create table s (id bigint, a measure);
        create table more (b tint, pad text) inherits (s);
        alter table s add b tint; insert into s select id, a, b from flowers where id <= 9;
        insert into more (id, a, b) select id, a, b from flowers where id > 9""",
    "table with dropped columns": """create table s (gone int, b tint, also text, a measure, id bigint);
        alter table s drop gone, drop also; insert into s select b, a, id from flowers""",
    "table with generated columns": """create table s (id bigint, half float8, b tint,
        a float8 generated always as (half * 2) stored); insert into s select id, a / 2, b from flowers""",
    "partitions of two levels": """create table s (id bigint, a measure, b tint) partition by list (b);
        create table blue partition of s for values in ('blue'); create table others (b tint, id bigint, a measure)
        partition by range (id); create table low partition of others for values from (0) to (30);
        create table high partition of others for values from (30) to (99);
        alter table s attach partition others default; insert into s select id, a, b from flowers""",
    "materialized view": "create materialized view s as select id, a, b from flowers",
    "temporary table": "create temporary table s as select id, a, b from flowers",
    "temporary view": "create temporary view s as select id, a, b from flowers",
    "view with a join": """create view s as
        select f.id, f.a, o.b from flowers as f join (select id, b from flowers) as o on o.id = f.id""",
    "view with an aggregate": "create view s as select id, max(a) as a, min(b) as b from flowers group by id",
    "view of a union": """create view s as
        select id, a, b from flowers where id % 3 = 0 union all select id, a, b from flowers where id % 3 > 0""",
    "view that functions of the session decide": """create view s as select id, a, b from flowers
        where current_setting('work_mem') is not null and pg_backend_pid() > 0""",
}


def test_each_kind_of_relation_is_predicted_as_its_rows_are(demo: Connection) -> None:
    expected = rows(demo, "select id, tensile_predict_label('flowers', f) from flowers as f order by id")
    for kind, statements in RELATIONS.items():
        with demo.transaction(force_rollback=True):
            demo.execute(statements.encode())
            answers = (
                "select (key -> 'id')::bigint, label from tensile_predict_table('flowers', 's', '{id}') order by 1"
            )
            assert rows(demo, answers) == expected, kind
            typed = "select ((r.row).id), r.label from tensile_predict_rows('flowers', null::s) as r order by 1"
            assert rows(demo, typed) == expected, kind


def test_columns_of_other_types_are_read_as_a_single_prediction_reads_them(demo: Connection) -> None:
    typed = rows(demo, "select label from tensile_predict_table('flowers', 'flowers')")
    assert rows(demo, "select label from tensile_predict_table('flowers', 'untyped', array['id'])") == typed


def test_many_rows_keep_their_order_and_stream(demo: Connection) -> None:
    assert rows(
        demo,
        """select count(*), count(distinct key), bool_and((key ->> 'id')::int = place)
             from (select key, row_number() over () as place
                     from tensile_predict_table('flowers', 'grown', array['id'])) as p""",
    ) == [(9000, 9000, True)]
    plan = "\n".join(
        text for (text,) in rows(demo, "explain select * from tensile_predict_table('flowers', 'grown')")
    )
    assert "ProjectSet" in plan
    assert "Function Scan" not in plan
    typed = rows(demo, "explain select (r.row).*, r.label from tensile_predict_rows('flowers', null::grown) as r")
    assert "Function Scan" not in "\n".join(text for (text,) in typed)
    two = "select * from tensile_predict_table('flowers', 'grown', array['id']) limit 1"
    for _ in range(100):  # readings that are never read to their end
        rows(demo, two)
    nested = f"select (select count(*) from ({two}) as q), key from tensile_predict_table('flowers', 'flowers')"
    assert len(rows(demo, nested)) == 60
    assert rows(demo, "select * from tensile_predict_table('flowers', 'nothing', array['id'])") == []


@pytest.mark.parametrize("kinds", [("bigint",), ("bigint", "text", "date", "double precision")])
def test_rows_of_many_columns_come_beside_their_answers(demo: Connection, kinds: tuple[str, ...]) -> None:
    """PostgreSQL allows 100 arguments to a function and 1,664 values in a row."""
    more = ", ".join(f"c{place} {kinds[place % len(kinds)]}" for place in range(1_200 if len(kinds) == 1 else 60))
    with demo.transaction(force_rollback=True):
        demo.execute(f"create table many (id int, a float8, b text, {more})".encode())
        demo.execute("insert into many (id, a, b, c0) select id, a, b, part from flowers")
        table = rows(demo, "select value, label from tensile_predict_table('flowers', 'many', '{id}')")
        typed = rows(demo, "select r.row, r.value, r.label from tensile_predict_rows('flowers', null::many) as r")
        assert [answers for _, *answers in typed] == [list(answers) for answers in table]
        assert [row for row, *_ in typed] == [row for (row,) in rows(demo, "select m from many as m")]
        keys = "(select array_agg(attname::text) from pg_attribute where attrelid = 'many'::regclass and attnum > 4)"
        ((first,),) = rows(demo, f"select key from tensile_predict_table('flowers', 'many', {keys}) limit 1")
        assert len(first) == len(more.split(",")) - 1


def test_a_key_of_a_time_depends_on_no_setting(database: Database, demo: Connection) -> None:
    table = "select key from tensile_predict_table('mixed', 'mixed', '{instant,twice,day}') order by key"
    typed = "select (r.row).instant, (r.row).id from tensile_predict_rows('mixed', null::mixed) as r order by 2"
    expected = [rows(demo, table), rows(demo, typed)]
    for settings in SETTINGS:
        with database.connect(user="demo") as session:
            session.execute(settings.encode())
            answers = [session.execute(each.encode(), binary=True).fetchall() for each in (table, typed)]
            assert answers == expected


def test_the_model_predicts_alike_for_a_role_that_may_use_it(database: Database, demo: Connection) -> None:
    demo.execute("select tensile_grant_model('flowers', 'bob'); grant select on flowers, seen to bob")
    for statement in (
        "select key, label from tensile_predict_table('flowers', 'seen') order by key",
        "select tensile_predict_label('flowers', f) from flowers as f order by id",
    ):
        with database.connect(user="bob") as bob:
            assert rows(bob, statement) == rows(demo, statement)


@pytest.mark.nightly
def test_statements_that_fail_leave_no_reading_that_another_one_lacks(demo: Connection) -> None:
    failing = "select 1 / ((key ->> 'id')::int - 5) from tensile_predict_table('flowers', 'grown', array['id'])"
    with demo.transaction():
        for _ in range(66):
            with pytest.raises(psycopg.errors.DivisionByZero), demo.transaction():
                rows(demo, failing)
        assert len(rows(demo, "select * from tensile_predict_table('flowers', 'flowers')")) == 60
    assert len(rows(demo, "select * from tensile_predict_table('flowers', 'flowers')")) == 60
    many = ", ".join(f"tensile_predict_table('flowers', 'flowers') as p{number}" for number in range(3))
    assert rows(demo, f"select count(*) from {many}") == [(60**3,)]


def test_many_readings_of_one_transaction_stay_open(demo: Connection) -> None:
    with demo.transaction():
        for number in range(50):
            demo.execute(
                f"declare c{number} cursor for"
                " select key from tensile_predict_table('flowers', 'grown', '{id}')".encode()
            )
            assert rows(demo, f"fetch 1 from c{number}") == [({"id": 1},)]
        assert len(rows(demo, "fetch all from c0")) == 8999


def test_rows_are_read_with_the_callers_rights(database: Database, demo: Connection) -> None:
    demo.execute("select tensile_grant_model('flowers', 'bob')")
    secret = "select key from tensile_predict_table('flowers', 'own.secret')"
    with database.connect(user="bob") as bob:
        assert refusal(bob, secret.replace("'own.secret'", "(select oid from pg_class where relname = 'secret')"))[
            :2
        ] == ("42501", "permission denied for schema own")
        demo.execute("grant usage on schema own to bob; grant select (id, a) on own.secret to bob")
        assert refusal(bob, secret)[:2] == ("42501", "permission denied for table secret")
        demo.execute("grant select (b) on own.secret to bob; alter table own.secret enable row level security")
        demo.execute("create policy odd on own.secret to bob using (id % 2 = 1)")
        assert rows(bob, secret) == [({"id": 1},)]
    with demo.transaction(force_rollback=True):
        demo.execute("insert into own.secret values (3, 1, 'blue')")
        assert rows(demo, secret) == [({"id": number},) for number in (1, 2, 3)]


def test_prepared_reading_belongs_to_its_role_and_is_read_once(database: Database, demo: Connection) -> None:
    """Else a function that a privileged query calls could take the rows which that query reads."""
    prepare = """select tensile.call('predict_table', jsonb_build_object('model', 'flowers',
                   'relation', 'flowers'::regclass::oid::bigint)) ->> 'reading'"""
    with database.connect() as admin:
        ((number,),) = rows(admin, prepare)
        rows(admin, "select tensile_grant_model('flowers', 'bob'); set role bob")
        ((error,),) = rows(admin, f"select (tensile.prediction_pages({number})).error")
        assert "prepared by another role" in error
        ((error,),) = rows(admin, f"select (tensile.prediction_pages({number})).error")
        assert "there is no prepared reading" in error
    with database.connect(user="bob") as bob, pytest.raises(psycopg.Error, match="no reading is prepared"):
        bob.execute("select tensile.prediction_pages(1)")


@pytest.mark.parametrize(
    ("arguments", "sqlstate", "message", "hint"),
    [
        ("null, 'flowers'", "22023", "the model's name is null", "Give a name of 1 to 200 characters."),
        ("'flowers', null", "22023", "no relation is given",
         "Name one: select * from tensile_predict_table('model', 'table')."),
        ("'none', 'flowers'", "42704", 'there is no model "none"', None),
        ("'flowers', 'flowers', version => 9", "42704", 'model "flowers" has no version 9', None),
        ("'flowers', 'mixed'", "42703", 'relation public.mixed has no column "a", which model "flowers" needs', None),
        ("'flowers', 'grown'", "22023", "keys is null, and relation public.grown has no primary key",
         "Name columns that tell its rows apart: keys => array['id']."),
        ("'flowers', 'grown', array['x']", "42703", 'relation public.grown has no column "x"',
         "The columns of public.grown are id, a, b."),
        ("'flowers', 'grown', array[null]", "22023", "keys is [null], not a list of column names",
         "Name columns, such as keys => array['a', 'b'], or leave it out."),
        ("'flowers', 0::regclass", "42P01", "there is no table with oid 0", None),
    ],
)  # fmt: skip
def test_error_names_the_argument(
    demo: Connection, arguments: str, sqlstate: str, message: str, hint: str | None
) -> None:
    error = refusal(demo, f"select * from tensile_predict_table({arguments})")
    assert error[:2] == (sqlstate, message)
    assert hint is None or error[2] == hint


def test_row_that_does_not_fit_is_named_with_its_key(demo: Connection) -> None:
    demo.execute(
        "create temporary view wrong as select id, case when id = 7 then 'x' else '1' end as a, b from grown"
    )
    with pytest.raises(psycopg.Error) as caught:
        rows(demo, "select * from tensile_predict_table('flowers', 'wrong', array['id'])")
    error = caught.value.diag
    assert (error.message_primary, error.message_detail) == (
        "row 7: column \"a\": 'x' is not a number",
        'The row\'s key is {"id" : 7}.',
    )
    assert (error.context or "").splitlines() == ["PL/pgSQL function tensile.page_error(text) line 8 at RAISE"]
    assert rows(demo, "select tensile_predict_label('flowers', f) from flowers as f limit 1")


def test_reading_continues_after_a_restart_of_the_service(service: Service, demo: Connection) -> None:
    with demo.transaction(), demo.cursor("answers") as cursor:
        cursor.execute("select key from tensile_predict_table('flowers', 'grown', array['id'])")
        first = cursor.fetchmany(100)
        service.stop()
        service.start()
        assert len(first) + len(cursor.fetchall()) == 9000


def test_batches_of_labels_and_probabilities_are_those_of_the_rows(demo: Connection) -> None:
    batch = "select {} from (select * from flowers order by id limit 5) as f"
    ((labels, chances),) = rows(
        demo,
        batch.format(
            "tensile_predict_batch_label('flowers', array_agg(f)), "
            "tensile_predict_batch_proba('flowers', array_agg(f))"
        ),
    )
    assert labels == [label for (label,) in rows(demo, batch.format("tensile_predict_label('flowers', f)"))]
    assert [max(chance, key=chance.get) for chance in chances] == labels
    for name in ("tensile_predict_batch_label", "tensile_predict_batch_proba"):
        assert rows(demo, f"select {name}('flowers', '{{}}'::flowers[]), {name}('flowers', null)") == [([], None)]
        assert rows(demo, f"select {name}('flowers', array[null::flowers])") == [([None],)]
    error = refusal(demo, "select tensile_predict_batch_label('mixed', array_agg(m)) from mixed as m")
    assert error[1] == 'the model predicts "y", a number, and has no labels'


def test_view_shows_the_prediction_of_each_row_with_every_name_quoted(demo: Connection) -> None:
    with demo.transaction(force_rollback=True):
        demo.execute('create schema "odd ""s"; set search_path = "odd ""s", public')
        demo.execute('create table "fl""w;" as select 1 as t, * from public.flowers')
        name = '\'"odd ""s"."vi""ew"\''
        ((made,),) = rows(demo, f"select tensile_create_predict_view('flowers', '\"fl\"\"w;\"', {name})::text")
        assert made == '"vi""ew"'
        shown = rows(demo, f"select predicted_label, t from {made} where id = 7")
        assert shown == rows(demo, "select tensile_predict_label('flowers', f), 1 from flowers as f where id = 7")
        demo.execute("select tensile_create_predict_view('mixed', 'mixed', 'scored')")
        assert rows(demo, "select predicted_y = tensile_predict('mixed', m) from scored as m where id = 3") == [
            (True,)
        ]
    for view, message in (
        ("null", "view is null"),
        ("'a.b.c'", 'view is "a.b.c", not a name'),
        ("'a b'", 'view is "a b", not a name'),
    ):
        assert refusal(demo, f"select tensile_create_predict_view('flowers', 'flowers', {view})")[1] == message
    error = refusal(demo, "select tensile_create_predict_view('flowers', 'mixed', 'v')")
    assert error[1] == 'relation public.mixed has no column "a", which model "flowers" needs'


def test_function_predicts_from_named_arguments_whatever_the_settings_of_the_session(
    database: Database, demo: Connection
) -> None:
    ((made,),) = rows(demo, "select tensile_create_predict_function('mixed', 'mixed', 'score')::text")
    (columns,) = zip(
        *rows(
            demo,
            """select quote_ident(name) from pg_proc as p, unnest(p.proargnames) as name
                where p.oid = 'score'::regproc""",
        ),
        strict=True,
    )
    assert made.startswith("score(")
    call = f"score({', '.join(f'{name} => m.{name}' for name in columns)})"
    by_row = rows(demo, "select tensile_predict('mixed', m) from mixed as m where id <= 9 order by id")
    for settings in ("", *SETTINGS, "set search_path = pg_temp"):
        with database.connect(user="demo") as session:
            session.execute(settings.encode())
            called = session.execute(
                f"select public.{call} from public.mixed as m where id <= 9 order by id".encode(), binary=True
            ).fetchall()
        assert called == by_row
    demo.execute("drop function score")


def test_function_is_made_as_the_caller_and_has_every_name_quoted(database: Database, demo: Connection) -> None:
    with demo.transaction(force_rollback=True):
        demo.execute('create schema "odd ""s"; set search_path = "odd ""s", public')
        demo.execute('create table padded (id int, "a" measure, b char(5), extra int)')
        name = '\'"odd ""s"."fu""nction"\''
        ((made,),) = rows(demo, f"select tensile_create_predict_function('flowers', 'padded', {name})::text")
        assert made == '"fu""nction"(measure,character)'
        same = "select {}(a => 0.1, b => %s) = tensile_predict_label('flowers', row(1, 0.1, %s, 2)::padded)"
        for text in ("red", "blue", "blueish", None):
            statement = same.format('"fu""nction"')
            if text == "blueish":  # longer than the column: no row of the table has the value
                assert demo.execute(statement.split(" = ")[0].encode(), (text,)).fetchone() != (None,)
            else:
                assert demo.execute(statement.encode(), (text, text)).fetchone() == (True,)
        described = rows(
            demo,
            """select pg_get_userbyid(proowner), provolatile, proparallel, prosecdef, prorettype::regtype::text,
                      proargnames, obj_description(oid) from pg_proc where proname = 'fu"nction'""",
        )
        assert described == [("demo", "s", "u", False, "text", ["a", "b"], 'predicts "label" by the model "flowers"')]
        again = "select tensile_create_predict_function('flowers', 'padded', 'twice')"
        demo.execute(again.encode())
        with demo.transaction(force_rollback=True):
            assert refusal(demo, again)[:2] == ("42723", 'function "twice" already exists with same argument types')
    for function, message, hint in (
        ("null", "function_name is null", "Give a name for the function."),
        (
            "'a.b.c'",
            'function_name is "a.b.c", not a name',
            "Give the name of a function, or schema.function, with quotes where SQL needs them: '\"My function\"'.",
        ),
        (
            "''",
            'function_name is "", not a name',
            "Give the name of a function, or schema.function, with quotes where SQL needs them: '\"My function\"'.",
        ),
    ):
        call = f"select tensile_create_predict_function('flowers', 'flowers', {function})"
        assert refusal(demo, call)[1:] == (message, hint)
    error = refusal(demo, "select tensile_create_predict_function('flowers', 'mixed', 'f')")
    assert error[1] == 'relation public.mixed has no column "a", which model "flowers" needs'
    with database.connect(user="bob") as bob:
        error = refusal(bob, "select tensile_create_predict_function('mixed', 'mixed', 'f')")
        assert error[:2] == ("42704", 'there is no model "mixed"')


def test_trigger_stores_the_prediction_of_each_changed_row(database: Database, demo: Connection) -> None:
    with demo.transaction(force_rollback=True):
        demo.execute("""create table arriving (id int, a float8, b text, "gu ess" varchar(20))""")
        demo.execute("select tensile_create_predict_trigger('flowers', 'arriving', 'gu ess')")
        demo.execute("insert into arriving values (1, 0.1, 'red', 'mine'), (2, -0.9, 'blue', null)")
        demo.execute("update arriving set a = 0.7 where id = 2")
        assert rows(demo, 'select id, a, b, "gu ess" from arriving order by id') == rows(
            demo, "select id, a, b, tensile_predict_label('flowers', i) from arriving as i order by id"
        )
        demo.execute("create table measured as table mixed with no data; alter table measured add guess numeric")
        demo.execute("select tensile_create_predict_trigger('mixed', 'measured', 'guess')")
        demo.execute("insert into measured select * from mixed where id = 5")
        same = "select abs(guess::float8 - tensile_predict('mixed', m)) < 1e-6 from measured as m"
        assert rows(demo, same) == [(True,)]
    assert refusal(demo, "select tensile_create_predict_trigger('flowers', 'grown', 'guess')") == (
        "42703",
        'relation public.grown has no column "guess"',
        "Add it: alter table public.grown add column guess text;",
    )
    with database.connect(user="bob") as bob:
        demo.execute("select tensile_grant_model('flowers', 'bob')")
        denied = refusal(bob, "select tensile_create_predict_trigger('flowers', 'flowers', 'label')")
        assert denied[:2] == ("42501", "permission denied for table flowers")
