"""Check figures of versions: stored ones of the held-out rows, those of a relation, rights and refusals."""

from typing import Any

import pytest
from psycopg.types.json import Jsonb

from .conftest import Connection, Refused, Serve, refused
from .fakes import echo, result

pytestmark = [pytest.mark.postgres, pytest.mark.clears_database]

STORED = {
    "confusion_matrix": {"rows": [["setosa", "setosa", 9], ["setosa", "virginica", 1]]},
    "roc_curve": {"rows": [["setosa", [[None, 0, 0], [0.1, 2, 8]]], ["virginica", [[0.5, 9, 1], [0.0, 10, 4]]]]},
    "label_calibration": {"rows": [["setosa", [[120, 0.999, 1.0, 4]]], ["virginica", [[1, 0.001, 0.0, 6]]]]},
    "label_metrics": {"rows": [["setosa", 10, {"precision": 1.0, "recall": 0.9}], ["virginica", 0, {"recall": 0.0}]]},
    "calibration": {"rows": [[1, 0.005, 0.0, 2], [119, 0.99, 1.0, 1], [120, 0.995, 0.5, 2]]},
}


@pytest.fixture
def stored(published: int, admin: Connection) -> int:
    """A version with stored figures."""
    for name, figure in STORED.items():
        statement = "insert into tensile.version_figures (version_id, name, figure) values (%s, %s, %s)"
        admin.execute(statement, (published, name, Jsonb(figure)))
    return published


@pytest.mark.usefixtures("stored")
def test_stored_figures_are_those_of_the_held_out_rows(alice: Connection) -> None:
    def rows(call: str) -> list[tuple[Any, ...]]:
        return alice.execute(f"select * from {call}".encode()).fetchall()

    assert rows("tensile_confusion_matrix('flowers')") == [("setosa", "setosa", 9), ("setosa", "virginica", 1)]
    virginica = [("virginica", 0.5, 0.9, 0.25, 9, 1), ("virginica", 0.0, 1.0, 1.0, 10, 4)]
    setosa = [("setosa", float("inf"), 0, 0, 0, 0), ("setosa", 0.1, 1.0, 1.0, 2, 8)]
    assert rows("tensile_roc_curve('flowers')") == setosa + virginica
    assert rows("tensile_roc_curve('flowers', 'virginica')") == virginica
    assert rows("tensile_calibration('flowers', bins => 2)") == [
        (1, 0.005, 0.0, 2),
        (2, pytest.approx(0.99333333), pytest.approx(2 / 3), 3),
    ]
    assert rows("tensile_confusion_matrix('flowers', label => 'setosa')") == [
        ("true", "false", 1),
        ("true", "true", 9),
    ]
    assert rows("tensile_calibration('flowers', bins => 1, label => 'setosa')") == [(1, 0.999, 1.0, 4)]
    assert rows("tensile_label_metrics('flowers')") == [
        ("setosa", "precision", 1.0, 10), ("setosa", "recall", 0.9, 10), ("virginica", "recall", 0.0, 0),
    ]  # fmt: skip
    assert rows("tensile_label_metrics('flowers', label => 'virginica')") == [("virginica", "recall", 0.0, 0)]


@pytest.mark.usefixtures("stored")
def test_figures_of_a_relation_are_computed_by_the_service(alice: Connection, serve: Serve) -> None:
    service = serve(lambda _: result({"rows": [["a", float("inf"), 1.0, 0.5, 2, 1]]}))
    points = alice.execute("select * from tensile_roc_curve('flowers', 'a', 'iris')").fetchall()
    assert points == [("a", float("inf"), 1.0, 0.5, 2, 1)]
    (request,) = service.requests
    assert (request["verb"], request["figure"], request["options"]["label"]) == ("evaluate", "roc_curve", "a")
    assert len(request["rows"]) == 60


@pytest.mark.usefixtures("stored")
def test_only_the_owner_sees_stored_figures_that_name_classes(
    alice: Connection, bob: Connection, serve: Serve
) -> None:
    serve(echo)
    alice.execute("select tensile_grant_model('flowers', 'bob')")
    for figure in ("confusion_matrix", "roc_curve", "label_metrics"):
        error = refused(bob, f"select * from tensile_{figure}('flowers')")
        assert (error.sqlstate, error.message) == ("42501", 'model "flowers" belongs to another role')
        assert f"tensile_{figure}('flowers', relation => 'table')" in (error.hint or "")
        assert refused(bob, f"select * from tensile_{figure}('flowers', relation => 'iris')") == Refused(
            "42501", "permission denied for table iris", None, None
        )
    assert bob.execute("select name from tensile.version_figures").fetchall() == [("calibration",)]
    assert len(bob.execute("select * from tensile_calibration('flowers', bins => 1)").fetchall()) == 1


@pytest.mark.usefixtures("published")
def test_version_without_stored_figures_is_refused_with_the_way_out(alice: Connection, admin: Connection) -> None:
    error = refused(alice, "select * from tensile_confusion_matrix('flowers')")
    assert error == Refused(
        "55000",
        'version 1 of model "flowers" has no stored confusion matrix',
        "Release 0.1 stored none, and a training that holds out no rows has none.",
        "Name rows to compute it from: select * from tensile_confusion_matrix('flowers', relation => 'table').",
    )
    admin.execute(
        """insert into tensile.version_figures (version_id, name, figure)
           select version_id, 'roc_curve', '{"reason": "of 99 classes"}' from tensile.model_versions"""
    )
    error = refused(alice, "select * from tensile_roc_curve('flowers')")
    assert (error.sqlstate, error.detail) == ("55000", "Not stored: of 99 classes.")


@pytest.mark.usefixtures("stored")
def test_importance_is_stored_or_computed_in_the_models_metric(
    alice: Connection, bob: Connection, admin: Connection, serve: Serve
) -> None:
    service = serve(lambda _: result({"rows": [["petal", 0.25, 0.01, "accuracy"]]}))
    statement = "select * from tensile_feature_importance('flowers', {})"
    assert alice.execute(statement.format("'iris', seed => 3").encode()).fetchall() == [
        ("petal", 0.25, 0.01, "accuracy")
    ]
    (request,) = service.requests
    assert (request["figure"], request["options"]) == (
        "feature_importance",
        {"repeats": 5, "seed": 3, "metric": "accuracy", "label": None},
    )
    admin.execute(
        """insert into tensile.version_figures (version_id, name, figure)
           select version_id, 'feature_importance', '{"rows": [["petal", 0.5, 0, "accuracy"]]}'
             from tensile.model_versions"""
    )
    alice.execute("select tensile_grant_model('flowers', 'bob')")
    stored = bob.execute("select * from tensile_feature_importance('flowers')").fetchall()
    assert stored == [("petal", 0.5, 0.0, "accuracy")]
    for arguments in (
        "seed => 1",
        "label => 'setosa'",
        "'iris', repeats => 0",
        "'iris', repeats => 101",
        "'iris', seed => -1",
    ):
        assert refused(alice, statement.format(arguments)).sqlstate == "22023"


@pytest.mark.usefixtures("stored")
def test_wrong_arguments_of_figures_are_refused(alice: Connection, admin: Connection) -> None:
    error = refused(alice, "select * from tensile_calibration('flowers', bins => 7)")
    assert (error.sqlstate, error.message) == (
        "22023",
        "bins is 7, which does not divide the 120 stored bins of the held-out rows",
    )
    assert "relation => '...'" in (error.hint or "")
    error = refused(alice, "select * from tensile_roc_curve('flowers', 'rose')")
    assert (error.sqlstate, error.message) == ("22023", 'the held-out rows have no ROC curve of the label "rose"')
    for call, subject in (
        ("confusion_matrix('flowers', label => 'rose')", "row"),
        ("calibration('flowers', label => 'rose')", "calibration"),
        ("label_metrics('flowers', label => 'rose')", "metrics"),
    ):
        error = refused(alice, f"select * from tensile_{call}")
        assert error == Refused(
            "22023",
            f'the held-out rows have no {subject} of the label "rose"',
            None,
            "Name one of setosa, virginica.",
        )
    admin.execute("update tensile.model_versions set task = 'multilabel'")
    admin.execute(
        "update tensile.version_figures set figure = %s where name = 'confusion_matrix'",
        (Jsonb({"rows": [["red", "true", "true", 3], ["tall", "true", "true", 1]]}),),
    )
    counts = alice.execute("select * from tensile_confusion_matrix('flowers', label => 'tall')").fetchall()
    assert counts == [("true", "true", 1)]
    assert refused(alice, "select * from tensile_confusion_matrix('flowers')") == Refused(
        "22023",
        "a model of sets of labels has a confusion matrix for each label, and label is left out",
        None,
        "Name one of red, tall with label => '...'.",
    )
    admin.execute("update tensile.model_versions set task = 'regression'")
    error = refused(alice, "select * from tensile_calibration('flowers')")
    assert (error.sqlstate, error.message) == (
        "22023",
        'model "flowers" predicts "species" as a number, and has no calibration',
    )
