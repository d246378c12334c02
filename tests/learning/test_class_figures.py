"""Confusion matrices and ROC curves equal those of scikit-learn, and the stored figures are bounded."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics

from indb_tensile.errors import RequestError
from indb_tensile.job import Task
from indb_tensile.learning.evaluation.class_figures import (
    MOST_CURVES,
    MOST_STORED_BYTES,
    calibration_rows,
    confusion_rows,
    roc_rows,
    stored_figures,
)
from indb_tensile.learning.evaluation.model_metrics import probabilities
from indb_tensile.learning.metrics.roc_curve import POINTS, roc_curve
from indb_tensile.request.figure_rules import STORED_BINS
from indb_tensile.sql_api.figures import _confusions, _merged

NAMES = ("a", "b", "c")
CLASSES, SETS = Task.CLASSIFICATION, Task.MULTILABEL


@given(st.integers(2, 3), st.integers(1, 60), st.integers(0, 2**32 - 1))
def test_confusion_matrix_has_the_cells_of_scikit_learn(classes: int, rows: int, seed: int) -> None:
    source = np.random.default_rng(seed)
    outputs, targets = source.normal(size=(rows, classes)), source.integers(0, classes, rows)
    expected = metrics.confusion_matrix(targets, outputs.argmax(axis=1), labels=np.arange(classes))
    cells = {(NAMES[i], NAMES[j]): int(count) for (i, j), count in np.ndenumerate(expected) if count}
    assert {
        (actual, predicted): n for actual, predicted, n in confusion_rows(CLASSES, outputs, targets, NAMES, None)
    } == cells


@given(st.integers(2, 80), st.integers(0, 2**32 - 1), st.booleans())
def test_a_short_roc_curve_is_that_of_scikit_learn(rows: int, seed: int, ties: bool) -> None:
    source = np.random.default_rng(seed)
    scores = source.integers(0, 4, rows) / 4 if ties else source.random(rows)
    positive = np.arange(rows) % 2 == 0
    curve = roc_curve(scores, positive)
    false_rates, true_rates, thresholds = metrics.roc_curve(positive, scores)
    assert [point.threshold for point in curve] == thresholds.tolist()
    assert [point.true_positive_rate for point in curve] == true_rates.tolist()
    assert [point.false_positive_rate for point in curve] == false_rates.tolist()
    at = source.integers(0, len(curve))
    chosen = scores >= curve[at].threshold
    assert curve[at].true_positives == np.count_nonzero(chosen & positive)
    assert curve[at].false_positives == np.count_nonzero(chosen & ~positive)


def test_a_long_roc_curve_is_thinned_and_keeps_its_area() -> None:
    source = np.random.default_rng(0)
    positive = source.random(20_000) < 0.3
    scores = source.normal(positive * 1.0)
    curve = roc_curve(scores, positive)
    assert 150 < len(curve) <= POINTS
    assert (curve[0].true_positives, curve[-1].true_positives) == (0, int(positive.sum()))
    assert curve[-1].false_positives == np.count_nonzero(~positive)
    area = metrics.auc([p.false_positive_rate for p in curve], [p.true_positive_rate for p in curve])
    assert area == pytest.approx(metrics.roc_auc_score(positive, scores), abs=0.001)


def test_curves_are_of_the_second_of_two_labels_and_of_every_label_that_occurs_of_more() -> None:
    outputs, targets = np.log([[0.6, 0.4], [0.3, 0.7]]), np.array([0, 1])
    assert {row[0] for row in roc_rows(CLASSES, outputs, targets, ("no", "yes"), None)} == {"yes"}
    assert {row[0] for row in roc_rows(CLASSES, outputs, targets, ("no", "yes"), "no")} == {"no"}
    three = np.random.default_rng(0).normal(size=(4, 3))
    assert {row[0] for row in roc_rows(CLASSES, three, np.array([0, 1, 0, 1]), NAMES, None)} == {"a", "b"}
    with pytest.raises(RequestError, match="the rows have one class only"):
        roc_rows(CLASSES, outputs, np.zeros(2, np.int64), ("no", "yes"), None)
    with pytest.raises(RequestError, match='the rows have rows of label "c" only, or none'):
        roc_rows(CLASSES, three, np.array([0, 1, 0, 1]), NAMES, "c")


def test_curves_of_too_many_labels_are_refused_unless_one_is_named() -> None:
    outputs = np.broadcast_to(np.zeros((1, 1), np.float32), (300_000, 1000))
    with pytest.raises(RequestError, match="the ROC curves of 1000 labels of 300000 rows take too long"):
        roc_rows(CLASSES, outputs, np.zeros(300_000, np.int64), [f"c{i}" for i in range(1000)], None)


def test_a_diverged_network_has_figures() -> None:
    outputs, targets = np.full((4, 2), np.nan, np.float32), np.array([0, 1, 0, 1])
    assert confusion_rows(CLASSES, outputs, targets, NAMES, None) == [("a", "a", 2), ("b", "a", 2)]
    assert calibration_rows(CLASSES, outputs, targets, NAMES, None, 2) == [(1, 0.5, 0.5, 4)]


@given(st.integers(1, 300), st.integers(0, 2**32 - 1), st.sampled_from([1, 4, 15, 40, 120]))
def test_stored_bins_merge_into_wider_ones(rows: int, seed: int, bins: int) -> None:
    source = np.random.default_rng(seed)
    outputs, targets = source.normal(size=(rows, 3)), source.integers(0, 3, rows)
    merged = _merged(
        [list(row) for row in calibration_rows(CLASSES, outputs, targets, NAMES, None, STORED_BINS)], bins
    )
    expected = calibration_rows(CLASSES, outputs, targets, NAMES, None, bins)
    assert [row[0] for row in merged] == [row[0] for row in expected]
    assert np.array(merged) == pytest.approx(np.array(expected))


@pytest.mark.nightly
def test_stored_figures_are_bounded_and_say_why_they_are_missing() -> None:
    source = np.random.default_rng(0)
    few = stored_figures(
        CLASSES, source.normal(size=(5000, 30)), source.integers(0, 30, 5000), [f"c{i}" for i in range(30)]
    )
    assert {name: "rows" in figure for name, figure in few.items()} == {
        "confusion_matrix": True, "roc_curve": True, "calibration": True, "label_calibration": True,
    }  # fmt: skip
    assert max(len(str(figure)) for figure in few.values()) <= MOST_STORED_BYTES
    assert few["roc_curve"]["rows"][0][1][0] == [None, 0, 0], "JSON has no infinity"
    names = [f"class {i}" for i in range(400)]
    many = stored_figures(
        CLASSES, source.normal(size=(90_000, 400)).astype(np.float32), np.arange(90_000) % 400, names
    )
    assert many["roc_curve"] == {
        "reason": f"the model has 400 labels, and the curves of at most {MOST_CURVES} are stored"
    }
    assert "of 400 labels it has" in many["confusion_matrix"]["reason"]
    assert stored_figures(CLASSES, np.zeros((0, 2)), np.zeros(0, np.int64), NAMES) == {}


def test_probabilities_of_the_curve_are_those_of_predictions() -> None:
    outputs = np.random.default_rng(1).normal(size=(50, 3))
    rows = roc_rows(CLASSES, outputs, np.arange(50) % 3, NAMES, "b")
    assert {row[1] for row in rows[1:]} <= set(probabilities(outputs)[:, 1].tolist())


@given(st.integers(1, 60), st.integers(0, 2**32 - 1))
def test_labels_of_sets_have_the_confusions_of_scikit_learn(rows: int, seed: int) -> None:
    source = np.random.default_rng(seed)
    outputs, targets = source.normal(size=(rows, 3)).astype(np.float32), source.integers(0, 2, (rows, 3))
    expected = metrics.multilabel_confusion_matrix(targets, outputs >= 0)
    stored = stored_figures(SETS, outputs, targets, NAMES)["confusion_matrix"]["rows"]
    for place, name in enumerate(NAMES):
        cells = {
            (actual, predicted): n for actual, predicted, n in confusion_rows(SETS, outputs, targets, NAMES, name)
        }
        for (actual, predicted), count in np.ndenumerate(expected[place]):
            shown = str(bool(actual)).lower(), str(bool(predicted)).lower()
            assert cells.get(shown, 0) == count
        assert [tuple(row) for row in _confusions(stored, name, "multilabel")] == [(*p, n) for p, n in cells.items()]


def test_a_class_has_the_confusions_of_one_against_the_others_stored_or_not() -> None:
    source = np.random.default_rng(3)
    outputs, targets = source.normal(size=(40, 3)), source.integers(0, 3, 40)
    own = confusion_rows(CLASSES, outputs, targets, NAMES, "b")
    answers = outputs.argmax(axis=1)
    expected = metrics.confusion_matrix(targets == 1, answers == 1)
    assert own == [
        ("false", "false", expected[0, 0]), ("false", "true", expected[0, 1]),
        ("true", "false", expected[1, 0]), ("true", "true", expected[1, 1]),
    ]  # fmt: skip
    assert _confusions(list(confusion_rows(CLASSES, outputs, targets, NAMES, None)), "b", "classification") == own
    with pytest.raises(RequestError, match='no row of the label "z"') as caught:
        _confusions([("a", "b", 1)], "z", "classification")
    assert caught.value.hint == "Name one of a, b."


def test_sets_have_a_curve_for_each_label_that_some_rows_have_and_others_lack() -> None:
    source = np.random.default_rng(0)
    outputs, targets = source.normal(size=(30, 3)), source.integers(0, 2, (30, 3))
    targets[:, 1] = 1
    assert {row[0] for row in roc_rows(SETS, outputs, targets, NAMES, None)} == {"a", "c"}
    own = roc_rows(SETS, outputs, targets, NAMES, "c")
    area = metrics.auc([row[3] for row in own], [row[2] for row in own])
    assert area == pytest.approx(metrics.roc_auc_score(targets[:, 2], outputs[:, 2]))
    with pytest.raises(RequestError, match='the rows have rows of label "b" only, or none'):
        roc_rows(SETS, outputs, targets, NAMES, "b")
    with pytest.raises(RequestError, match="no label that some have and others lack"):
        roc_rows(SETS, outputs, np.ones((30, 3)), NAMES, None)


def test_the_bins_of_sets_are_those_of_all_labels_and_a_label_has_its_own() -> None:
    outputs, targets = np.array([[5.0, -5.0], [5.0, 0.0]]), np.array([[1, 0], [0, 1]])
    high, low = 1 / (1 + np.exp(-5.0)), 1 / (1 + np.exp(5.0))
    assert calibration_rows(SETS, outputs, targets, ("a", "b"), "a", 2) == [(2, pytest.approx(high), 0.5, 2)]
    assert calibration_rows(SETS, outputs, targets, ("a", "b"), None, 2) == [
        (1, pytest.approx((low + 0.5) / 2), 0.5, 2),
        (2, pytest.approx(high), 0.5, 2),
    ]
    stored = stored_figures(SETS, outputs, targets, ("a", "b"))["label_calibration"]["rows"]
    assert [(name, sum(count for *_, count in bins)) for name, bins in stored] == [("a", 2), ("b", 2)]
    assert calibration_rows(CLASSES, outputs, np.array([0, 1]), ("a", "b"), "b", 1) == [
        (1, pytest.approx((1 / (1 + np.exp(10.0)) + 1 / (1 + np.exp(5.0))) / 2), 0.5, 2)
    ]
