"""Check the drift of inputs: the index and its reading, who sees it, when predictions are counted, and refusals."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import psycopg
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from psycopg.types.json import Jsonb

from indb_tensile.catalog.drift import InputAmounts, add_inputs
from indb_tensile.job import ModelVersionId
from tests.conftest import Database
from tests.docs.pages import ROOT, Page

from .conftest import Connection, Refused, Serve, refused, value
from .fakes import echo

pytestmark = [pytest.mark.postgres, pytest.mark.clears_database]

COUNTS = {
    "format": 1,
    "rows": 1000,
    "inputs": [
        {"feature": "petal", "measure": "number", "counts": [500, 500, 0]},
        {"feature": "photo", "reason": "columns of images are not measured"},
        {"feature": "city", "measure": "category", "counts": [900, 60, 40]},
    ],
}
BINS = {
    "format": 1,
    "inputs": [
        {"feature": "petal", "measure": "number", "edges": [3.0], "below": False, "ends": ["3"]},
        {"feature": "city", "measure": "category", "categories": ["Bern"]},
    ],
}


@pytest.fixture
def binned(published: int, admin: Connection) -> ModelVersionId:
    """A version with stored bins, whose drift is not measured."""
    for name, figure in (("input_counts", COUNTS), ("input_bins", BINS)):
        statement = "insert into tensile.version_figures (version_id, name, figure) values (%s, %s, %s)"
        admin.execute(statement, (published, name, Jsonb(figure)))
    return ModelVersionId(published)


def stability(expected: Sequence[int], actual: Sequence[int]) -> float | None:
    """Return the population stability index, computed with numpy."""
    if not sum(expected) or not sum(actual):
        return None
    used = np.array([pair for pair in zip(expected, actual, strict=True) if sum(pair)], np.float64) + 0.5
    shares = used / used.sum(axis=0)
    return float(((shares[:, 1] - shares[:, 0]) * np.log(shares[:, 1] / shares[:, 0])).sum())


pairs = st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), max_size=12)


@pytest.mark.shares_database
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(pairs)
@example([])
@example([(5, 0), (0, 5)])
@example([(0, 0), (3, 3)])
@example([(2, 0)])
def test_index_is_that_of_an_independent_computation(alice: Connection, counts: list[tuple[int, int]]) -> None:
    expected, actual = [own for own, _ in counts], [own for _, own in counts]
    index = "select tensile.population_stability(%s::bigint[], %s::bigint[])"
    computed = value(alice, index, expected, actual)

    assert computed == (None if stability(expected, actual) is None else pytest.approx(stability(expected, actual)))
    mirrored = value(alice, index, actual, expected)
    assert mirrored == (None if computed is None else pytest.approx(computed)), "the order does not matter"
    if computed is not None:
        assert math.isfinite(computed)
        assert computed >= 0
        assert value(alice, index, expected, expected) == 0


@pytest.mark.shares_database
def test_index_of_chance_is_what_samples_of_one_distribution_have_on_average(alice: Connection) -> None:
    random = np.random.default_rng(1)
    shares = [0.1] * 10
    training, predicted = random.multinomial(2000, shares), random.multinomial(300, shares, size=400)
    rows = [list(map(int, own)) for own in predicted]
    mean = float(np.mean([stability(training.tolist(), own) for own in rows]))

    chance = value(
        alice, "select tensile.drift_of_chance(%s::bigint[], %s::bigint[])", list(map(int, training)), rows[0]
    )
    assert chance == pytest.approx(9 * (1 / 2000 + 1 / 300))
    assert mean == pytest.approx(chance, rel=0.25)


@pytest.mark.shares_database
@pytest.mark.parametrize(
    ("psi", "chance", "reading"),
    [
        (0.09, 0.01, "stable"),
        (0.1, 0.01, "moderate"),
        (0.25, 0.01, "large"),
        (9.0, 0.1, "too few rows"),
        (None, None, "too few rows"),
    ],
)
def test_reading_says_what_the_index_means(
    alice: Connection, psi: float | None, chance: float | None, reading: str
) -> None:
    assert value(alice, "select tensile.drift_reading(%s, %s)", psi, chance) == reading


@pytest.mark.shares_database
@pytest.mark.parametrize(
    ("bins", "labels"),
    [
        ({"ends": []}, ["any", "missing"]),
        ({"ends": ["3"], "below": False}, ["up to 3", "above 3", "missing"]),
        ({"ends": ["0", "5"], "below": True}, ["below 0", "0", "above 0 to 5", "above 5", "missing"]),
        ({"measure": "boolean"}, ["false", "true", "missing"]),
        ({"measure": "category", "categories": ['a"b', "ö"]}, ['"a\\"b"', '"ö"', "other", "missing"]),
        ({"measure": "category", "categories": []}, ["other", "missing"]),
    ],
)
def test_each_bin_has_a_description(alice: Connection, bins: dict[str, Any], labels: list[str]) -> None:
    assert value(alice, "select tensile.bin_labels(%s)", Jsonb({"measure": "number"} | bins)) == labels


def drift(connection: Connection) -> list[tuple[Any, ...]]:
    """Return the drift that the role sees, without times."""
    return connection.execute(
        """select model, version, active, feature, measure, round(psi::numeric, 4)::float8, reading, predicted_rows,
                  training_rows, bins is null, reason from tensile.stat_drift"""
    ).fetchall()


def test_owner_sees_the_drift_of_each_column_with_both_distributions(
    database: Database, alice: Connection, bob: Connection, admin: Connection, binned: ModelVersionId
) -> None:
    with database.connect("tensile_worker") as worker:
        add_inputs(worker, [InputAmounts(version=binned, rows=600, counts=[500, 90, 10, 540, 40, 20])])
        worker.execute("select 1 from tensile.predicted_inputs")
        admin.execute("update tensile.predicted_inputs set day = day - 2")
        add_inputs(worker, [InputAmounts(version=binned, rows=400, counts=[400, 0, 0, 360, 30, 10])])
        add_inputs(worker, [InputAmounts(version=ModelVersionId(999), rows=1, counts=[1])])
    alice.execute("select tensile_measure_drift('flowers'); select tensile_grant_model('flowers', 'bob')")
    rows = drift(alice)

    petal, city = ([500, 500, 0], [900, 90, 10]), ([900, 60, 40], [900, 70, 30])
    assert rows == [
        ("flowers", 1, True, "petal", "number", round(stability(*petal) or 0, 4), "large", 1000, 1000, False, None),
        ("flowers", 1, True, "photo", None, None, "not measured", 1000, 1000, True, COUNTS["inputs"][1]["reason"]),  # type: ignore[index]
        ("flowers", 1, True, "city", "category", round(stability(*city) or 0, 4), "stable", 1000, 1000, False, None),
    ]
    assert value(alice, "select bins from tensile.stat_drift where feature = 'city'") == [
        {"bin": '"Bern"', "training": 900, "predicted": 900},
        {"bin": "other", "training": 60, "predicted": 70},
        {"bin": "missing", "training": 40, "predicted": 30},
    ]
    assert drift(bob) == [], "counts of a few predictions would show what somebody else has predicted"
    assert value(bob, "select count(*) from tensile.predicted_inputs") == 0
    with database.connect("monitor") as monitor:
        assert [row[5:7] for row in drift(monitor)] == [row[5:7] for row in rows]
        assert [row[9] for row in drift(monitor)] == [True] * 3, "the bounds of bins are values of the table"


def test_counts_are_kept_as_long_as_the_setting_says(
    database: Database, alice: Connection, admin: Connection, binned: ModelVersionId
) -> None:
    with database.connect("tensile_worker") as worker:
        for days in (9, 5):
            add_inputs(worker, [InputAmounts(version=binned, rows=10 * days, counts=[1, 1, 1, 1, 1, 1])])
            admin.execute(
                "update tensile.predicted_inputs set day = day - %s where day = tensile.usage_day()", [days]
            )

    assert value(alice, "select max(predicted_rows) from tensile.stat_drift") == 50
    assert dict(admin.execute("select * from tensile_vacuum()").fetchall()) == {"inputs": 1}
    assert value(alice, "select max(predicted_rows) from tensile.stat_drift") == 50
    admin.execute("select tensile_set_setting('retain_drift', '\"1 day\"')")
    assert drift(alice) == [], "not measured, and without counts"


def test_version_without_bins_and_a_model_without_predictions_say_so(
    alice: Connection, admin: Connection, binned: ModelVersionId
) -> None:
    assert drift(alice) == []
    alice.execute("select tensile_measure_drift('flowers')")
    assert {row[6:8] for row in drift(alice)} == {("too few rows", 0), ("not measured", 0)}
    admin.execute("delete from tensile.version_figures where version_id = %s", [binned])
    assert [row[3:] for row in drift(alice)] == [
        (None, None, None, "not measured", 0, None, True, value(alice, "select reason from tensile.stat_drift"))
    ]
    assert "no bins" in value(alice, "select reason from tensile.stat_drift")


@pytest.mark.usefixtures("binned")
def test_predictions_are_marked_for_counting_from_the_call_on_and_by_nobody_else(
    alice: Connection, bob: Connection, serve: Serve
) -> None:
    service = serve(echo)
    predict = "select tensile_predict_label('flowers', t) from (values (1, 2)) as t (petal, sepal)"
    for statement in (
        "select 1",
        "select tensile_measure_drift('flowers')",
        "select tensile_measure_drift('flowers')",
        "select tensile_measure_drift('flowers', active => false)",
    ):
        alice.execute(statement.encode())
        alice.execute(predict.encode())

    assert [request.get("measured") for request in service.requests] == [None, True, True, None]
    alice.execute("select tensile_grant_model('flowers', 'bob')")
    assert refused(bob, "select tensile_measure_drift('flowers')") == Refused(
        "42501",
        'model "flowers" belongs to another role',
        'Role "bob" may predict with the model, and may not change it.',
        "Its owner, or a member of tensile_admin, can measure the drift of it.",
    )
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        bob.execute("insert into tensile.predicted_inputs values (1, now(), 1, '{1}')")


@pytest.mark.shares_database
def test_faulty_calls_of_measure_drift_are_refused(alice: Connection) -> None:
    assert refused(alice, "select tensile_measure_drift('none')") == Refused(
        "42704", 'there is no model "none"', None, "See your models: select * from tensile.model_list;"
    )
    alice.execute("select tensile_create_model('drifts', '{\"type\": \"mlp\"}')")
    assert refused(alice, "select tensile_measure_drift('drifts', null)") == Refused(
        "22004", "active is null", None, "Give true to count the inputs of predictions, or false to stop counting."
    )


def test_statements_of_the_how_to_page_train_a_model_again_whose_inputs_have_drifted(
    database: Database, alice: Connection, admin: Connection, binned: ModelVersionId
) -> None:
    blocks = (block.text for block in Page(ROOT / "docs/user/howto.md").blocks)
    (text,) = (text for text in blocks if "function retrain_drifted" in text)
    create = text[: text.index("end;") + len("end;")]
    with database.connect("tensile_worker") as worker:
        add_inputs(worker, [InputAmounts(version=binned, rows=400, counts=[400, 0, 0, 360, 30, 10])])
    alice.execute(create.encode())
    first = value(alice, "select tensile_train('flowers', 'iris', 'species')")
    admin.execute(
        """update tensile.jobs set state = 'cancelled', finished_at = now() - interval '8 days';
           update tensile.models as m set last_spec = j.spec, last_job_id = j.job_id from tensile.jobs as j"""
    )

    assert alice.execute("select * from retrain_drifted()").fetchall() == [], "its drift is not measured now"
    alice.execute("select tensile_measure_drift('flowers')")
    ((model, job),) = alice.execute("select * from retrain_drifted()").fetchall()
    assert (model, job) == ("flowers", first + 1)
    assert value(alice, "select state::text from tensile.stat_jobs where job_id = %s", job) == "queued"
    assert alice.execute("select * from retrain_drifted()").fetchall() == [], "it is being trained"
