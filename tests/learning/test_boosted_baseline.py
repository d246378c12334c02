"""The baseline is what boosting trains on the same rows, for every task, and its work is bounded."""

from dataclasses import replace
from typing import Any

import pytest

from indb_tensile.bench.harness.tables.sample_tables import make_table
from indb_tensile.job import JobSpec, Relation, Task
from indb_tensile.learning.evaluation.model_metrics import evaluate
from indb_tensile.learning.networks.estimators import Estimator
from indb_tensile.learning.training import boosted_baseline
from indb_tensile.learning.training.boosted_baseline import BaselineRows, baseline_figure, why_no_baseline
from indb_tensile.learning.training.preparation import assemble
from indb_tensile.learning.training.prepared_training import Prepared
from tests.learning import test_estimators, test_several_targets


def prepared(target: str, task: Task, features: tuple[str, ...] = ("x", "kind"), **more: Any) -> Prepared:
    table = test_estimators.columns(300) if features != ("x",) else test_several_targets.columns()
    spec = JobSpec(
        model="m",
        relation=Relation(oid=1, schema="public", name="t"),
        target=target,
        task=task,
        architecture=more.pop("architecture", {"type": "mlp"}),
        features=features,
        **more,
    )
    return assemble(make_table(table), spec)


@pytest.mark.by_day("hyperparams0", "hyperparams1-value")
@pytest.mark.parametrize(("target", "task"), [("label", Task.CLASSIFICATION), ("value", Task.REGRESSION)])
@pytest.mark.parametrize("hyperparams", [{}, {"weight": "weight"}])
def test_a_baseline_has_the_metrics_of_boosting_on_the_same_rows(
    target: str, task: Task, hyperparams: dict[str, Any]
) -> None:
    made = prepared(target, task, hyperparams=hyperparams, architecture={"type": "residual_mlp"})
    assert why_no_baseline(made) == ""
    figure = baseline_figure(BaselineRows.from_bytes(BaselineRows.of(made).to_bytes()))
    boosting = prepared(target, task, hyperparams=hyperparams, architecture={"type": "boosting"})
    assert isinstance(boosting.module, Estimator)
    boosting.module.fit(boosting.train, boosting.valid, task, seed=0, threads=1)
    outputs = boosting.module(boosting.test.x).numpy()
    own = evaluate(task, outputs, boosting.test.targets.numpy(), boosting.preprocessor)
    assert figure == {"metrics": own, "train_rows": made.train.rows, "test_rows": made.test.rows}


@pytest.mark.parametrize(
    ("target", "task", "targets"),
    [("v", Task.REGRESSION, ()), ("tags", Task.MULTILABEL, ()), ('["f", "g"]', Task.MULTILABEL, ("f", "g"))],
)
def test_each_value_and_each_label_has_a_boosting_of_its_own(
    target: str, task: Task, targets: tuple[str, ...]
) -> None:
    made = prepared(target, task, ("x",), targets=targets, hyperparams={"weight": "b"})
    figure = baseline_figure(BaselineRows.from_bytes(BaselineRows.of(made).to_bytes()))
    assert set(figure["metrics"]) >= ({"r2", "rmse"} if task is Task.REGRESSION else {"f1_micro", "log_loss"})
    assert figure["metrics"]["r2" if task is Task.REGRESSION else "recall_micro"] > 0.2


def test_a_baseline_predicts_counts_in_their_own_unit() -> None:
    made = prepared("weight", Task.REGRESSION, hyperparams={"loss": "poisson"})
    assert baseline_figure(BaselineRows.of(made))["metrics"]["rmse"] < 2


def test_the_rows_are_sampled_from_the_whole_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boosted_baseline, "MOST_ROWS", 60)
    made = prepared("value", Task.REGRESSION)
    rows = BaselineRows.of(made)
    assert (rows.train.rows, rows.test.rows) == (60, min(60, made.test.rows))
    assert rows.train.x[0].equal(made.train.x[0])
    assert rows.train.x[59].equal(made.train.x[59 * made.train.rows // 60])


def test_a_training_without_a_baseline_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    made = prepared("value", Task.REGRESSION)
    off = prepared("value", Task.REGRESSION, hyperparams={"baseline": False})
    boosting = prepared("value", Task.REGRESSION, architecture={"type": "boosting"})
    assert why_no_baseline(off) == "the hyper-parameter baseline is false"
    assert why_no_baseline(boosting) == "the model is one of boosting itself"
    assert "images" in why_no_baseline(replace(made, input_shape=(1, 2, 2)))
    assert "21 classes, values or labels" in why_no_baseline(replace(made, outputs=21))
    monkeypatch.setattr(boosted_baseline, "MOST_NUMBERS", 100)
    assert "takes too long" in why_no_baseline(made)
