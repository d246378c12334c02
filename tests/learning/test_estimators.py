"""Check that models of scikit-learn predict the same as modules, from a stored version, and admit no foreign type."""

import zipfile
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import Ridge

from indb_tensile.bench.harness.tables.sample_tables import make_table
from indb_tensile.errors import DatabaseError, DataError
from indb_tensile.job import JobSpec, Relation, Task
from indb_tensile.learning.models.artifacts import ModelBundle
from indb_tensile.learning.models.model_predictor import ModelPredictor
from indb_tensile.learning.networks import architectures
from indb_tensile.learning.networks.estimators import Estimator, require_memory
from indb_tensile.learning.reports.held_out_importance import stored_importance
from indb_tensile.learning.storage.columns import ColumnData, ColumnKind
from indb_tensile.learning.training.preparation import assemble
from indb_tensile.learning.training.prepared_training import Prepared

KINDS = ("boosting", "linear")


def columns(rows: int) -> dict[str, ColumnData]:
    """Return a number and a text with missing values, and a label and a value that both decide."""
    drawn = np.random.default_rng(2)
    x, place = drawn.normal(size=rows), drawn.integers(0, 4, rows)
    none = np.zeros(rows, np.bool_)
    texts = np.array(["a", "b", "c", "d"], object)[place]
    label = np.array(["no", "yes", "maybe"], object)[(x > 0).astype(int) + (place == 2)]
    absent = drawn.random(rows) < 0.1
    return {
        "x": ColumnData(kind=ColumnKind.FLOAT, values=np.where(absent, np.nan, x), missing=absent),
        "kind": ColumnData(kind=ColumnKind.TEXT, values=texts, missing=drawn.random(rows) < 0.1),
        "weight": ColumnData(kind=ColumnKind.FLOAT, values=1.0 + place, missing=none),
        "label": ColumnData(kind=ColumnKind.TEXT, values=label, missing=none),
        "value": ColumnData(kind=ColumnKind.FLOAT, values=3.0 * x + place, missing=none),
    }


def prepared(kind: str, task: Task, rows: int = 600, **more: Any) -> Prepared:
    target = "label" if task is Task.CLASSIFICATION else "value"
    spec = JobSpec(
        model="m",
        relation=Relation(oid=1, schema="public", name="t"),
        target=target,
        task=task,
        architecture={"type": kind, **more.pop("architecture", {})},
        features=("x", "kind"),
        **more,
    )
    return assemble(make_table(columns(rows)), spec)


def fit(made: Prepared) -> Estimator:
    assert isinstance(made.module, Estimator)
    made.module.fit(made.train, made.valid, made.task, seed=made.settings.seed, threads=1)
    return made.module


def bundle(made: Prepared) -> ModelBundle:
    return ModelBundle(
        architecture=made.architecture,
        input_shape=made.input_shape,
        outputs=made.outputs,
        task=made.task,
        preprocessor=made.preprocessor,
        weights=made.module.state_dict(),
    )


@pytest.mark.by_day("regression-boosting", "linear")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("task", [Task.CLASSIFICATION, Task.REGRESSION])
def test_a_stored_model_predicts_as_the_fitted_one(kind: str, task: Task) -> None:
    made = prepared(kind, task)
    model = fit(made)
    stored = ModelPredictor.load(bundle(made).to_json(), bundle(made).to_bytes())
    x = made.test.x.numpy()
    own = (model.fitted.predict_proba if task is Task.CLASSIFICATION else model.fitted.predict)(x.reshape(len(x), -1))
    outputs = stored.outputs(x)
    if task is Task.CLASSIFICATION:
        np.testing.assert_allclose(np.exp(outputs), own, rtol=1e-5)
        assert stored.evaluate_columns(made.held_out)["accuracy"] > 0.8
    else:
        np.testing.assert_allclose(outputs[:, 0], own, rtol=1e-6)
        assert stored.evaluate_columns(made.held_out)["r2"] > 0.6
    rows = [{"x": 0.3, "kind": "b"}, {"x": None, "kind": None}, {"x": -1.0, "kind": "unknown"}]
    assert len(stored.predict_rows(rows)) == 3
    assert model.numbers > 4
    assert stored.outputs(x[:0]).shape == (0, made.outputs)


@pytest.mark.parametrize("kind", KINDS)
def test_the_importance_of_columns_is_stored_also_of_a_model_that_is_no_network(kind: str) -> None:
    made = prepared(kind, Task.REGRESSION)
    fit(made)
    figure = stored_importance(bundle(made), made.held_out, "r2")
    assert [row[0] for row in figure["rows"]] == ["x", "kind"]


@pytest.mark.parametrize("kind", KINDS)
def test_equal_seeds_give_equal_models_and_weights_of_rows_count(kind: str) -> None:
    once, again = (fit(prepared(kind, Task.REGRESSION)) for _ in range(2))
    weighted = fit(prepared(kind, Task.REGRESSION, hyperparams={"weight": "weight"}))
    x = prepared(kind, Task.REGRESSION).test.x
    assert torch.equal(once(x), again(x))
    assert not torch.equal(once(x), weighted(x))


def test_validation_rows_end_the_boosting_and_few_of_them_do_not() -> None:
    made = prepared("boosting", Task.REGRESSION, 4000, architecture={"patience": 5, "learning_rate": 0.5})
    assert isinstance(made.module, Estimator)
    fitted = made.module.fit(made.train, made.valid, made.task, seed=0, threads=1)
    assert len(fitted.valid_losses) == fitted.iterations < 500
    assert fitted.best_iteration == 1 + int(np.argmin(fitted.valid_losses))
    few = prepared("boosting", Task.REGRESSION, split={"valid_size": 0.0})
    assert isinstance(few.module, Estimator)
    assert few.module.fit(few.train, few.valid, few.task, seed=0, threads=1).iterations == 100


def test_a_class_without_a_training_row_is_never_predicted_and_one_class_is_refused() -> None:
    made = prepared("boosting", Task.CLASSIFICATION)
    kept = made.train.targets != 2
    part = type(made.train)(x=made.train.x[kept], y=made.train.y[kept], targets=made.train.targets[kept])
    assert isinstance(made.module, Estimator)
    made.module.fit(part, made.valid, made.task, seed=0, threads=1)
    outputs = made.module(made.test.x)
    assert outputs.shape[1] == 3
    assert (outputs.argmax(dim=1) != 2).all()
    of_one_class = made.train.targets == 0
    part = type(made.train)(
        x=made.train.x[of_one_class], y=made.train.y[of_one_class], targets=made.train.targets[of_one_class]
    )
    with pytest.raises(DataError, match="are of one class, which a boosting model refuses"):
        made.module.fit(part, made.valid, made.task, seed=0, threads=1)


def dumps(value: object, **options: Any) -> bytes:
    from skops import io  # its import takes a second of a processor, and every test process imports this module

    return io.dumps(value, **options)  # type: ignore[no-any-return]


class Foreign:
    """A type that skops can store, and that no stored model may have."""

    def __init__(self) -> None:
        self.a = 1


def test_a_foreign_type_and_broken_bytes_are_refused() -> None:
    module = architectures.build({"type": "linear"}, (3,), 1)
    for stored in (dumps(Foreign()), b"PK\x03\x04 not a model"):
        with pytest.raises(DatabaseError, match="the stored linear model cannot be read"):
            module.load_state_dict({"_extra_state": torch.frombuffer(bytearray(stored), dtype=torch.uint8)})


def test_rows_that_do_not_fit_into_memory_twice_are_refused() -> None:
    made = prepared("linear", Task.REGRESSION)
    require_memory("linear", (made.train, made.valid), 1 << 30)
    with pytest.raises(DataError, match=r"a linear model needs about .* for its copy of the rows"):
        require_memory("linear", (made.train, made.valid), 1000)


def with_state(kind: str, stored: bytes) -> None:
    Estimator(kind, {}, 2).set_extra_state(torch.frombuffer(bytearray(stored), dtype=torch.uint8))


def boosting() -> HistGradientBoostingRegressor:
    x = np.random.default_rng(3).integers(0, 9, (80, 2)).astype(float)
    return HistGradientBoostingRegressor(max_iter=2, categorical_features=[1]).fit(x, x @ [1.0, 2.0])


@pytest.mark.parametrize("kind", KINDS)
def test_another_estimator_of_scikit_learn_is_refused(kind: str) -> None:
    with pytest.raises(DatabaseError, match="it is of the type CountVectorizer"):
        with_state(kind, dumps(CountVectorizer(input="filename")))


def test_a_compressed_state_is_refused_before_it_is_read() -> None:
    with pytest.raises(DatabaseError, match="is compressed"):
        with_state("linear", dumps(Ridge().fit([[0.0], [1.0]], [0.0, 1.0]), compression=zipfile.ZIP_DEFLATED))


@pytest.mark.parametrize(
    ("field", "value", "fault"),
    [
        ("left", 1_000_000, "a left child that does not follow it"),
        ("right", 0, "a right child that does not follow it"),
        ("feature_idx", 2, "a column that is not there"),
        ("feature_idx", -1, "a column that is not there"),
        ("bitset_idx", 1_000_000, "a set of categories that is not there"),
    ],
)
def test_trees_with_places_outside_themselves_are_refused(field: str, value: int, fault: str) -> None:
    fitted = boosting()
    with_state("boosting", dumps(fitted))
    nodes = fitted._predictors[0][0].nodes
    nodes["is_categorical"][0] = 1
    nodes[field][0] = value
    with pytest.raises(DatabaseError, match=fault):
        with_state("boosting", dumps(fitted))


def test_categories_that_no_set_holds_are_refused() -> None:
    fitted = boosting()
    mapper = fitted._bin_mapper
    mapper.bin_thresholds_[int(np.argmax(mapper.is_categorical_))][0] = 1e6
    with pytest.raises(DatabaseError, match="a category that no set can hold"):
        with_state("boosting", dumps(fitted))
