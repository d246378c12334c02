"""Check the figures of a real training: those stored with the version, those of a relation, and its history."""

from collections.abc import Iterator

import numpy as np
import psycopg
import pytest
from sklearn import metrics

from tests.e2e.conftest import Service

pytestmark = pytest.mark.postgres

NETWORK = '{"type": "mlp", "hidden": [16]}'
SETTINGS = f"architecture => '{NETWORK}', hyperparams => '{{\"epochs\": 4}}'"


@pytest.fixture(scope="module")
def demo(running: Service) -> Iterator[psycopg.Connection]:
    """A session with a trained classification of many columns."""
    with running.database.connect("demo") as connection:
        row = connection.execute(
            f"select tensile_train('cells', 'breast_cancer', 'target', {SETTINGS})".encode()
        ).fetchone()
        assert row is not None
        assert running.until_ended(row[0]) == ["succeeded"]
        yield connection


@pytest.mark.nightly
def test_stored_figures_agree_with_the_metrics_of_the_held_out_rows(demo: psycopg.Connection) -> None:
    held_out: dict[str, float] = dict(demo.execute("select * from tensile_evaluate('cells')").fetchall())
    matrix = demo.execute("select actual = predicted, rows from tensile_confusion_matrix('cells')").fetchall()
    rows = sum(count for _, count in matrix)
    assert sum(count for right, count in matrix if right) / rows == pytest.approx(held_out["accuracy"])

    curve = demo.execute(
        "select false_positive_rate, true_positive_rate, threshold from tensile_roc_curve('cells')"
    ).fetchall()
    area = metrics.auc([point[0] for point in curve], [point[1] for point in curve])
    assert area == pytest.approx(held_out["roc_auc"], abs=1e-9)
    assert curve[0] == (0.0, 0.0, float("inf"))

    bins = demo.execute("select mean_predicted, observed_share, rows from tensile_calibration('cells')").fetchall()
    error = sum(abs(mean - share) * count for mean, share, count in bins) / rows
    assert error == pytest.approx(held_out["calibration_error"])

    importance = demo.execute("select * from tensile_feature_importance('cells')").fetchall()
    columns = demo.execute("select features from tensile_training_info('cells')").fetchall()[0][0]
    assert {row[0] for row in importance} == set(columns)
    assert {row[3] for row in importance} == {"accuracy"}


def test_figures_of_a_relation_agree_with_its_predictions(demo: psycopg.Connection) -> None:
    counted = demo.execute(
        "select c.target::text, p.label, count(*) from breast_cancer as c"
        " join tensile_predict_table('cells', 'breast_cancer') as p on (p.key ->> 'id')::int = c.id"
        " group by 1, 2 order by 1, 2"
    ).fetchall()
    matrix = "select * from tensile_confusion_matrix('cells', 'breast_cancer') order by 1, 2"
    assert demo.execute(matrix).fetchall() == counted
    importance = "select * from tensile_feature_importance('cells', 'breast_cancer', repeats => 1)"
    assert demo.execute(importance).fetchall() == demo.execute(importance).fetchall()


def test_a_prediction_of_many_columns_is_explained_to_the_last_digit(demo: psycopg.Connection) -> None:
    explain = "select e.* from breast_cancer as c, tensile_explain_prediction('cells', c) as e where c.id = 5"
    rows = demo.execute(explain).fetchall()
    assert len(rows) == 30
    assert sum(row[1] for row in rows) == pytest.approx(rows[0][5] - rows[0][4], abs=1e-6)
    assert np.max([row[2] for row in rows]) > 0, "orders are drawn, so there is an error"
    assert rows == demo.execute(explain).fetchall()
    predicted = (
        "select max(p.probability) from breast_cancer as c, tensile_predict_proba('cells', c) as p where c.id = 5"
    )
    assert demo.execute(predicted).fetchall() == [(pytest.approx(rows[0][5]),)]


def test_history_has_every_epoch_and_marks_the_published_one(demo: psycopg.Connection) -> None:
    rows = demo.execute("select * from tensile_training_history('cells')").fetchall()
    assert [row[0] for row in rows] == list(range(1, len(rows) + 1))
    assert sum(row[4] for row in rows) == 1
    assert all(row[1] > 0 and row[2] > 0 for row in rows)
    assert {"accuracy", "roc_auc", "brier", "precision_macro"} <= set(rows[-1][3])
