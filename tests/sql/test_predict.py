"""Predictions and evaluations: what reaches the service, and what comes back as SQL's types."""

import math
from typing import Any

import pytest

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
        ("row(1.5, 'x')", "", [1.5, "x"]),
        ("3", "", 3),
        ("'[1, 2]'", "", [1, 2]),
        ("(select x from (select petal, sepal from iris where id = 1) as x)", "", {"petal": 1, "sepal": 1}),
    ],
)
@pytest.mark.usefixtures("published")
def test_any_form_of_a_row_arrives(alice: Connection, serve: Serve, argument: str, source: str, sent: Any) -> None:
    service = serve(echo)

    assert value(alice, f"select tensile_predict('flowers', {argument}) {source}") == 0.5
    assert service.requests == [{"verb": "predict", "version": 700, "rows": [sent], "kind": "value"}]


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
        'other has no column "species", which model "flowers" predicts',
        None,
        "Evaluate on a relation that has it. The columns of other are a, b.",
    )


def test_a_version_that_is_not_deployed_can_be_named(alice: Connection) -> None:
    alice.execute("select tensile_create_model('new')")

    assert "version => N" in (refused(alice, "select tensile_predict('new', 1)").hint or "")
