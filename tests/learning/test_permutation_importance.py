"""Importance of columns: that of raw columns, equal for equal seeds, and bounded where a training stores it."""

import numpy as np
import pytest
from sklearn.inspection import permutation_importance as sklearn_importance

from indb_tensile.job import Task
from indb_tensile.learning.evaluation.model_metrics import evaluate
from indb_tensile.learning.evaluation.permutation_importance import (
    Importance,
    importance_of,
    permutation_importance,
    permuted_columns,
)
from indb_tensile.learning.evaluation.single_metric import single_metric
from indb_tensile.learning.models.model_predictor import ModelPredictor
from indb_tensile.learning.reports import held_out_importance
from indb_tensile.learning.reports.held_out_importance import stored_importance
from indb_tensile.learning.storage.row_sample import RowSample
from indb_tensile.learning.training.preparation import assemble
from indb_tensile.learning.training.prepared_training import Prepared
from indb_tensile.request.task_rules import METRICS
from tests.learning.tables import bundle, spec, table, train


@pytest.fixture(scope="module")
def telling() -> Prepared:
    """A trained regression: `x` tells the target, `kind` some of it, `noise` nothing."""
    source = np.random.default_rng(0)
    rows = [
        (i, float(x), ("a", "b", "c")[i % 3], float(z), 3 * float(x) + (i % 3 == 1))
        for i, (x, z) in enumerate(source.normal(size=(400, 2)))
    ]
    described = [("id", "int"), ("x", "double precision"), ("kind", "text"), ("noise", "double precision")]
    telling = assemble(
        table([*described, ("y", "double precision")], rows),
        spec("y", Task.REGRESSION, hyperparams={"epochs": 30, "batch_size": 32}),
    )
    train(telling)
    return telling


def test_columns_that_tell_the_target_matter_and_noise_does_not(telling: Prepared) -> None:
    figure = stored_importance(bundle(telling), telling.held_out, "r2")
    importance = {row[0]: row[1] for row in figure["rows"]}
    assert [row[0] for row in figure["rows"]] == ["x", "kind", "noise"]
    assert importance["x"] > 0.5 > importance["kind"] > 0.01 > abs(importance["noise"])
    assert {row[3] for row in figure["rows"]} == {"r2"}
    assert figure == stored_importance(bundle(telling), telling.held_out, "r2"), "equal inputs give equal figures"


def test_importance_equals_that_of_scikit_learn_for_the_same_permutations(telling: Prepared) -> None:
    """Its permutations are its own, so the means of many are compared."""
    predictor = ModelPredictor(bundle(telling))
    x = predictor.preprocessor.transform(telling.held_out)
    targets = predictor.preprocessor.target.encode(telling.held_out["y"])

    def r2(outputs: np.ndarray) -> float:
        return single_metric("r2", Task.REGRESSION, outputs, targets, predictor.preprocessor)

    importance = permutation_importance(
        predictor.outputs, r2, x, predictor.preprocessor, metric="r2", repeats=100, seed=1
    )

    class Wrapped:
        def fit(self) -> None: ...

    expected = sklearn_importance(
        Wrapped(), x, targets, scoring=lambda _, rows, __: r2(predictor.outputs(rows)), n_repeats=100, random_state=0
    )
    place = predictor.preprocessor.positions["x"][0]
    assert importance[0].feature == "x"
    assert importance[0].importance == pytest.approx(expected.importances_mean[place], rel=0.1)
    assert importance[0].deviation == pytest.approx(expected.importances_std[place], rel=0.3)


def test_permuting_an_encoded_column_is_permuting_the_raw_one(telling: Prepared) -> None:
    preprocessor = telling.preprocessor
    x = preprocessor.transform(telling.held_out)
    for place, (name, (rows,)) in enumerate(permuted_columns(x, preprocessor, 1, 5)):
        order = np.random.default_rng([5, place]).permutation(len(x))
        raw = {**telling.held_out, name: telling.held_out[name].take(order)}
        assert np.array_equal(rows.array(), preprocessor.transform(raw))
        assert np.array_equal(np.concatenate([rows[:7].array(), rows[7:].array()]), rows.array())
        assert np.array_equal(rows[3], rows.array()[3])


def test_importance_has_the_sign_of_a_loss_whatever_the_direction_of_the_metric() -> None:
    assert importance_of("a", 1.0, [0.5, 0.75], higher_is_better=True) == Importance("a", 0.375, 0.125)
    assert importance_of("a", 2.0, [5.0, 5.0], higher_is_better=False) == Importance("a", 3.0, 0.0)


@pytest.mark.parametrize("task", [task for task in Task if task not in (Task.FORECAST, Task.ANOMALY, Task.PAIRS)])
def test_a_single_metric_equals_that_of_all(task: Task, telling: Prepared) -> None:
    source = np.random.default_rng(0)
    if task is Task.REGRESSION:
        outputs, targets = source.normal(size=(2, 60, 1)).astype(np.float32)
    else:
        several = task is Task.MULTILABEL
        outputs, targets = (
            source.normal(size=(60, 3)),
            source.integers(0, 2 if several else 3, (60, 3) if several else 60),
        )
    values = evaluate(task, outputs, targets, telling.preprocessor)
    own = {name: single_metric(name, task, outputs, targets, telling.preprocessor) for name in METRICS[task]}
    assert own == pytest.approx(values)


def test_a_large_network_stores_no_importance(telling: Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_out_importance, "MOST_PRODUCTS", 100_000)
    assert stored_importance(bundle(telling), telling.held_out, "r2") == {
        "reason": "to permute 3 columns takes too long with this network"
    }
    none = {name: column.part(0, 0) for name, column in telling.held_out.items()}
    assert stored_importance(bundle(telling), none, "r2") == {"reason": "no row is held out"}


@pytest.mark.parametrize("architecture", ["auto", "ft_transformer"])
def test_every_number_of_an_encoded_row_belongs_to_one_column(architecture: str) -> None:
    rows = [
        (i, i / 3, f"c{i % 4}", None if i % 9 == 0 else i % 5, f"2024-01-{i % 28 + 1:02}", [i % 3, i % 7], i * 0.5)
        for i in range(60)
    ]
    described = [("id", "int"), ("a", "double precision"), ("city", "text"), ("n", "int"), ("day", "date")]
    options = {"missing": {"a": "indicator", "n": "indicator", "day": "indicator"}}
    prepared = assemble(
        table([*described, ("v", "real[]"), ("y", "double precision")], rows),
        spec("y", Task.REGRESSION, preprocess=options, architecture={"type": architecture}),
    )
    positions = prepared.preprocessor.positions
    assert list(positions) == list(prepared.preprocessor.recipe.features)
    assert sorted(np.concatenate(list(positions.values()))) == list(range(len(prepared.preprocessor.outputs)))
    for name, own in positions.items():
        assert {prepared.preprocessor.outputs[place].partition(name)[0] for place in own} == {""}


def test_a_sample_has_bounded_size_and_equal_chances() -> None:
    chosen = np.zeros(40)
    for seed in range(300):
        sample = RowSample(seed, most_rows=10)
        for begin in range(0, 40, 7):
            sample.add([(np.full(2, i, np.float32), i) for i in range(begin, min(40, begin + 7))])
        x, targets = sample.arrays()
        assert (len(sample), x.shape, np.array_equal(x[:, 0], targets)) == (40, (10, 2), True)
        chosen[targets] += 1
    assert chosen.min() > 45
    assert chosen.max() < 105  # 75 are expected
