"""Check evaluations: the rows that reach the service, the metrics, and the refusals."""

import math
from typing import Any

import pytest

from .conftest import Connection, Refused, Serve, refused
from .fakes import echo, result

pytestmark = [pytest.mark.postgres, pytest.mark.clears_database]

Json = dict[str, Any]


@pytest.mark.usefixtures("published")
def test_evaluation_sends_the_rows_with_a_known_target(alice: Connection, serve: Serve) -> None:
    service = serve(lambda _: result({"metrics": {"accuracy": 0.5, "log_loss": math.nan}}))
    alice.execute("create temporary table part as select id, petal, nullif(species, 'setosa') as species from iris")

    metrics = alice.execute("select metric, value::text from tensile_evaluate('flowers', 'part')").fetchall()

    assert metrics == [("accuracy", "0.5"), ("log_loss", "NaN")]
    assert [row["id"] for row in service.requests[0]["rows"]] == list(range(1, 60, 2))


@pytest.mark.usefixtures("published")
def test_evaluation_without_a_relation_returns_the_metrics_of_the_held_out_rows(alice: Connection) -> None:
    assert alice.execute("select * from tensile_evaluate('flowers')").fetchall() == [
        ("accuracy", 0.97),
        ("log_loss", 0.1),
    ]


@pytest.mark.usefixtures("published")
def test_evaluation_reads_with_the_callers_rights(alice: Connection, bob: Connection, serve: Serve) -> None:
    serve(echo)
    alice.execute("select tensile_grant_model('flowers', 'bob')")

    error = refused(bob, "select * from tensile_evaluate('flowers', 'iris')")

    assert (error.sqlstate, error.message) == ("42501", "permission denied for table iris")


@pytest.mark.usefixtures("published")
def test_evaluation_of_a_relation_without_the_target_names_the_target(alice: Connection) -> None:
    alice.execute("create table other (a int, b int)")

    assert refused(alice, "select * from tensile_evaluate('flowers', 'other')") == Refused(
        "42703",
        'public.other has no column "species", which model "flowers" predicts',
        None,
        "Evaluate on a relation that has it. The columns of public.other are a, b.",
    )


@pytest.mark.usefixtures("published")
def test_evaluation_of_a_relation_without_a_feature_names_the_feature(alice: Connection, serve: Serve) -> None:
    def without_petal(request: Json) -> Json:
        if request["verb"] == "features":
            return result({"features": [{"name": "petal", "kind": "number"}]})
        return {"ok": False, "error": {"sqlstate": "22023", "message": "the row has no column petal"}, "row": 0}

    serve(without_petal)
    alice.execute("create table other as select id, species from iris")

    assert refused(alice, "select * from tensile_evaluate('flowers', 'other')") == Refused(
        "42703",
        'relation public.other has no column "petal", which model "flowers" needs',
        None,
        "Name a relation that has it. The columns of public.other are id, species.",
    )


@pytest.mark.usefixtures("published")
def test_long_evaluation_is_sent_in_parts(alice: Connection, serve: Serve) -> None:
    def evaluate(request: Json) -> Json:
        return result({"metrics": {"accuracy": 0.5}} if request["last"] else {"rows": 0})

    service = serve(evaluate)
    alice.execute(
        """create table long as select n as id, repeat('x', 1000) as petal, 'setosa' as species
             from generate_series(1, 3000) as n"""
    )

    assert alice.execute("select * from tensile_evaluate('flowers', 'long')").fetchall() == [("accuracy", 0.5)]

    requests = service.requests
    assert [row["id"] for request in requests for row in request["rows"]] == list(range(1, 3001))
    assert [(request["part"], request["last"]) for request in requests] == [
        (0, False),
        (1, False),
        (2, True),
    ]
    assert len({request["evaluation"] for request in requests}) == 1


@pytest.mark.usefixtures("published")
def test_evaluation_without_rows_is_refused_with_a_hint(alice: Connection, admin: Connection, serve: Serve) -> None:
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
