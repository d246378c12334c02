"""The metrics of each output by itself are those of scikit-learn, and their means those of all outputs."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics

from indb_tensile.job import Task
from indb_tensile.learning.evaluation.model_metrics import evaluate, evaluate_classes, probabilities
from indb_tensile.learning.evaluation.output_report import output_report
from indb_tensile.learning.evaluation.single_label import label_rows
from indb_tensile.learning.evaluation.single_metric import single_metric
from indb_tensile.learning.metrics.vector_metrics import label_metrics
from indb_tensile.learning.training.preparation import assemble
from indb_tensile.learning.training.prepared_training import Prepared
from indb_tensile.request.figure_rules import METRIC_OF_LABEL
from indb_tensile.request.task_rules import METRICS
from tests.learning.tables import spec, table


def _scored(rows: int, seed: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    source = np.random.default_rng(seed)
    return source.normal(size=(rows, 3)).astype(np.float32), source.integers(0, 2, (rows, 3))


@pytest.fixture(scope="module")
def sets() -> Prepared:
    rows = [[row, float(row), [name for name in "abc" if row % (ord(name) - 94)]] for row in range(60)]
    described = [("id", "bigint"), ("x", "double precision"), ("tags", "text[]")]
    return assemble(table(described, rows), spec("tags", Task.MULTILABEL))


@pytest.fixture(scope="module")
def values() -> Prepared:
    rows = [[row, float(row), [float(row), float(row * row)]] for row in range(60)]
    described = [("id", "bigint"), ("x", "double precision"), ("v", "real[]")]
    return assemble(table(described, rows), spec("v", Task.REGRESSION))


@given(st.integers(2, 50), st.integers(0, 2**32 - 1))
def test_a_label_of_a_set_has_the_metrics_of_scikit_learn(rows: int, seed: int) -> None:
    outputs, targets = _scored(rows, seed)
    own = label_rows(Task.MULTILABEL, outputs, targets, 1).metrics()
    answers = outputs[:, 1] >= 0
    precision, recall, f1, _ = metrics.precision_recall_fscore_support(
        targets[:, 1], answers, average="binary", zero_division=0
    )
    expected = {
        "precision": precision,
        "recall": recall,
        "f1": f1,
        "accuracy": metrics.accuracy_score(targets[:, 1], answers),
        "log_loss": np.logaddexp(0, outputs[:, 1].astype(float) * (1 - 2 * targets[:, 1])).mean(),
    }
    if 0 < targets[:, 1].sum() < rows:
        expected["roc_auc"] = metrics.roc_auc_score(targets[:, 1], outputs[:, 1])
    assert own == pytest.approx(expected, abs=1e-6)


@given(st.integers(2, 50), st.integers(0, 2**32 - 1))
def test_the_means_over_labels_are_the_metrics_of_the_sets(rows: int, seed: int) -> None:
    outputs, targets = _scored(rows, seed)
    own = [label_rows(Task.MULTILABEL, outputs, targets, place) for place in range(3)]
    every = label_metrics(outputs, targets)
    assert np.mean([each.metrics()["log_loss"] for each in own]) == pytest.approx(every["log_loss"])
    assert 1 - np.mean([each.metrics()["accuracy"] for each in own]) == pytest.approx(every["hamming_loss"])
    f1 = [each.metrics()["f1"] for each in own if each.actual.any() or each.predicted.any()]
    assert np.mean(f1 or [0.0]) == pytest.approx(every["f1_macro"])


def test_a_class_is_judged_against_all_others() -> None:
    source = np.random.default_rng(0)
    outputs, targets = source.normal(size=(50, 3)), source.integers(0, 3, 50)
    own = [label_rows(Task.CLASSIFICATION, outputs, targets, place).metrics() for place in range(3)]
    every = evaluate_classes(outputs, targets)
    for name in ("precision", "recall", "f1"):
        assert np.mean([each[name] for each in own]) == pytest.approx(every[f"{name}_macro"])
    assert np.mean([each["roc_auc"] for each in own]) == pytest.approx(every["roc_auc"])
    chances = probabilities(outputs)[:, 2]
    assert own[2]["log_loss"] == pytest.approx(metrics.log_loss(targets == 2, chances))


def test_a_diverged_network_has_metrics_of_each_label() -> None:
    own = label_rows(Task.MULTILABEL, np.full((4, 2), np.nan, np.float32), np.eye(4)[:, :2], 0)
    assert own.metrics(("roc_auc", "recall")) == {"roc_auc": 0.5, "recall": 1.0}


def test_every_output_is_reported_with_the_rows_that_have_it(sets: Prepared, values: Prepared) -> None:
    outputs, targets = _scored(60, 3)
    report = output_report(Task.MULTILABEL, outputs, targets, sets.preprocessor)
    assert [(name, rows) for name, rows, _ in report] == list(zip("abc", targets.sum(axis=0).tolist(), strict=True))
    numbers = outputs[:, :2]
    listed = evaluate(Task.REGRESSION, numbers, numbers[::-1], values.preprocessor, each=True)
    for name, rows, own in output_report(Task.REGRESSION, numbers, numbers[::-1], values.preprocessor):
        assert rows == 60
        assert own == {metric: listed[f"{metric}({name})"] for metric in own}
    assert output_report(Task.MULTILABEL, outputs[:0], targets[:0], sets.preprocessor) == []


def test_a_metric_of_one_label_is_that_of_its_report(sets: Prepared, values: Prepared) -> None:
    outputs, targets = _scored(60, 3)
    _, _, own = output_report(Task.MULTILABEL, outputs, targets, sets.preprocessor)[1]
    for metric in METRICS[Task.MULTILABEL]:
        metric_of_label = single_metric(metric, Task.MULTILABEL, outputs, targets, sets.preprocessor, label="b")
        assert metric_of_label == own[METRIC_OF_LABEL[metric]]
    numbers, actual = outputs[:, :2], outputs[::-1, :2]
    _, _, second = output_report(Task.REGRESSION, numbers, actual, values.preprocessor)[1]
    for metric, value in second.items():
        metric_of_label = single_metric(metric, Task.REGRESSION, numbers, actual, values.preprocessor, label="2")
        assert metric_of_label == pytest.approx(value)
