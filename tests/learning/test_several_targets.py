"""Targets of several values and sets of labels are encoded, trained for, judged and predicted."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics

from indb_tensile.bench.harness.tables.sample_tables import make_table
from indb_tensile.errors import DataError, RequestError
from indb_tensile.job import JobSpec, Relation, Task
from indb_tensile.learning.decoding.jsonrows import column_of
from indb_tensile.learning.encoding.label_texts import array_element, label_sets
from indb_tensile.learning.encoding.target_columns import combined
from indb_tensile.learning.encoding.targets import LinkFunction, TargetEncoding, fit_target, labeled
from indb_tensile.learning.evaluation.model_metrics import evaluate
from indb_tensile.learning.metrics import vector_metrics
from indb_tensile.learning.models.artifacts import ModelBundle
from indb_tensile.learning.models.comparison import why_incomparable
from indb_tensile.learning.models.model_predictor import ModelPredictor
from indb_tensile.learning.storage.coded_texts import CodedTexts, TextCodes
from indb_tensile.learning.storage.columns import ColumnData, ColumnKind
from indb_tensile.learning.storage.row_storage import FileStorage
from indb_tensile.learning.training.preparation import assemble
from indb_tensile.learning.training.prepared_training import Prepared
from indb_tensile.learning.training.starting_weights import StartingWeights
from indb_tensile.request.task_rules import named_targets, target_names, target_text

DRAWN = np.random.default_rng(3)
ROWS = 120
NONE = np.zeros(ROWS, np.bool_)


def columns() -> dict[str, ColumnData]:
    """Return a feature, two numbers, two booleans, vectors and sets of labels. Two rows lack a target."""
    x = np.random.default_rng(3).normal(size=ROWS)
    absent = np.arange(ROWS) < 2
    sets = [["up"] * int(value > 0) + ["odd"] * (row % 2) for row, value in enumerate(x)]
    return {
        "x": ColumnData(kind=ColumnKind.FLOAT, values=x, missing=NONE),
        "a": ColumnData(kind=ColumnKind.FLOAT, values=10 + 3 * x, missing=absent),
        "b": ColumnData(kind=ColumnKind.INTEGER, values=np.arange(ROWS), missing=NONE),
        "f": ColumnData(kind=ColumnKind.BOOLEAN, values=x > 0, missing=NONE),
        "g": ColumnData(kind=ColumnKind.BOOLEAN, values=np.arange(ROWS) % 2 == 1, missing=absent),
        "v": ColumnData(kind=ColumnKind.ARRAY, values=np.stack([x, x**2, np.ones(ROWS)], axis=1), missing=NONE),
        "tags": column_of("tags", ColumnKind.LABELS, sets),
    }


def prepared(target: str, task: Task, targets: tuple[str, ...] = (), **more: Any) -> Prepared:
    return assemble(make_table(columns()), spec_of(target, task, targets, **more))


def spec_of(target: str, task: Task, targets: tuple[str, ...] = (), **more: Any) -> JobSpec:
    return JobSpec(
        model="m",
        relation=Relation(oid=1, schema="public", name="t"),
        target=target,
        targets=targets,
        task=task,
        architecture=more.pop("architecture", {"type": "mlp", "hidden": [8]}),
        features=("x",),
        **more,
    )


def predictor(made: Prepared) -> ModelPredictor:
    bundle = ModelBundle(
        architecture=made.architecture,
        input_shape=made.input_shape,
        outputs=made.outputs,
        task=made.task,
        preprocessor=made.preprocessor,
        weights=dict(made.module.state_dict()),
    )
    return ModelPredictor.load(bundle.to_json(), bundle.to_bytes())


@pytest.mark.parametrize(
    ("target", "task", "targets", "names"),
    [
        ('["a", "b"]', Task.REGRESSION, ("a", "b"), ("a", "b")),
        ("v", Task.REGRESSION, (), ("1", "2", "3")),
        ('["f", "g"]', Task.MULTILABEL, ("f", "g"), ("f", "g")),
        ("tags", Task.MULTILABEL, (), ("odd", "up")),
    ],
)
@pytest.mark.parametrize("weight", [{}, {"weight": "b"}])
def test_a_target_of_several_has_an_output_for_each_and_is_stored(
    target: str, task: Task, targets: tuple[str, ...], names: tuple[str, ...], weight: dict[str, str]
) -> None:
    made = prepared(target, task, targets, hyperparams=weight if "b" not in targets else {})
    own = made.preprocessor.target
    assert (own.values or own.names, own.source_columns) == (names, targets or (target,))
    assert made.train.y.shape[1] == len(names) + bool(weight and "b" not in targets)
    assert made.unlabeled_rows == (2 if targets else 0)
    loaded = predictor(made)
    x, y = made.test.x, made.test.targets
    loss = made.loss(made.module.eval()(x), made.test.y)
    assert (loss.shape, bool(loss > 0)) == ((), True)
    scored = evaluate(task, loaded.outputs(x.numpy()), y.numpy(), made.preprocessor, each=True)
    means = {name: value for name, value in scored.items() if "(" not in name}
    assert loaded.evaluate_columns(made.held_out) == pytest.approx(means)
    assert ("rmse(a)" in scored) == ("a" in names)
    (prediction,) = loaded.predict_rows([{"x": 0.5}])
    assert (prediction.value, len(prediction.values) or len(prediction.probabilities)) == (None, len(names))
    assert why_incomparable(made.preprocessor, made.preprocessor, made.held_out) == ""


def test_rows_from_sql_are_evaluated_as_those_of_a_table() -> None:
    made = prepared('["f", "g"]', Task.MULTILABEL, ("f", "g"))
    rows: list[dict[str, Any]] = [{"x": 0.1, "f": True, "g": False}, {"x": -2, "f": False, "g": True}]
    assert made.preprocessor.targets_of(rows).tolist() == [[1, 0], [0, 1]]
    with pytest.raises(RequestError, match='a row has no target column "g"'):
        made.preprocessor.targets_of([{"x": 1, "f": True}])
    with pytest.raises(DataError, match="is NULL in row 2"):
        made.preprocessor.targets_of([rows[0], rows[1] | {"g": None}])


def test_several_values_are_standardised_each_by_itself_and_restored() -> None:
    data = column_of("v", ColumnKind.ARRAY, [[1.0, 5.0, 7.0], [3.0, 5.0, 9.0]])
    target = fit_target("v", Task.REGRESSION, data, np.arange(2))
    assert (target.means, target.scales) == ((2.0, 5.0, 8.0), (1.0, 1.0, 1.0))
    assert target.encode(data).tolist() == [[-1, 0, -1], [1, 0, 1]]
    assert target.restore(target.encode(data)).tolist() == data.values.tolist()
    counts = column_of("v", ColumnKind.ARRAY, [[2.0, 0.0], [6.0, 0.0]])
    shares = fit_target("v", Task.REGRESSION, counts, np.arange(2), LinkFunction.LOG)
    assert (shares.means, shares.scales) == ((0.0, 0.0), (4.0, 1.0))
    assert shares.restore(np.zeros((1, 2))).tolist() == [[4.0, 1.0]]
    assert np.isfinite(shares.constant_output(np.array([1.0, 0.0]))).all()
    with pytest.raises(DataError, match=r"of shape \[2\], the model was trained on 3 elements"):
        target.encode(counts)


def test_labels_are_numbers_in_their_order_or_texts() -> None:
    sets = column_of("t", ColumnKind.LABELS, [[10, 9], [], [-1], None])
    target = fit_target("t", Task.MULTILABEL, sets.part(0, 3), np.arange(3))
    assert target.names == ("-1", "9", "10")
    assert target.encode(sets).tolist() == [[0, 1, 1], [0, 0, 0], [1, 0, 0], [0, 0, 0]]
    with pytest.raises(DataError, match='target "t", row 1: the model does not know the label 7'):
        target.encode(column_of("t", ColumnKind.LABELS, [[7]]))


@pytest.mark.parametrize(
    ("kind", "values", "task", "fault"),
    [
        (ColumnKind.ARRAY, [[1.0, 2.0], [1.0, 2.0]], Task.REGRESSION, "equal values in all 2 training rows"),
        (ColumnKind.ARRAY, [[[1.0]], [[2.0]]], Task.REGRESSION, r"arrays of shape \[1, 1\]"),
        (ColumnKind.ARRAY, [[1e200], [1.0]], Task.REGRESSION, "element 1 reaches 1e"),
        (ColumnKind.ARRAY, [[1.0], [2.0]], Task.MULTILABEL, "which multilabel cannot predict"),
        (ColumnKind.LABELS, [["a"], ["b"]], Task.REGRESSION, "which regression cannot predict"),
        (ColumnKind.LABELS, [[], []], Task.MULTILABEL, "no label in any of 2 rows"),
        (ColumnKind.LABELS, [["a"], ["a"]], Task.MULTILABEL, "the same labels in all 2 training rows"),
        (ColumnKind.LABELS, [[str(n) for n in range(1001)], []], Task.MULTILABEL, "1001 different labels"),
    ],
)
def test_a_target_of_several_that_cannot_be_learned_is_refused(
    kind: ColumnKind, values: list[Any], task: Task, fault: str
) -> None:
    data = column_of("y", kind, values)
    with pytest.raises(RequestError, match=fault):
        fit_target("y", task, data, np.arange(len(values)))


def test_columns_are_combined_and_a_row_that_lacks_one_has_no_target() -> None:
    whole = combined(columns(), ("a", "b"), "regression")
    assert (whole.kind, whole.shape, whole.missing.sum()) == (ColumnKind.ARRAY, (2,), 2)
    assert labeled("ab", whole).tolist() == list(range(2, ROWS))
    assert combined(columns(), ("f", "g"), "multilabel").values.dtype == np.bool_
    with pytest.raises(RequestError, match='needs numbers, and column "tags" is of kind labels'):
        combined(columns(), ("a", "tags"), "regression")
    with pytest.raises(RequestError, match="classification predicts one column, and target names 2"):
        combined(columns(), ("a", "b"), "classification")


@given(st.lists(st.text(min_size=1), min_size=2, max_size=5, unique=True))
def test_a_list_of_columns_is_read_from_its_text(names: list[str]) -> None:
    assert target_names(target_text(names)) == names
    assert named_targets(target_text(names), [target_text(names)]) == [target_text(names)]


@pytest.mark.parametrize("target", ["[", "[]", "[1]", '["a", "a"]', "[" * 5000, str([str(n) for n in range(101)])])
def test_a_list_that_names_no_columns_is_refused(target: str) -> None:
    with pytest.raises(RequestError) as caught:
        target_names(target.replace("'", '"'))
    assert caught.value.hint


def test_a_specification_whose_target_is_not_the_list_of_its_targets_is_refused() -> None:
    for target, targets in (("x", ("a", "b")), ('["a"]', ("a",)), ('["a", "b"]', ("b", "a"))):
        with pytest.raises(RequestError, match="the specification has the targets"):
            prepared(target, Task.REGRESSION, targets)


def test_metrics_of_values_are_those_of_scikit_learn_and_their_means() -> None:
    predicted, actual = DRAWN.normal(size=(2, 50, 3))
    actual[:, 2] = 4.0
    figures = vector_metrics.value_figures(predicted, actual)
    expected = {
        "r2": metrics.r2_score(actual, predicted, multioutput="raw_values"),
        "rmse": metrics.root_mean_squared_error(actual, predicted, multioutput="raw_values"),
        "mae": metrics.mean_absolute_error(actual, predicted, multioutput="raw_values"),
        "mape": metrics.mean_absolute_percentage_error(actual, predicted, multioutput="raw_values"),
        "median_absolute_error": metrics.median_absolute_error(actual, predicted, multioutput="raw_values"),
    }
    for name, own in expected.items():
        assert figures[name][:2] == pytest.approx(own[:2])
    assert np.isnan(figures["r2"][2])
    assert vector_metrics.mean_figures(figures)["r2"] == pytest.approx(expected["r2"][:2].mean())
    diverged = vector_metrics.mean_figures(vector_metrics.value_figures(predicted * np.nan, actual))
    assert (diverged["r2"], diverged["rmse"]) == (-np.inf, np.inf)
    assert vector_metrics.listed_figures(figures, [str(n) for n in range(101)]) == {}


def test_metrics_of_labels_are_those_of_scikit_learn() -> None:
    outputs = DRAWN.normal(size=(60, 4))
    actual = DRAWN.random((60, 4)) < [0.2, 0.5, 0.0, 1.0]
    values = vector_metrics.label_metrics(outputs, actual.astype(np.float32))
    predicted, chances = outputs >= 0, 1 / (1 + np.exp(-outputs))
    losses = [metrics.log_loss(actual[:, i], chances[:, i], labels=[False, True]) for i in range(4)]
    assert values == pytest.approx(
        {
            "f1_micro": metrics.f1_score(actual, predicted, average="micro"),
            "f1_macro": metrics.f1_score(actual, predicted, average="macro"),
            "precision_micro": metrics.precision_score(actual, predicted, average="micro"),
            "recall_micro": metrics.recall_score(actual, predicted, average="micro"),
            "subset_accuracy": metrics.accuracy_score(actual, predicted),
            "hamming_loss": metrics.hamming_loss(actual, predicted),
            "log_loss": np.mean(losses),
            "roc_auc": metrics.roc_auc_score(actual[:, :2], chances[:, :2], average="macro"),
        }
    )
    assert vector_metrics.label_metrics(outputs * np.nan, actual)["log_loss"] == pytest.approx(np.log(2))


@pytest.mark.parametrize("kind", ["boosting", "linear"])
def test_a_model_of_scikit_learn_predicts_one_value(kind: str) -> None:
    with pytest.raises(RequestError, match=f"architecture {kind} cannot predict several values"):
        prepared("v", Task.REGRESSION, architecture={"type": kind})
    with pytest.raises(RequestError, match="cannot predict sets of labels"):
        prepared("tags", Task.MULTILABEL, architecture={"type": kind})


def test_means_of_the_target_are_those_of_each_value_or_label() -> None:
    table = columns() | {"word": column_of("word", ColumnKind.TEXT, ["p", "q"] * 60)}
    for target, task in (("v", Task.REGRESSION), ("tags", Task.MULTILABEL)):
        spec = JobSpec(
            model="m",
            relation=Relation(oid=1, schema="public", name="t"),
            target=target,
            task=task,
            architecture={"type": "mlp"},
            features=("x", "word"),
            preprocess={"encode": "target"},
        )
        made = assemble(make_table(table), spec)
        assert made.input_shape == (1 + made.outputs,)


def test_sets_of_labels_are_written_as_postgresql_writes_arrays() -> None:
    assert [array_element(text) for text in ("a", "", "b c", 'd"e', "f\\g", "null", "h,i", "{j}")] == [
        *("a", '""', '"b c"', '"d\\"e"', '"f\\\\g"', '"null"', '"h,i"', '"{j}"')
    ]
    outputs = np.array([[1.0, -1.0], [-1.0, -1.0], [0.0, 2.0]])
    assert label_sets(["a", "b c"], outputs) == ["{a}", "{}", '{a,"b c"}']


def test_versions_of_other_targets_cannot_be_compared() -> None:
    two, three = (
        prepared("v", Task.REGRESSION).preprocessor,
        prepared('["a", "b"]', Task.REGRESSION, ("a", "b")).preprocessor,
    )
    assert "predicts" in why_incomparable(two, three, {"x"})
    assert TargetEncoding(name="y", task=Task.MULTILABEL, kind=ColumnKind.LABELS, labels=("a",)).outputs == 1


def in_file(data: ColumnData, storage: FileStorage) -> ColumnData:
    """Return the column with its values in a file, as a table that is larger than memory has them."""
    if data.kind in (ColumnKind.TEXT, ColumnKind.LABELS):
        codes = TextCodes()
        stored: Any = CodedTexts(written(codes.encode(data.values), storage), codes.texts())
    else:
        stored = written(data.values, storage)
    return replace(data, values=stored, missing=written(data.missing, storage))


def written(values: Any, storage: FileStorage) -> Any:
    whole = storage.array(len(values), values.shape[1:], values.dtype)
    whole.write(0, values)
    return whole.values


@pytest.mark.parametrize(
    ("target", "task", "targets"),
    [('["a", "b"]', Task.REGRESSION, ("a", "b")), ("v", Task.REGRESSION, ()), ("tags", Task.MULTILABEL, ())],
)
def test_a_table_in_a_file_is_prepared_like_one_in_memory(
    target: str, task: Task, targets: tuple[str, ...], tmp_path: Path
) -> None:
    expected = prepared(target, task, targets)
    storage = FileStorage(tmp_path)
    table = make_table(columns())
    table = replace(
        table, columns={name: in_file(own, storage) for name, own in table.columns.items()}, storage=storage
    )
    made = assemble(table, spec_of(target, task, targets), consume=True)
    assert made.preprocessor.to_json() == expected.preprocessor.to_json()
    for part, other in ((made.train, expected.train), (made.test, expected.test)):
        assert part.y.equal(other.y)
        assert part.x.equal(other.x)
    assert predictor(made).evaluate_columns(made.held_out) == predictor(expected).evaluate_columns(expected.held_out)
    assert made.report == expected.report


@pytest.mark.parametrize(("target", "task"), [("v", Task.REGRESSION), ("tags", Task.MULTILABEL)])
def test_a_target_keeps_the_scales_or_labels_of_the_version_that_a_training_starts_from(
    target: str, task: Task
) -> None:
    made = prepared(target, task)
    bundle = ModelBundle(
        architecture=made.architecture,
        input_shape=made.input_shape,
        outputs=made.outputs,
        task=made.task,
        preprocessor=made.preprocessor,
        weights=dict(made.module.state_dict()),
    )
    start = StartingWeights(model="m", version=1, bundle=bundle)
    own = made.preprocessor.target
    fitted = replace(own, name="new", means=tuple(0.0 for _ in own.means), labels=own.labels[:1])
    assert start.keep_target(fitted) == replace(own, name="new")
    longer = replace(fitted, values=(*own.values, "4"), labels=(*own.labels, "new"))
    assert start.keep_target(longer) == longer
