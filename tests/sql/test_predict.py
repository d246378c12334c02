"""Predictions and evaluations: what reaches the service, and what comes back as SQL's types."""

import math
from typing import Any

import pytest

from tests.conftest import Database

from .conftest import Connection, Refused, Serve, refused, value
from .fakes import result

pytestmark = pytest.mark.postgres

Json = dict[str, Any]


def echo(request: Json) -> Json:
    """Answer each row with its place."""
    if request["verb"] == "ping":
        return result({"version": "0"})
    return result({"values": [place + 0.5 for place, _ in enumerate(request["rows"])]})


ROWS = [
    ("i", "from iris as i where id = 1"),
    ("(select j from iris as j where j.id = 1)", ""),
    ("to_jsonb(i)", "from iris as i where id = 1"),
]
ROW = {"id": 1, "petal": 1, "sepal": 1, "species": "virginica", "kind": 1, "label_known": False}


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
def test_any_form_of_a_row_arrives(alice: Connection, serve: Serve, argument: str, source: str, sent: Any) -> None:
    service = serve(echo)

    assert value(alice, f"select tensile_predict('flowers', {argument}) {source}") == 0.5
    assert service.requests == [{"verb": "predict", "version": 700, "rows": [sent], "kind": "value"}]


@pytest.mark.parametrize(
    ("argument", "sent"),
    [
        ("row(1.5, 'x')", {"f1": 1.5, "f2": "x"}),
        ("row(array[[1, 2], [3, 4]])", {"f1": [[1, 2], [3, 4]]}),
        ("(select x from (select petal, sepal from iris where id = 1) as x)", {"petal": 1, "sepal": 1}),
    ],
)
@pytest.mark.usefixtures("published")
def test_a_record_is_told_from_an_object_with_such_names(
    alice: Connection, serve: Serve, argument: str, sent: Json
) -> None:
    service = serve(echo)

    assert value(alice, f"select tensile_predict('flowers', {argument})") == 0.5
    assert service.requests == [{"verb": "predict", "version": 700, "rows": [sent], "kind": "value", "unnamed": True}]


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
def test_a_bare_value_is_the_row_of_a_model_of_one_feature(
    alice: Connection, serve: Serve, argument: str, sent: Any
) -> None:
    service = serve(echo)
    alice.execute("create type mood as enum ('sad', 'glad'); create domain feeling as text")

    assert value(alice, f"select tensile_predict('flowers', {argument})") == 0.5
    assert value(alice, f"select tensile_predict_batch('flowers', array[{argument}])") == [0.5]
    assert [request["rows"] for request in service.requests] == [[sent], [sent]]


@pytest.mark.usefixtures("published")
def test_a_driver_may_send_a_row_as_a_parameter(alice: Connection, serve: Serve) -> None:
    service = serve(echo)

    found = value(alice, "select tensile_predict(%s, %s, version => %s)", "flowers", '{"petal": 3}', None)

    assert (found, service.requests[0]["rows"]) == (0.5, [{"petal": 3}])


@pytest.mark.usefixtures("published")
def test_null_is_predicted_as_null_without_asking(alice: Connection, serve: Serve) -> None:
    service = serve(echo)

    assert value(alice, "select tensile_predict('flowers', null)") is None
    assert value(alice, "select tensile_predict('flowers', (select i from iris as i where false))") is None
    assert service.requests == []


@pytest.mark.usefixtures("published")
def test_a_literal_that_is_no_row_is_refused(alice: Connection, serve: Serve) -> None:
    serve(echo)

    error = refused(alice, "select tensile_predict('flowers', 'petal')")

    assert (error.sqlstate, error.message) == (
        "22P02",
        'the row to predict is neither JSON nor an array of numbers: "petal"',
    )


@pytest.mark.usefixtures("published")
def test_each_kind_of_prediction_has_its_own_type(alice: Connection, serve: Serve) -> None:
    answers: dict[str, Any] = {
        "value": math.inf,
        "label": "setosa",
        "proba": {"setosa": 0.75, "virginica": 0.25},
        "vector": [1.5, math.nan],
    }
    serve(lambda request: result({"values": [answers[request["kind"]]]}))

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
def test_a_batch_is_one_request(alice: Connection, serve: Serve) -> None:
    service = serve(echo)

    found = value(
        alice, "select tensile_predict_batch('flowers', array_agg(i order by id)) from iris as i where id < 4"
    )

    assert found == [0.5, 1.5, 2.5]
    assert [row["id"] for row in service.requests[0]["rows"]] == [1, 2, 3]


@pytest.mark.usefixtures("published")
def test_the_caller_sees_its_own_uncommitted_rows(alice: Connection, serve: Serve) -> None:
    service = serve(echo)
    alice.autocommit = False
    alice.execute("update iris set petal = 99 where id = 1")

    alice.execute("select tensile_predict('flowers', i) from iris as i where id = 1")
    alice.rollback()

    assert service.requests[0]["rows"][0]["petal"] == 99


@pytest.mark.usefixtures("published")
def test_a_parallel_plan_does_not_reach_the_bridge(alice: Connection, serve: Serve) -> None:
    serve(echo)
    alice.execute(
        """set parallel_setup_cost = 0; set parallel_tuple_cost = 0; set min_parallel_table_scan_size = 0;
           set force_parallel_mode = on"""
    )
    plan = "\n".join(
        line for (line,) in alice.execute("explain select count(*) from iris where petal > 1").fetchall()
    )

    found = value(alice, "select sum(tensile_predict('flowers', i)) from iris as i")

    assert "Workers Planned" in plan  # else the settings force nothing
    assert found == 30.0
    assert value(alice, "select tensile_predict('flowers', 1)") == 0.5


@pytest.mark.usefixtures("published")
def test_no_prediction_is_parallel_safe_or_immutable(admin: Connection) -> None:
    found = admin.execute(
        "select proname, provolatile::text, proparallel::text from pg_proc where proname like 'tensile_predict%'"
    ).fetchall()

    assert {(volatile, parallel) for _, volatile, parallel in found} == {("s", "u")}
    assert len(found) == 5


@pytest.mark.usefixtures("published")
def test_a_missing_version_is_named(alice: Connection, serve: Serve) -> None:
    serve(echo)

    assert refused(alice, "select tensile_predict('flowers', 1, version => 2)") == Refused(
        "42704",
        'model "flowers" has no version 2',
        None,
        "See its versions: select * from tensile_training_info('flowers').",
    )
    assert value(alice, "select tensile_predict('flowers', 1, version => 1)") == 0.5


def test_a_model_without_a_version_says_so(alice: Connection) -> None:
    alice.execute("select tensile_create_model('new')")

    error = refused(alice, "select tensile_predict('new', 1)")

    assert (error.sqlstate, error.message) == ("55000", 'model "new" has no deployed version')


@pytest.mark.usefixtures("published")
def test_what_the_service_refuses_arrives_whole(alice: Connection, serve: Serve) -> None:
    error = {"sqlstate": "22023", "message": "100% wrong", "detail": "because", "hint": "mend it"}
    serve(lambda _: {"ok": False, "error": error})

    assert refused(alice, "select tensile_predict('flowers', 1)") == Refused(
        "22023", "100% wrong", "because", "mend it"
    )


@pytest.mark.usefixtures("published")
def test_an_evaluation_sends_the_rows_whose_target_is_known(alice: Connection, serve: Serve) -> None:
    service = serve(lambda _: result({"metrics": {"accuracy": 0.5, "log_loss": math.nan}}))
    alice.execute("create temporary table part as select id, petal, nullif(species, 'setosa') as species from iris")

    found = alice.execute("select metric, value::text from tensile_evaluate('flowers', 'part')").fetchall()

    assert found == [("accuracy", "0.5"), ("log_loss", "NaN")]
    assert [row["id"] for row in service.requests[0]["rows"]] == list(range(1, 60, 2))


@pytest.mark.usefixtures("published")
def test_an_evaluation_without_a_relation_is_that_of_the_held_out_rows(alice: Connection) -> None:
    assert alice.execute("select * from tensile_evaluate('flowers')").fetchall() == [
        ("accuracy", 0.97),
        ("log_loss", 0.1),
    ]


@pytest.mark.usefixtures("published")
def test_an_evaluation_reads_as_the_caller(alice: Connection, bob: Connection, serve: Serve) -> None:
    serve(echo)
    alice.execute("select tensile_grant_model('flowers', 'bob')")

    error = refused(bob, "select * from tensile_evaluate('flowers', 'iris')")

    assert (error.sqlstate, error.message) == ("42501", "permission denied for table iris")


@pytest.mark.usefixtures("published")
def test_the_versions_of_a_model_are_listed(alice: Connection) -> None:
    row = alice.execute(
        "select version, deployed, task::text, target, metric_name, metric from tensile_training_info('flowers')"
    ).fetchall()

    assert row == [(1, True, "classification", "species", "accuracy", 0.97)]


@pytest.mark.usefixtures("published")
def test_a_relation_without_the_target_is_told_what_the_model_predicts(alice: Connection) -> None:
    alice.execute("create table other (a int, b int)")

    assert refused(alice, "select * from tensile_evaluate('flowers', 'other')") == Refused(
        "42703",
        'public.other has no column "species", which model "flowers" predicts',
        None,
        "Evaluate on a relation that has it. The columns of public.other are a, b.",
    )


def test_a_version_that_is_not_deployed_can_be_named(alice: Connection) -> None:
    alice.execute("select tensile_create_model('new')")

    assert "version => N" in (refused(alice, "select tensile_predict('new', 1)").hint or "")


@pytest.mark.parametrize(
    ("argument", "sqlstate", "said"),
    [
        ("""'{"petal": NaN}'""", "22P02", "the row to predict is neither JSON nor an array of numbers"),
        (r"""'{"petal": "\ud800"}'""", "22P02", "the row to predict contains a text that is not valid Unicode"),
        ("repeat('[', 10000) || repeat(']', 10000)", "22P02", "the row to predict is neither JSON"),
    ],
)
@pytest.mark.usefixtures("published")
def test_a_value_that_no_model_can_read_is_refused(
    alice: Connection, serve: Serve, argument: str, sqlstate: str, said: str
) -> None:
    service = serve(echo)

    error = refused(alice, f"select tensile_predict('flowers', {argument})")

    assert (error.sqlstate, error.message[: len(said)]) == (sqlstate, said)
    assert service.requests == []


@pytest.mark.parametrize(
    ("argument", "said"),
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
def test_a_row_is_measured_before_it_becomes_json(alice: Connection, serve: Serve, argument: str, said: str) -> None:
    service = serve(echo)
    alice.execute("create table wide as select array_fill(0.5::float8, array[1200000]) as a")
    alice.execute("create table packed as select jsonb_build_object('a', repeat('x', 9000000)) as j")

    error = refused(alice, f"select tensile_predict('flowers', {argument})")

    assert (error.sqlstate, error.message[: len(said)]) == ("54000", said)
    assert (error.hint or "").endswith(("arrays of fewer values.", "array of fewer values."))
    assert service.requests == []


@pytest.mark.usefixtures("published")
def test_a_row_of_a_batch_or_an_evaluation_is_measured_too(alice: Connection, serve: Serve) -> None:
    service = serve(echo)
    alice.execute("create table wide as select 'setosa' as species, array_fill(0.5::float8, array[1200000]) as a")

    batch = refused(alice, "select tensile_predict_batch('flowers', array[null, w]) from wide as w")
    evaluation = refused(alice, "select tensile_evaluate('flowers', 'wide')")

    assert (batch.sqlstate, batch.message[:16]) == ("54000", "row 2 has 144000")
    assert (evaluation.sqlstate, evaluation.message[:31]) == ("54000", "row 1 of public.wide has 144000")
    assert service.requests == []


@pytest.mark.usefixtures("published")
def test_a_batch_of_nothing_is_nothing_and_of_null_is_null(alice: Connection, serve: Serve) -> None:
    service = serve(echo)

    assert value(alice, "select tensile_predict_batch('flowers', '{}'::jsonb[])") == []
    assert value(alice, "select tensile_predict_batch('flowers', array_agg(i)) from iris as i where false") is None
    assert value(alice, "select tensile_predict_batch('flowers', null)") is None
    assert value(alice, "select tensile_predict_batch('flowers', array[null::iris])") == [None]
    assert service.requests == []
    for inputs in ("null", "'{}'::int[]"):
        error = refused(alice, f"select tensile_predict_batch('flours', {inputs})")
        assert (error.sqlstate, error.message) == ("42704", 'there is no model "flours"')


@pytest.mark.parametrize(
    ("inputs", "sent"),
    [
        (
            "(select array_agg(x) from (select petal, sepal from iris where id < 3 order by id) as x)",
            [{"petal": 1, "sepal": 1}, {"petal": 2, "sepal": 2}],
        ),
        ("array[row(1, 'a'), row(2, 'b')]", [{"f1": 1, "f2": "a"}, {"f1": 2, "f2": "b"}]),
        ("array[row(row(1), array[2]), null]", [{"f1": {"f1": 1}, "f2": [2]}]),
        ("array(select jsonb_build_object('a', n) from generate_series(1, 2) as n)", [{"a": 1}, {"a": 2}]),
        ("array['{1,2}', '[3]', '{\"a\": 4}']", [[1, 2], [3], {"a": 4}]),
        ("array[[1, 2], [3, 4]]", [[1, 2], [3, 4]]),
        ("'[0:1]={5,6}'::float8[]", [5, 6]),
        ("array['sad', 'glad']::mood[]", ["sad", "glad"]),
        ("array[(1, 2)::pair, null, (3, null)::pair]", [{"a": 1, "b": 2}, {"a": 3, "b": None}]),
        ("array[row(), row()]", [{}, {}]),
        ("array[date 'infinity', null, date '2020-01-01']", ["infinity", "2020-01-01"]),
    ],
)
@pytest.mark.usefixtures("published")
def test_a_batch_takes_arrays_of_every_type_in_one_session(
    alice: Connection, serve: Serve, inputs: str, sent: list[Any]
) -> None:
    service = serve(lambda request: result({"values": [7.0] * len(request["rows"])}))
    alice.execute("create type mood as enum ('sad', 'glad'); create type pair as (a int, b int)")
    value(alice, "select tensile_predict_batch('flowers', array[1, 2])")
    value(alice, "select tensile_predict_batch('flowers', array['1', '2'])")

    found = value(alice, f"select tensile_predict_batch('flowers', {inputs})")

    assert [row for request in service.requests[2:] for row in request["rows"]] == sent
    assert [said for said in found if said is not None] == [7.0] * len(sent)


@pytest.mark.usefixtures("published")
def test_a_batch_of_many_records_keeps_their_order_and_its_rows_their_numbers(
    alice: Connection, admin: Connection, serve: Serve
) -> None:
    def deploy_another(request: Json) -> Json:
        admin.execute("update tensile.model_versions set deployed = false")
        if (row := next((row for row in request["rows"] if row["n"] == 69_999), None)) is not None:
            told = {"sqlstate": "22000", "message": "no", "detail": "", "hint": "", "row": request["rows"].index(row)}
            return {"ok": False, "error": told}
        return result({"values": [float(row["n"]) for row in request["rows"]]})

    service = serve(deploy_another)
    many = """select tensile_predict_batch('flowers', array_agg(x))
                from (select n, 'x' from generate_series(1, {}) as n) as x"""

    assert value(alice, many.format(65_000)) == [float(n) for n in range(1, 65_001)]
    assert max(len(request["rows"]) for request in service.requests) == 4096
    admin.execute("update tensile.model_versions set deployed = true")
    assert refused(alice, many.format(70_000)).message == "row 69999: no"


@pytest.mark.parametrize(
    ("inputs", "sent"),
    [
        ("array[[1, 2], [3, 4], [5, 6]]", [[1, 2], [3, 4], [5, 6]]),
        ("array[1, null, 3]", [1, 3]),
        ("""array['{"a": 1}', '{"a": 2}']::jsonb[]""", [{"a": 1}, {"a": 2}]),
        ("'{}'::int[]", []),
    ],
)
@pytest.mark.usefixtures("published")
def test_any_list_of_rows_is_a_batch(alice: Connection, serve: Serve, inputs: str, sent: list[Any]) -> None:
    service = serve(lambda request: result({"values": [7.0] * len(request["rows"])}))

    found = value(alice, f"select tensile_predict_batch('flowers', {inputs})")

    assert [row for request in service.requests for row in request["rows"]] == sent
    assert [said for said in found if said is not None] == [7.0] * len(sent)


@pytest.mark.usefixtures("published")
def test_a_long_batch_goes_in_parts_of_one_version(alice: Connection, admin: Connection, serve: Serve) -> None:
    def deploy_another(request: Json) -> Json:
        admin.execute("update tensile.model_versions set deployed = false")
        return result({"values": [float(row["n"]) for row in request["rows"]]})

    service = serve(deploy_another)

    found = value(
        alice,
        "select tensile_predict_batch('flowers', array_agg(jsonb_build_object('n', n))) "
        "from generate_series(1, 10000) as n",
    )

    assert found == [float(n) for n in range(1, 10_001)]
    assert [len(request["rows"]) for request in service.requests] == [4096, 4096, 1808]
    assert {request["version"] for request in service.requests} == {700}


@pytest.mark.usefixtures("published")
def test_a_refused_row_is_told_by_its_number_in_the_whole_batch(alice: Connection, serve: Serve) -> None:
    def refuse(request: Json) -> Json:
        numbers = [row["n"] for row in request["rows"]]
        if 5000 in numbers:
            told = {
                "sqlstate": "22000",
                "message": 'column "n": no',
                "detail": "",
                "hint": "",
                "row": numbers.index(5000),
            }
            return {"ok": False, "error": told}
        return result({"values": [1.0] * len(numbers)})

    serve(refuse)

    error = refused(
        alice,
        "select tensile_predict_batch('flowers', array_agg(jsonb_build_object('n', n))) "
        "from generate_series(1, 6000) as n",
    )

    assert (error.sqlstate, error.message) == ("22000", 'row 5000: column "n": no')


@pytest.mark.usefixtures("published")
def test_an_evaluation_goes_in_parts(alice: Connection, serve: Serve) -> None:
    def evaluate(request: Json) -> Json:
        return result({"metrics": {"accuracy": 0.5}} if request["last"] else {"rows": 0})

    service = serve(evaluate)
    alice.execute(
        """create table long as select n as id, repeat('x', 1000) as petal, 'setosa' as species
             from generate_series(1, 3000) as n"""
    )

    assert alice.execute("select * from tensile_evaluate('flowers', 'long')").fetchall() == [("accuracy", 0.5)]

    asked = service.requests
    assert [row["id"] for request in asked for row in request["rows"]] == list(range(1, 3001))
    assert [(request["part"], request["last"]) for request in asked] == [
        (0, False),
        (1, False),
        (2, True),
    ]
    assert len({request["evaluation"] for request in asked}) == 1


@pytest.mark.usefixtures("published")
def test_a_batch_and_an_evaluation_end_at_a_timeout_between_their_parts(alice: Connection, serve: Serve) -> None:
    answered: list[Json] = []

    def fall_silent(request: Json) -> Json | None:
        if answered and answered[-1]["verb"] == request["verb"]:
            return None
        answered.append(request)
        return result({"values": [1.0] * len(request["rows"]), "rows": 0})

    serve(fall_silent)
    alice.execute(
        """create table long as select n as id, repeat('x', 1000) as petal, 'setosa' as species
             from generate_series(1, 3000) as n;
           set statement_timeout = '3s'"""
    )

    for asked in (
        "select tensile_predict_batch('flowers', array_agg(x)) from (select * from long) as x",
        "select * from tensile_evaluate('flowers', 'long')",
    ):
        assert refused(alice, asked).sqlstate == "57014"
    assert [request["verb"] for request in answered] == ["predict", "evaluate"]


@pytest.mark.usefixtures("published")
def test_a_model_that_is_dropped_between_two_parts_is_told_as_such(
    alice: Connection, database: Database, serve: Serve
) -> None:
    def drop(request: Json) -> Json:
        with database.connect("alice") as another:
            another.execute("select tensile_drop_model('flowers')")
        return result({"values": [1.0] * len(request["rows"])})

    serve(drop)

    error = refused(
        alice,
        "select tensile_predict_batch('flowers', array_agg(x)) from (select n from generate_series(1, 9999) n) x",
    )
    assert (error.sqlstate, error.message) == ("42704", 'there is no model "flowers"')


@pytest.mark.usefixtures("published")
def test_columns_that_a_role_may_read_are_enough(alice: Connection, bob: Connection, serve: Serve) -> None:
    service = serve(echo)
    alice.execute("select tensile_grant_model('flowers', 'bob'); grant select (id, petal) on iris to bob")

    found = value(
        bob,
        """select tensile_predict_batch('flowers', array_agg(x))
             from (select petal from iris where id < 3 order by id) as x""",
    )

    assert found == [0.5, 1.5]
    assert service.requests[0]["rows"] == [{"petal": 1}, {"petal": 2}]
    denied = refused(bob, "select tensile_predict_batch('flowers', array_agg(i)) from iris as i")
    assert denied.sqlstate == "42501"


@pytest.mark.usefixtures("published")
def test_an_evaluation_of_nothing_names_the_argument(alice: Connection, admin: Connection, serve: Serve) -> None:
    serve(echo)
    alice.execute("create table unknown as select petal, null::text as species from iris")

    error = refused(alice, "select * from tensile_evaluate('flowers', 'unknown')")
    assert (error.sqlstate, error.message) == (
        "22000",
        'relation public.unknown has no row to evaluate on: none whose target "species" is known',
    )
    assert "relation => '...'" in (error.hint or "")
    admin.execute("update tensile.model_versions set metrics = '{}'")
    error = refused(alice, "select * from tensile_evaluate('flowers')")
    assert (error.sqlstate, error.message) == (
        "55000",
        'version 1 of model "flowers" has no metrics: no rows were held out of its training',
    )
    assert "relation => 'table'" in (error.hint or "")


@pytest.mark.usefixtures("published")
def test_dropped_columns_are_not_sent(alice: Connection, serve: Serve) -> None:
    service = serve(echo)
    alice.execute("create table less as select 1 as a, 2 as b, 3 as c; alter table less drop column b")

    value(alice, "select tensile_predict('flowers', l) from less as l")
    value(alice, "select tensile_predict_batch('flowers', array_agg(l)) from less as l")

    assert [request["rows"] for request in service.requests] == [[{"a": 1, "c": 3}]] * 2
