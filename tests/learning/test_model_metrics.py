"""Metrics are computed as by scikit-learn or by hand, and each has a direction."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics
from sklearn.metrics import roc_auc_score

from indb_tensile.errors import RequestError
from indb_tensile.job import Task
from indb_tensile.learning.encoding.encoders import Numbers
from indb_tensile.learning.encoding.preprocessor import Preprocessor, Recipe
from indb_tensile.learning.encoding.targets import TargetEncoding
from indb_tensile.learning.evaluation.model_metrics import (
    HIGHER_IS_BETTER,
    better,
    default_metric,
    evaluate,
    probabilities,
)
from indb_tensile.learning.storage.columns import ColumnKind
from indb_tensile.request.task_rules import METRICS, check_metric


def preprocessor(target: TargetEncoding) -> Preprocessor:
    numbers = Numbers(names=("a",), mean=(0.0,), scale=(1.0,), fill=(0.0,))
    recipe = Recipe(
        format=1, features=("a",), numbers=numbers, texts=(), times=(), arrays=(), target=target, input_shape=(1,)
    )
    return Preprocessor(recipe)


CLASSES = preprocessor(TargetEncoding(name="y", task=Task.CLASSIFICATION, kind=ColumnKind.TEXT, labels=("a", "b")))
THREE = preprocessor(TargetEncoding(name="y", task=Task.CLASSIFICATION, kind=ColumnKind.TEXT, labels=("a", "b", "c")))
VALUES = preprocessor(TargetEncoding(name="y", task=Task.REGRESSION, kind=ColumnKind.FLOAT, mean=100.0, scale=10.0))


def test_classification_metrics_equal_figures_counted_by_hand() -> None:
    outputs = np.log(np.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.7, 0.3]]))
    values = evaluate(Task.CLASSIFICATION, outputs, np.array([0, 0, 1, 1]), CLASSES)
    assert values == pytest.approx(
        {
            "accuracy": 0.75,
            "balanced_accuracy": 0.75,
            "precision_macro": (2 / 3 + 1) / 2,
            "recall_macro": 0.75,
            "f1_macro": (0.8 + 2 / 3) / 2,
            "log_loss": -np.log([0.9, 0.6, 0.8, 0.3]).mean(),
            "roc_auc": 0.75,
            "brier": (0.1**2 + 0.4**2 + 0.2**2 + 0.7**2) / 4,
            "calibration_error": (0.1 + 0.4 + 0.2 + 0.7) / 4,
        }
    )


def test_regression_metrics_are_in_the_targets_own_unit() -> None:
    outputs = np.array([[0.0], [1.0], [1.0]], np.float32)
    targets = np.array([[0.0], [1.0], [2.0]], np.float32)
    values = evaluate(Task.REGRESSION, outputs, targets, VALUES)
    assert values == pytest.approx(
        {"r2": 0.5, "rmse": 10 / 3**0.5, "mae": 10 / 3, "mape": 10 / 120 / 3, "median_absolute_error": 0.0}
    )


def test_metrics_that_the_rows_do_not_define_are_left_out() -> None:
    values = evaluate(Task.CLASSIFICATION, np.array([[1.0, 0.0]]), np.array([0]), CLASSES)
    assert set(values) == set(METRICS["classification"]) - {"roc_auc"}
    assert values["balanced_accuracy"] == 1
    same = evaluate(Task.CLASSIFICATION, np.eye(3), np.zeros(3, np.int64), THREE)
    assert "roc_auc" not in same
    flat = evaluate(Task.REGRESSION, np.zeros((2, 1)), np.zeros((2, 1)), VALUES)
    assert flat == {"rmse": 0.0, "mae": 0.0, "mape": 0.0, "median_absolute_error": 0.0}
    zero = evaluate(Task.REGRESSION, np.zeros((2, 1)), np.array([[-10.0], [0.0]]), VALUES)
    assert set(zero) == {"r2", "rmse", "mae", "median_absolute_error"}
    assert evaluate(Task.CLASSIFICATION, np.zeros((0, 2)), np.zeros(0), CLASSES) == {}


def test_a_diverged_network_is_evaluated_and_not_refused() -> None:
    inf = float("inf")
    none = {"rmse": inf, "mae": inf, "mape": inf, "median_absolute_error": inf}
    worst = evaluate(Task.REGRESSION, np.full((2, 1), np.nan), np.array([[0.0], [1.0]]), VALUES)
    assert worst == {"r2": -inf, **none}
    assert evaluate(Task.REGRESSION, np.full((2, 1), np.nan), np.zeros((2, 1)), VALUES) == none
    chance = evaluate(Task.CLASSIFICATION, np.full((2, 2), np.nan), np.array([0, 1]), CLASSES)
    assert chance["log_loss"] == pytest.approx(np.log(2))


@given(st.integers(2, 5), st.integers(2, 40), st.integers(0, 2**32 - 1), st.booleans())
def test_roc_auc_equals_that_of_scikit_learn(classes: int, rows: int, seed: int, ties: bool) -> None:
    source = np.random.default_rng(seed)
    outputs = source.integers(0, 3, (rows, classes)) if ties else source.normal(size=(rows, classes))
    targets = np.concatenate([np.arange(classes), source.integers(0, classes, rows)])
    outputs = np.concatenate([source.normal(size=(classes, classes)), outputs])
    chance = probabilities(outputs)
    names = TargetEncoding(name="y", task=Task.CLASSIFICATION, kind=ColumnKind.TEXT, labels=tuple("abcde"[:classes]))
    area = evaluate(Task.CLASSIFICATION, outputs, targets, preprocessor(names))["roc_auc"]
    if classes == 2:
        assert area == pytest.approx(roc_auc_score(targets, chance[:, 1]))
    else:
        assert area == pytest.approx(roc_auc_score(targets, chance, multi_class="ovr", average="macro"))


@given(st.integers(2, 5), st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_other_metrics_of_classes_equal_those_of_scikit_learn(classes: int, rows: int, seed: int) -> None:
    source = np.random.default_rng(seed)
    outputs, targets = source.normal(size=(rows, classes)), source.integers(0, classes, rows)
    values, predicted = evaluate(Task.CLASSIFICATION, outputs, targets, CLASSES), outputs.argmax(axis=1)
    known = np.arange(classes)
    chances = probabilities(outputs)
    scored = targets if classes > 2 else targets == 1
    expected = {
        "precision_macro": metrics.precision_score(targets, predicted, average="macro", zero_division=0),
        "recall_macro": metrics.recall_score(targets, predicted, average="macro", zero_division=0),
        "f1_macro": metrics.f1_score(targets, predicted, average="macro", zero_division=0),
        "brier": metrics.brier_score_loss(
            scored, chances if classes > 2 else chances[:, 1], **({"labels": known} if classes > 2 else {})
        ),
        "balanced_accuracy": metrics.recall_score(
            targets, predicted, labels=np.unique(targets), average="macro", zero_division=0
        ),
    }
    assert values["brier"] == pytest.approx(expected.pop("brier"))
    assert {name: values[name] for name in expected} == expected, "bit for bit"


@given(st.integers(2, 40), st.integers(0, 2**32 - 1))
def test_metrics_of_numbers_equal_those_of_scikit_learn(rows: int, seed: int) -> None:
    outputs, targets = np.random.default_rng(seed).normal(size=(2, rows, 1))
    values = evaluate(Task.REGRESSION, outputs, targets, VALUES)
    own = (VALUES.target.restore(targets), VALUES.target.restore(outputs))
    assert values == {
        "r2": metrics.r2_score(*own),
        "rmse": metrics.root_mean_squared_error(*own),
        "mae": metrics.mean_absolute_error(*own),
        "mape": metrics.mean_absolute_percentage_error(*own),
        "median_absolute_error": metrics.median_absolute_error(*own),
    }, "bit for bit"


def test_a_class_without_rows_is_left_out_of_roc_auc() -> None:
    outputs = np.log(np.array([[0.7, 0.2, 0.1], [0.2, 0.7, 0.1], [0.5, 0.4, 0.1], [0.55, 0.35, 0.1]]))
    area = evaluate(Task.CLASSIFICATION, outputs, np.array([0, 1, 0, 1]), THREE)["roc_auc"]
    assert area == pytest.approx((0.75 + 0.75) / 2)


def test_every_metric_has_a_direction_and_the_default_is_a_metric_of_its_task() -> None:
    assert {name for names in METRICS.values() for name in names} | {"loss"} == set(HIGHER_IS_BETTER)
    assert [default_metric(task) for task in Task] == [
        *("accuracy", "r2", "f1_micro", "mase", "reconstruction_error", "mrr")
    ]
    assert check_metric(Task.REGRESSION, "mae") == "mae"
    with pytest.raises(RequestError, match='unknown metric "accuracy" for regression') as caught:
        check_metric(Task.REGRESSION, "accuracy")
    assert caught.value.hint == "For regression: r2, rmse, mae, mape, median_absolute_error."


def test_better_follows_the_direction_and_any_value_is_better_than_none() -> None:
    assert better("r2", {"r2": -0.1}, {"r2": -0.9})
    assert better("rmse", {"rmse": 1.0}, {"rmse": 2.0})
    assert not better("accuracy", {"accuracy": 0.5}, {"accuracy": 0.5})
    assert better("r2", {"r2": -5.0}, {})
    assert not better("r2", {}, {"r2": -5.0})
    assert not better("rmse", {"rmse": float("nan")}, {})


def test_probabilities_of_large_outputs_are_finite_and_sum_to_one() -> None:
    chances = probabilities(np.array([[1e4, 0.0], [0.0, 0.0]], np.float32))
    assert chances.tolist() == [[1, 0], [0.5, 0.5]]
