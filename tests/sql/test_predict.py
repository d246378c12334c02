"""Check predictions: the rows that reach the service, and the SQL types of its answers."""

import math
from typing import Any

import pytest

from .conftest import Connection, Refused, Serve, refused, value
from .fakes import echo, result

pytestmark = [pytest.mark.postgres, pytest.mark.clears_database]

Json = dict[str, Any]

ROWS = [
    ("i", "from iris as i where id = 1"),
    ("(select j from iris as j where j.id = 1)", ""),
    ("to_jsonb(i)", "from iris as i where id = 1"),
]

ROW = {"id": 1, "petal": 1, "sepal": 1, "species": "virginica", "kind": 1, "label_known": False}


@pytest.mark.shares_database
@pytest.mark.parametrize(
    ("argument", "source", "sent"),
    [
        *[(argument, source, ROW) for argument, source in ROWS],
        ("array[1.5, 2, null]", "", [1.5, 2, None]),
        ("array[[1, 2], [3, 4]]::real[]", "", [[1, 2], [3, 4]]),
        ("'{1.5,2}'", "", [1.5, 2]),
        ("""'{"petal": 3}'""", "", {"petal": 3}),
        ("""'{"petal": 3}'::jsonb""", "", {"petal": 3}),
        ("3", "", 3),
        ("'[1, 2]'", "", [1, 2]),
    ],
)
@pytest.mark.usefixtures("published")
def test_every_form_of_a_row_is_sent_as_json(
    alice: Connection, serve: Serve, argument: str, source: str, sent: Any
) -> None:
    service = serve(echo)

    assert value(alice, f"select tensile_predict('flowers', {argument}) {source}") == 0.5
    assert service.requests == [{"verb": "predict", "version": 700, "rows": [sent], "kind": "value"}]


@pytest.mark.shares_database
@pytest.mark.parametrize(
    ("argument", "sent"),
    [
        ("row(1.5, 'x')", {"f1": 1.5, "f2": "x"}),
        ("row(array[[1, 2], [3, 4]])", {"f1": [[1, 2], [3, 4]]}),
        ("(select x from (select petal, sepal from iris where id = 1) as x)", {"petal": 1, "sepal": 1}),
    ],
)
@pytest.mark.usefixtures("published")
def test_request_marks_records_without_column_names(
    alice: Connection, serve: Serve, argument: str, sent: Json
) -> None:
    service = serve(echo)

    assert value(alice, f"select tensile_predict('flowers', {argument})") == 0.5
    assert service.requests == [{"verb": "predict", "version": 700, "rows": [sent], "kind": "value", "unnamed": True}]


@pytest.mark.by_day("'sad'::mood", "timestamptz", "NaN", "true", "1e400")
@pytest.mark.parametrize(
    ("argument", "sent"),
    [
        ("'sad'::mood", "sad"),
        ("'sad'::feeling", "sad"),
        ("'12'::feeling", "12"),
        ("'2024-05-06 07:08:09.25'::timestamp", "2024-05-06T07:08:09.25"),
        ("'2024-05-06 07:08:09+02'::timestamptz", "2024-05-06T05:08:09+00:00"),
        ("'2024-05-06'::date", "2024-05-06"),
        ("'NaN'::float8", "NaN"),
        ("'-Infinity'::real", "-Infinity"),
        ("true", True),
        ("0.1::real", 0.1),
        ("'1e400'::numeric", 10**400),
        ("'\"a\"'::jsonb", "a"),
    ],
)
@pytest.mark.usefixtures("published")
def test_single_value_is_a_row_of_one_feature(alice: Connection, serve: Serve, argument: str, sent: Any) -> None:
    service = serve(echo)
    alice.execute("create type mood as enum ('sad', 'glad'); create domain feeling as text")

    assert value(alice, f"select tensile_predict('flowers', {argument})") == 0.5
    assert value(alice, f"select tensile_predict_batch('flowers', array[{argument}])") == [0.5]
    assert [request["rows"] for request in service.requests] == [[sent], [sent]]


@pytest.mark.usefixtures("published")
def test_row_can_be_a_parameter_of_untyped_text(alice: Connection, serve: Serve) -> None:
    service = serve(echo)

    prediction = value(alice, "select tensile_predict(%s, %s, version => %s)", "flowers", '{"petal": 3}', None)

    assert (prediction, service.requests[0]["rows"]) == (0.5, [{"petal": 3}])


@pytest.mark.usefixtures("published")
def test_null_is_predicted_as_null_without_a_request(alice: Connection, serve: Serve) -> None:
    service = serve(echo)

    assert value(alice, "select tensile_predict('flowers', null)") is None
    assert value(alice, "select tensile_predict('flowers', (select i from iris as i where false))") is None
    assert service.requests == []


@pytest.mark.usefixtures("published")
def test_literal_that_is_no_row_is_refused(alice: Connection, serve: Serve) -> None:
    serve(echo)

    error = refused(alice, "select tensile_predict('flowers', 'petal')")

    assert (error.sqlstate, error.message) == (
        "22P02",
        'the row to predict is neither JSON nor an array of numbers: "petal"',
    )


@pytest.mark.usefixtures("published")
def test_each_kind_of_prediction_has_its_own_type(alice: Connection, serve: Serve) -> None:
    values: dict[str, Any] = {
        "value": math.inf,
        "label": "setosa",
        "proba": {"setosa": 0.75, "virginica": 0.25},
        "vector": [1.5, math.nan],
    }
    serve(lambda request: result({"values": [values[request["kind"]]]}))

    assert value(alice, "select tensile_predict('flowers', 1)") == math.inf
    assert value(alice, "select tensile_predict_label('flowers', 1)") == "setosa"
    assert alice.execute("select * from tensile_predict_proba('flowers', 1)").fetchall() == [
        ("setosa", 0.75),
        ("virginica", 0.25),
    ]
    assert value(alice, "select tensile_predict_vector('flowers', 1)::text") == "{1.5,NaN}"
    assert alice.execute("select * from tensile_predict_proba('flowers', null)").fetchall() == []
    assert value(alice, "select tensile_predict_vector('flowers', null)") is None


@pytest.mark.usefixtures("published")
def test_prediction_sees_the_callers_uncommitted_rows(alice: Connection, serve: Serve) -> None:
    service = serve(echo)
    alice.autocommit = False
    alice.execute("update iris set petal = 99 where id = 1")

    alice.execute("select tensile_predict('flowers', i) from iris as i where id = 1")
    alice.rollback()

    assert service.requests[0]["rows"][0]["petal"] == 99


@pytest.mark.usefixtures("published")
def test_prediction_does_not_run_in_parallel_workers(alice: Connection, serve: Serve) -> None:
    serve(echo)
    alice.execute(
        """set parallel_setup_cost = 0; set parallel_tuple_cost = 0; set min_parallel_table_scan_size = 0;
           set force_parallel_mode = on"""
    )
    plan = "\n".join(
        line for (line,) in alice.execute("explain select count(*) from iris where petal > 1").fetchall()
    )

    total = value(alice, "select sum(tensile_predict('flowers', i)) from iris as i")

    assert "Workers Planned" in plan  # otherwise the settings would not force a parallel plan
    assert total == 30.0
    assert value(alice, "select tensile_predict('flowers', 1)") == 0.5


@pytest.mark.usefixtures("published")
def test_no_prediction_is_parallel_safe_or_immutable(admin: Connection) -> None:
    functions = admin.execute(
        "select proname, provolatile::text, proparallel::text from pg_proc where proname like 'tensile_predict%'"
        " and proname not like 'tensile_predict_into%'"  # enqueues a job
    ).fetchall()

    assert {(volatile, parallel) for _, volatile, parallel in functions} == {("s", "u")}
    assert len(functions) == 12


@pytest.mark.parametrize(
    ("existing", "hint"),
    [
        ("create table answers (id integer)", "Choose another name."),
        (
            "create view answers as select 1 as id",
            "Choose another name, or drop the view first: drop view public.answers;",
        ),
    ],
)
def test_output_that_exists_is_refused_before_the_work(alice: Connection, existing: str, hint: str) -> None:
    alice.execute(existing.encode())

    assert refused(alice, "select tensile_predict_into('flowers', 'answers', 'answers')") == Refused(
        "42P07", 'output: relation "public.answers" already exists', None, hint
    )


@pytest.mark.usefixtures("published")
def test_missing_version_is_named(alice: Connection, serve: Serve) -> None:
    serve(echo)

    assert refused(alice, "select tensile_predict('flowers', 1, version => 2)") == Refused(
        "42704",
        'model "flowers" has no version 2',
        None,
        "See its versions: select * from tensile_training_info('flowers').",
    )
    assert value(alice, "select tensile_predict('flowers', 1, version => 1)") == 0.5


def test_model_without_a_deployed_version_is_refused(alice: Connection) -> None:
    alice.execute("select tensile_create_model('new')")

    error = refused(alice, "select tensile_predict('new', 1)")

    assert (error.sqlstate, error.message, error.detail) == (
        "55000",
        'model "new" has no deployed version',
        None,
    )


def test_error_of_a_model_without_a_version_names_its_newest_training(alice: Connection, admin: Connection) -> None:
    job = value(alice, "select tensile_train('new', 'iris', 'species')")

    def detail() -> str | None:
        return refused(alice, "select tensile_predict_label('new', 1)").detail

    assert detail() == f"Job {job} is training it, and is queued. To wait for its end: select tensile_wait({job});"
    fail = "state = 'failed', error_message = 'the rows are odd', finished_at = now()"
    admin.execute(f"update tensile.jobs set {fail} where job_id = {job}")
    assert detail() == f"Job {job}, its newest training, failed: the rows are odd."
    second = value(alice, "select tensile_train('new', 'iris', 'species')")
    alice.execute("select tensile_cancel(%s)", [second])
    assert detail() == f"Job {second}, its newest training, has ended: cancelled."


@pytest.mark.usefixtures("published")
def test_error_of_the_service_reaches_the_client_unchanged(alice: Connection, serve: Serve) -> None:
    error = {"sqlstate": "22023", "message": "100% wrong", "detail": "because", "hint": "mend it"}
    serve(lambda _: {"ok": False, "error": error})

    assert refused(alice, "select tensile_predict('flowers', 1)") == Refused(
        "22023", "100% wrong", "because", "mend it"
    )


@pytest.mark.usefixtures("published")
def test_training_info_lists_the_versions_of_a_model(alice: Connection) -> None:
    row = alice.execute(
        "select version, deployed, task::text, target, metric_name, metric from tensile_training_info('flowers')"
    ).fetchall()

    assert row == [(1, True, "classification", "species", "accuracy", 0.97)]


def test_hint_says_how_to_name_a_version_that_is_not_deployed(alice: Connection) -> None:
    alice.execute("select tensile_create_model('new')")

    assert "version => N" in (refused(alice, "select tensile_predict('new', 1)").hint or "")


@pytest.mark.shares_database
@pytest.mark.parametrize(
    ("argument", "sqlstate", "message"),
    [
        ("""'{"petal": NaN}'""", "22P02", "the row to predict is neither JSON nor an array of numbers"),
        (r"""'{"petal": "\ud800"}'""", "22P02", "the row to predict contains a text that is not valid Unicode"),
        ("repeat('[', 10000) || repeat(']', 10000)", "22P02", "the row to predict is neither JSON"),
    ],
)
@pytest.mark.usefixtures("published")
def test_value_that_no_model_can_read_is_refused(
    alice: Connection, serve: Serve, argument: str, sqlstate: str, message: str
) -> None:
    service = serve(echo)

    error = refused(alice, f"select tensile_predict('flowers', {argument})")

    assert (error.sqlstate, error.message[: len(message)]) == (sqlstate, message)
    assert service.requests == []


@pytest.mark.by_day("array_fill", "(select w from", "repeat('x', 9000000)-row")
@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("array_fill(0.5::float8, array[1000001])", "row 1 has 1000001 values, more than the 1000000"),
        ("(select a from wide)", "row 1 has 1200000 values, more than the 1000000"),
        ("(select w from wide as w)", "row 1 has 144000"),
        ("(select jsonb_build_object('a', repeat('x', 9000000)))", "row 1 has 90000"),
        ("(select j from packed)", "row 1 has 90000"),
        ("repeat('x', 9000000)", "row 1 has 9000000 bytes, more than the 8388608"),
    ],
)
@pytest.mark.usefixtures("published")
def test_too_large_row_is_refused_before_it_becomes_json(
    alice: Connection, serve: Serve, argument: str, message: str
) -> None:
    service = serve(echo)
    alice.execute("create table wide as select array_fill(0.5::float8, array[1200000]) as a")
    alice.execute("create table packed as select jsonb_build_object('a', repeat('x', 9000000)) as j")

    error = refused(alice, f"select tensile_predict('flowers', {argument})")

    assert (error.sqlstate, error.message[: len(message)]) == ("54000", message)
    assert (error.hint or "").endswith(("arrays of fewer values.", "array of fewer values."))
    assert service.requests == []


@pytest.mark.usefixtures("published")
def test_too_large_row_of_a_batch_or_an_evaluation_is_refused(alice: Connection, serve: Serve) -> None:
    service = serve(echo)
    alice.execute("create table wide as select 'setosa' as species, array_fill(0.5::float8, array[1200000]) as a")

    batch = refused(alice, "select tensile_predict_batch('flowers', array[null, w]) from wide as w")
    evaluation = refused(alice, "select tensile_evaluate('flowers', 'wide')")

    assert (batch.sqlstate, batch.message[:16]) == ("54000", "row 2 has 144000")
    assert (evaluation.sqlstate, evaluation.message[:31]) == ("54000", "row 1 of public.wide has 144000")
    assert service.requests == []


@pytest.mark.usefixtures("published")
def test_dropped_columns_are_not_sent(alice: Connection, serve: Serve) -> None:
    service = serve(echo)
    alice.execute("create table less as select 1 as a, 2 as b, 3 as c; alter table less drop column b")

    value(alice, "select tensile_predict('flowers', l) from less as l")
    value(alice, "select tensile_predict_batch('flowers', array_agg(l)) from less as l")

    assert [request["rows"] for request in service.requests] == [[{"a": 1, "c": 3}]] * 2


@pytest.mark.usefixtures("published")
def test_session_that_remembers_a_version_sees_every_change_of_it(
    alice: Connection, bob: Connection, admin: Connection, serve: Serve
) -> None:
    """The bridge keeps the version that it has found as long as snapshot and role stay the same."""
    service = serve(echo)
    predict = "select tensile_predict('flowers', 1)"
    assert [value(alice, predict), value(alice, predict)] == [0.5, 0.5]

    with alice.transaction(force_rollback=True):
        alice.execute("update tensile.model_versions set deployed = false")
        assert refused(alice, predict).message == 'model "flowers" has no deployed version'
    assert value(alice, predict) == 0.5  # the change was rolled back
    admin.execute("grant bob to alice")
    alice.execute("set role bob")
    assert refused(alice, predict).message == 'there is no model "flowers"'
    alice.execute("reset role; select tensile_grant_model('flowers', 'bob')")
    assert value(bob, predict) == 0.5
    alice.execute("select tensile_revoke_model('flowers', 'bob')")
    assert refused(bob, predict).message == 'there is no model "flowers"'
    admin.execute("update tensile.model_versions set deployed = false")
    assert refused(alice, predict).message == 'model "flowers" has no deployed version'
    assert len(service.requests) == 4


@pytest.mark.usefixtures("published")
def test_statement_that_predicts_a_thousand_rows_one_by_one_is_told_once_of_the_faster_function(
    alice: Connection, serve: Serve
) -> None:
    serve(echo)
    notices: list[str | None] = []
    alice.add_notice_handler(lambda notice: notices.append(notice.message_primary))

    for rows in (999, 2500):
        alice.execute("select tensile_predict('flowers', n) from generate_series(1, %s) as n", [rows])

    (notice,) = notices
    assert notice is not None
    assert "tensile_predict_table" in notice
