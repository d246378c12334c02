"""Anomalies: errors of reconstructed columns become scores, flags and contributions, and labels judge them alone."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, roc_auc_score

from indb_tensile.errors import DataError, RequestError
from indb_tensile.job import JobSpec, Relation, Task
from indb_tensile.learning.encoding.anomaly_scale import AnomalyScale, label_metrics
from indb_tensile.learning.models.artifacts import ModelBundle
from indb_tensile.learning.models.model_predictor import ModelPredictor
from indb_tensile.learning.networks.architectures import build
from indb_tensile.learning.storage.columns import TableData
from indb_tensile.learning.training.boosted_baseline import BaselineRows, baseline_figure, why_no_baseline
from indb_tensile.learning.training.preparation import assemble
from indb_tensile.learning.training.prepared_training import Prepared
from tests.learning.tables import bundle, table

SCALE = AnomalyScale(parts=("a", "b", "a"), contamination=0.25)
DESCRIBED = [("id", "int"), ("size", "double precision"), ("kind", "text"), ("odd", "boolean")]


def rows(label: Any = None) -> TableData:
    return table(DESCRIBED, [(n, float(n % 10), "even" if n % 2 else "odd", label) for n in range(60)])


def prepared(read: TableData, target: str = "", **options: Any) -> Prepared:
    spec = JobSpec(
        model="m",
        relation=Relation(oid=1, schema="public", name="t"),
        target=target,
        task=Task.ANOMALY,
        architecture={"type": "auto"},
        exclude=() if target else ("odd",),
        **options,
    )
    return assemble(read, spec)


def test_scores_are_shares_of_rows_with_less_error_and_go_on_beyond_them() -> None:
    errors = np.linspace(0, 1, 400)[:, None].repeat(6, axis=1).astype(np.float32)
    scale = SCALE.fitted(errors, errors)
    scores = scale.scores(errors)
    assert np.all(np.diff(scores) >= 0)
    assert scores[[0, -1]].tolist() == [0.0, pytest.approx(1 - 1 / 401)]
    beyond = scale.scores(np.array([[2.0] * 6, [9.0] * 6, [np.inf, 1, 1, 1, 1, 1]]))
    assert scores[-1] < beyond[0] < beyond[1] < beyond[2] == 1.0
    assert scale.flags(scores).sum() == 100


def test_a_column_is_compared_with_its_usual_error_and_its_parts_are_added_up() -> None:
    errors = np.tile(np.array([1.0, 100.0, 3.0, 1.0, 2.0, 1.0], np.float32), (200, 1))
    row = np.array([[1.0, 200.0, 9.0, 1.0, 8.0, 3.0]])
    scale = SCALE.fitted(errors, errors[:0])
    columns, added = scale.contributions(row)
    a, b = (1 + np.sqrt(3) + 1 + np.sqrt(3)) / 6, (np.sqrt(2) + np.sqrt(4)) / 6
    assert (columns, added.tolist()) == (["a", "b"], [[pytest.approx(a), pytest.approx(b)]])
    assert scale.raw(row)[0] == pytest.approx(a + b)
    assert scale.metrics(row, np.full((1, 1), -1.0)) == {"reconstruction_error": 70.0}


def test_training_rows_are_the_reference_where_few_rows_validate() -> None:
    assert SCALE.fitted(np.ones((99, 6)), np.ones((300, 6))).rows == 300
    assert SCALE.fitted(np.ones((100, 6)), np.ones((300, 6))).rows == 100


def test_metrics_by_labels_are_those_of_scikit_learn_and_unknown_labels_take_no_part() -> None:
    random = np.random.default_rng(0)
    labels, raw = random.integers(-1, 2, 300).astype(np.float32), random.random(300)
    known = labels >= 0
    assert label_metrics(raw, labels[:, None]) == {
        "roc_auc": pytest.approx(roc_auc_score(labels[known], raw[known])),
        "average_precision": pytest.approx(average_precision_score(labels[known], raw[known])),
    }
    tied = np.round(raw, 1)
    assert label_metrics(tied, labels)["average_precision"] == pytest.approx(
        average_precision_score(labels[known], tied[known])
    )
    assert label_metrics(raw, np.ones((300, 1))) == {}


def test_columns_become_parts_of_a_row_and_labels_are_no_feature() -> None:
    job = prepared(rows(), hyperparams={"contamination": 0.2})
    assert job.architecture == {"type": "autoencoder", "widths": [1, 4], "divisors": [1, 1]}
    assert job.preprocessor.target.anomaly == AnomalyScale(parts=("size", "kind"), contamination=0.2)
    assert job.train.y.tolist() == [[-1.0]] * job.train.rows
    assert (job.train.rows + job.valid.rows + job.test.rows, job.unlabeled_rows) == (60, 0)
    labeled = prepared(rows(True), "odd")
    assert labeled.preprocessor.recipe.features == ("size", "kind")
    assert set(labeled.train.y.flatten().tolist()) == {1.0}


def test_labels_change_no_weight() -> None:
    job = prepared(rows())
    x = job.train.x[:8]
    gradients = []
    for label in (-1.0, 1.0):
        job.module.eval()
        job.module.zero_grad()
        job.loss(job.module(x), torch.full((8, 1), label)).backward()
        gradients.append([own.grad.clone() for own in job.module.parameters() if own.grad is not None])
    assert all(torch.equal(negative, positive) for negative, positive in zip(*gradients, strict=True))


def test_a_stored_model_scores_rows_of_sql_and_tables_alike() -> None:
    job = prepared(rows(), hyperparams={"contamination": 0.1})
    own = bundle(job)
    outputs = ModelPredictor(own).outputs(job.train.x.numpy())
    assert job.preprocessor.target.anomaly is not None
    target = replace(job.preprocessor.target, anomaly=job.preprocessor.target.anomaly.fitted(outputs[:0], outputs))
    own = replace(own, preprocessor=job.preprocessor.with_target(target))
    predictor = ModelPredictor(ModelBundle.load(own.to_json(), own.to_bytes()))
    (known, strange) = predictor.predict_rows([{"size": 4.0, "kind": "odd"}, {"size": 400.0, "kind": "none"}])
    assert known.label == "false"
    assert (strange.label, strange.labels, len(strange.vector)) == ("true", ("true",), 2)
    assert known.value is not None
    assert strange.value is not None
    assert 0 <= known.value < strange.value <= 1
    whole = predictor.predict_columns(rows().columns)
    assert len(whole) == 60
    assert predictor.evaluate_rows([{"size": 4.0, "kind": "odd"}]).keys() == {"reconstruction_error"}


def test_an_isolation_forest_is_the_baseline_where_labels_judge() -> None:
    read = table(DESCRIBED, [(n, 90.0 if n % 6 == 0 else n % 10, "even", n % 6 == 0) for n in range(90)])
    job = prepared(read, "odd", split={"seed": 0, "stratify": "odd"})
    assert why_no_baseline(job) == ""
    figure = baseline_figure(BaselineRows.from_bytes(BaselineRows.of(job).to_bytes()))
    assert figure == {
        "metrics": {"roc_auc": 1.0, "average_precision": 1.0},
        "name": "isolation forest",
        "train_rows": job.train.rows,
        "test_rows": job.test.rows,
    }
    assert why_no_baseline(prepared(rows())).startswith("the rows that are held out have no labels")


def test_labels_that_are_not_0_and_1_are_refused() -> None:
    described = [("id", "int"), ("size", "double precision"), ("odd", "int")]
    with pytest.raises(DataError, match='target "odd" is 7 in row 1, and labels of anomalies are 0 and 1'):
        prepared(table(described, [(n, float(n), 7) for n in range(30)]), "odd")
    with pytest.raises(RequestError, match="anomaly cannot predict"):
        prepared(rows(), "kind")


def test_wider_parts_are_summed_or_averaged() -> None:
    declared = {
        "type": "autoencoder",
        "hidden": [],
        "code": 2,
        "noise": 0.0,
        "widths": [1, 2, 3],
        "divisors": [1, 1, 3],
    }
    module = build(declared, (6,), 6, task=Task.ANOMALY).eval()
    network, x = module.get_submodule("network"), torch.randn(5, 6)
    with torch.no_grad():
        module.get_parameter("centre").copy_(torch.arange(6.0))
        both = (network(x) - x).square(), (torch.arange(6.0) - x).square()
        parts = [part for own in both for part in (own[:, 0], own[:, 1:3].sum(1), own[:, 3:].mean(1))]
        assert torch.allclose(module(x), torch.stack(parts, dim=1))
