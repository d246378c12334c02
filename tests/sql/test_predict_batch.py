"""Check predictions of batches: the requests, their parts, and the numbers of refused rows."""

from typing import Any

import pytest

from tests.conftest import Database

from .conftest import Connection, Serve, refused, value
from .fakes import echo, result

pytestmark = [pytest.mark.postgres, pytest.mark.clears_database]

Json = dict[str, Any]


@pytest.mark.usefixtures("published")
def test_batch_is_one_request(alice: Connection, serve: Serve) -> None:
    service = serve(echo)

    predictions = value(
        alice, "select tensile_predict_batch('flowers', array_agg(i order by id)) from iris as i where id < 4"
    )

    assert predictions == [0.5, 1.5, 2.5]
    assert [row["id"] for row in service.requests[0]["rows"]] == [1, 2, 3]


@pytest.mark.usefixtures("published")
def test_batch_of_no_rows_is_empty_and_batch_of_null_is_null(alice: Connection, serve: Serve) -> None:
    service = serve(echo)

    assert value(alice, "select tensile_predict_batch('flowers', '{}'::jsonb[])") == []
    assert value(alice, "select tensile_predict_batch('flowers', array_agg(i)) from iris as i where false") is None
    assert value(alice, "select tensile_predict_batch('flowers', null)") is None
    assert value(alice, "select tensile_predict_batch('flowers', array[null::iris])") == [None]
    assert service.requests == []
    for inputs in ("null", "'{}'::int[]"):
        error = refused(alice, f"select tensile_predict_batch('flours', {inputs})")
        assert (error.sqlstate, error.message) == ("42704", 'there is no model "flours"')


@pytest.mark.by_day("sent0", "sent2", "sent6", "sent7", "infinity")
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
def test_batch_accepts_arrays_of_every_type_in_one_session(
    alice: Connection, serve: Serve, inputs: str, sent: list[Any]
) -> None:
    service = serve(lambda request: result({"values": [7.0] * len(request["rows"])}))
    alice.execute("create type mood as enum ('sad', 'glad'); create type pair as (a int, b int)")
    value(alice, "select tensile_predict_batch('flowers', array[1, 2])")
    value(alice, "select tensile_predict_batch('flowers', array['1', '2'])")

    predictions = value(alice, f"select tensile_predict_batch('flowers', {inputs})")

    assert [row for request in service.requests[2:] for row in request["rows"]] == sent
    assert [prediction for prediction in predictions if prediction is not None] == [7.0] * len(sent)


@pytest.mark.usefixtures("published")
def test_batch_of_many_records_keeps_the_order_and_the_row_numbers(
    alice: Connection, admin: Connection, serve: Serve
) -> None:
    def deploy_another(request: Json) -> Json:
        admin.execute("update tensile.model_versions set deployed = false")
        if (row := next((row for row in request["rows"] if row["n"] == 69_999), None)) is not None:
            error_fields = {
                "sqlstate": "22000",
                "message": "no",
                "detail": "",
                "hint": "",
                "row": request["rows"].index(row),
            }
            return {"ok": False, "error": error_fields}
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
def test_batch_accepts_any_list_of_rows(alice: Connection, serve: Serve, inputs: str, sent: list[Any]) -> None:
    service = serve(lambda request: result({"values": [7.0] * len(request["rows"])}))

    predictions = value(alice, f"select tensile_predict_batch('flowers', {inputs})")

    assert [row for request in service.requests for row in request["rows"]] == sent
    assert [prediction for prediction in predictions if prediction is not None] == [7.0] * len(sent)


@pytest.mark.usefixtures("published")
def test_long_batch_is_sent_in_parts_to_one_version(alice: Connection, admin: Connection, serve: Serve) -> None:
    def deploy_another(request: Json) -> Json:
        admin.execute("update tensile.model_versions set deployed = false")
        return result({"values": [float(row["n"]) for row in request["rows"]]})

    service = serve(deploy_another)

    predictions = value(
        alice,
        "select tensile_predict_batch('flowers', array_agg(jsonb_build_object('n', n))) "
        "from generate_series(1, 10000) as n",
    )

    assert predictions == [float(n) for n in range(1, 10_001)]
    assert [len(request["rows"]) for request in service.requests] == [4096, 4096, 1808]
    assert {request["version"] for request in service.requests} == {700}


@pytest.mark.usefixtures("published")
def test_error_names_the_rows_number_in_the_whole_batch(alice: Connection, serve: Serve) -> None:
    def refuse(request: Json) -> Json:
        numbers = [row["n"] for row in request["rows"]]
        if 5000 in numbers:
            error_fields = {
                "sqlstate": "22000",
                "message": 'column "n": no',
                "detail": "",
                "hint": "",
                "row": numbers.index(5000),
            }
            return {"ok": False, "error": error_fields}
        return result({"values": [1.0] * len(numbers)})

    serve(refuse)

    error = refused(
        alice,
        "select tensile_predict_batch('flowers', array_agg(jsonb_build_object('n', n))) "
        "from generate_series(1, 6000) as n",
    )

    assert (error.sqlstate, error.message) == ("22000", 'row 5000: column "n": no')


@pytest.mark.nightly
@pytest.mark.usefixtures("published")
def test_statement_timeout_ends_a_batch_and_an_evaluation_between_parts(alice: Connection, serve: Serve) -> None:
    answers: list[Json] = []

    def fall_silent(request: Json) -> Json | None:
        if answers and answers[-1]["verb"] == request["verb"]:
            return None
        answers.append(request)
        return result({"values": [1.0] * len(request["rows"]), "rows": 0})

    serve(fall_silent)
    alice.execute(
        """create table long as select n as id, repeat('x', 1000) as petal, 'setosa' as species
             from generate_series(1, 3000) as n"""
    )

    for verb, statement in (
        ("predict", "select tensile_predict_batch('flowers', array_agg(x)) from (select * from long) as x"),
        ("evaluate", "select * from tensile_evaluate('flowers', 'long')"),
    ):
        # Until the machine answers the first part within the time, give it more.
        for limit_s in (3, 10, 30, 100):
            alice.execute(f"set statement_timeout = '{limit_s}s'".encode())
            assert refused(alice, statement).sqlstate == "57014"
            if answers and answers[-1]["verb"] == verb:
                break
    assert [request["verb"] for request in answers] == ["predict", "evaluate"]


@pytest.mark.usefixtures("published")
def test_model_dropped_between_two_parts_is_reported(alice: Connection, database: Database, serve: Serve) -> None:
    def drop(request: Json) -> Json:
        with database.connect("alice") as other_session:
            other_session.execute("select tensile_drop_model('flowers')")
        return result({"values": [1.0] * len(request["rows"])})

    serve(drop)

    error = refused(
        alice,
        "select tensile_predict_batch('flowers', array_agg(x)) from (select n from generate_series(1, 9999) n) x",
    )
    assert (error.sqlstate, error.message) == ("42704", 'there is no model "flowers"')


@pytest.mark.usefixtures("published")
def test_batch_needs_only_the_columns_that_it_reads(alice: Connection, bob: Connection, serve: Serve) -> None:
    service = serve(echo)
    alice.execute("select tensile_grant_model('flowers', 'bob'); grant select (id, petal) on iris to bob")

    predictions = value(
        bob,
        """select tensile_predict_batch('flowers', array_agg(x))
             from (select petal from iris where id < 3 order by id) as x""",
    )

    assert predictions == [0.5, 1.5]
    assert service.requests[0]["rows"] == [{"petal": 1}, {"petal": 2}]
    denied = refused(bob, "select tensile_predict_batch('flowers', array_agg(i)) from iris as i")
    assert denied.sqlstate == "42501"
