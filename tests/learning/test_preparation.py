"""A job request and a table give everything that a training loop needs."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from indb_tensile.errors import DataError, MissingError, RequestError
from indb_tensile.job import Relation, Task
from indb_tensile.learning.batches.batch_order import batch_plan, batches, ordered_batches
from indb_tensile.learning.encoding.encoded_parts import Part
from indb_tensile.learning.networks.hyperparams import TrainingSettings
from indb_tensile.learning.relation import datasets
from indb_tensile.learning.training.preparation import assemble, prepare
from tests.conftest import Database
from tests.learning.tables import sample, score, spec, table, train


def part(rows: int) -> Part:
    return Part(x=torch.zeros(rows, 1), y=torch.zeros(rows), targets=torch.zeros(rows))


def parsed(**options: Any) -> TrainingSettings:
    return TrainingSettings.parse(options, 300)


@pytest.mark.parametrize(
    ("name", "task", "epochs", "metric", "least"),
    [
        pytest.param("digits", Task.CLASSIFICATION, 8, "accuracy", 0.95, marks=pytest.mark.nightly),
        ("breast_cancer", Task.CLASSIFICATION, 40, "accuracy", 0.93),
        ("diabetes", Task.REGRESSION, 40, "r2", 0.35),
    ],
)
def test_the_default_network_learns_the_sample_data(
    name: str, task: Task, epochs: int, metric: str, least: float
) -> None:
    prepared = assemble(sample(name), spec(datasets.target(name), task, hyperparams={"epochs": epochs}))
    before = score(prepared, prepared.test)[metric]
    train(prepared)
    assert before < least <= score(prepared, prepared.test)[metric]


def test_the_parts_of_a_prepared_job_fit_together() -> None:
    prepared = assemble(sample("digits"), spec("label"))
    assert prepared.architecture["type"] == "cnn"
    assert (prepared.input_shape, prepared.outputs, prepared.task) == ((1, 8, 8), 10, Task.CLASSIFICATION)
    parts = (prepared.train, prepared.valid, prepared.test)
    assert sum(part.rows for part in parts) == 1797
    assert {part.x.dtype for part in parts} == {torch.float32}
    assert {part.y.dtype for part in parts} == {torch.int64}
    assert prepared.train.x.shape == (prepared.train.rows, 1, 8, 8)
    assert len(prepared.held_out["label"].values) == prepared.test.rows
    assert isinstance(prepared.loss, nn.CrossEntropyLoss)
    assert (prepared.metric, prepared.unlabeled_rows) == ("accuracy", 0)


IRIS = sample("iris")


@pytest.mark.parametrize(
    ("options", "stops", "chosen"),
    [
        ({}, True, ("batch_size", "epochs", "early_stop")),
        ({"early_stop": {}}, True, ("batch_size", "epochs")),
        ({"early_stop": {"on": False}}, False, ("batch_size", "epochs")),
        ({"hyperparams": {"epochs": 9}}, False, ("batch_size", "early_stop")),
        ({"hyperparams": {"epochs": 9}, "early_stop": {}}, True, ("batch_size",)),
        ({"hyperparams": {"batch_size": 9}}, True, ("epochs", "early_stop")),
        ({"split": {"valid_size": 0}}, False, ("batch_size", "epochs", "early_stop")),
        ({"split": {"valid_size": 0.001}}, False, ("batch_size", "epochs", "early_stop")),
    ],
)
def test_training_stops_early_unless_epochs_are_given_or_few_rows_validate(
    options: dict[str, Any], stops: bool, chosen: tuple[str, ...]
) -> None:
    prepared = assemble(IRIS, spec("target", architecture={"type": "mlp"}, **options))
    assert (prepared.early_stop.patience is not None, prepared.chosen) == (stops, chosen)
    assert prepared.settings == TrainingSettings.parse(options.get("hyperparams", {}), prepared.train.rows)
    automatic = assemble(IRIS, spec("target", **options))
    assert automatic.chosen == chosen + (("ensemble",) if "epochs" in chosen else ())


def test_early_stopping_without_validation_rows_is_refused() -> None:
    with pytest.raises(RequestError, match="early_stop needs validation rows, and the split's valid_size is 0"):
        assemble(IRIS, spec("target", early_stop={}, split={"valid_size": 0}))
    few = table([("a", "double precision"), ("y", "double precision")], [(1.0, 1.0), (2.0, 2.0), (3.0, 4.0)])
    with pytest.raises(DataError, match="none of the rows falls to the validation part") as caught:
        assemble(few, spec("y", Task.REGRESSION, early_stop={"patience": 2}))
    assert '{"on": false}' in caught.value.hint
    assemble(IRIS, spec("target", early_stop={"on": False}, split={"valid_size": 0}))


def test_a_regression_has_one_output_and_a_column_of_targets() -> None:
    prepared = assemble(sample("diabetes"), spec("target", Task.REGRESSION, architecture={"type": "mlp"}))
    assert prepared.train.y.shape == (prepared.train.rows, 1)
    assert prepared.train.y.dtype == torch.float32
    assert float(prepared.train.y.mean()) == pytest.approx(0, abs=1e-6)
    assert isinstance(prepared.loss, nn.MSELoss)


def test_the_same_specification_prepares_the_same_bits() -> None:
    first, second = (assemble(sample("iris"), spec("target", hyperparams={"seed": 5})) for _ in range(2))
    assert torch.equal(first.train.x, second.train.x)
    for a, b in zip(first.module.parameters(), second.module.parameters(), strict=True):
        assert torch.equal(a, b)


def test_rows_without_a_target_are_in_no_part() -> None:
    rows = [(i, float(i), None if i % 5 == 0 else float(i)) for i in range(100)]
    described = [("id", "bigint"), ("a", "double precision"), ("y", "double precision")]
    prepared = assemble(table(described, rows), spec("y", Task.REGRESSION))
    assert prepared.unlabeled_rows == 20
    assert prepared.train.rows + prepared.valid.rows + prepared.test.rows == 80
    assert torch.isfinite(prepared.train.y).all()


def test_a_missing_required_value_is_reported_with_its_row_in_the_table() -> None:
    rows = [(i, None if i in (3, 30) else float(i), None if i == 3 else "ab"[i % 2]) for i in range(40)]
    with pytest.raises(DataError, match='column "a", row 31: the value is missing') as caught:
        assemble(table(NUMBERS, rows), spec("y", preprocess={"missing": {"a": "error"}}))
    assert caught.value.detail == "1 rows have no finite value there."


@given(st.integers(2, 300), st.integers(1, 64), st.integers(0, 5), st.integers(0, 3))
def test_an_epoch_has_each_row_once_and_omits_at_most_one(rows: int, size: int, epoch: int, seed: int) -> None:
    settings = parsed(batch_size=size, seed=seed)
    listed = list(batches(part(rows), epoch, settings))
    plan = batch_plan(rows, settings)
    assert [len(batch) for batch in listed] == [plan.full_rows] * plan.full + [plan.tail_rows] * (plan.tail_rows > 0)
    assert plan.steps == len(listed)
    assert all(len(batch) > 1 for batch in listed) or size == 1
    seen = torch.cat(listed).tolist()
    assert len(seen) == len(set(seen)) >= rows - 1
    assert all(torch.equal(a, b) for a, b in zip(listed, batches(part(rows), epoch, settings), strict=True))


def test_epochs_and_seeds_shuffle_differently() -> None:
    def first(epoch: int, seed: int) -> list[int]:
        return next(batches(part(100), epoch, parsed(batch_size=100, seed=seed))).tolist()

    assert len({tuple(first(epoch, seed)) for epoch in range(4) for seed in range(4)}) == 16
    assert sorted(first(0, 0)) == list(range(100))


def test_each_epoch_omits_another_row_if_the_last_batch_would_have_one_row() -> None:
    settings = parsed(batch_size=4)
    omitted = {
        min(set(range(9)) - set(torch.cat(list(batches(part(9), epoch, settings))).tolist())) for epoch in range(9)
    }
    assert len(omitted) > 1


def test_a_validation_pass_has_every_row_in_order() -> None:
    assert [batch.tolist() for batch in ordered_batches(part(5), 2)] == [[0, 1], [2, 3], [4]]
    assert list(ordered_batches(part(0), 2)) == []


NUMBERS = [("id", "bigint"), ("a", "double precision"), ("y", "text")]
FEW = [(i, float(i), "ab"[i % 2]) for i in range(40)]


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"target": "z"}, 'column "z" does not exist'),
        ({"metric": "r2"}, 'unknown metric "r2" for classification'),
        ({"early_stop": {"metric": "rmse"}}, 'early_stop: unknown metric "rmse"'),
        ({"hyperparams": {"lr": 1}}, 'unknown parameter "lr"'),
        ({"split": {"test_size": 2}}, '"test_size" is 2'),
        ({"preprocess": {"x": 2}}, 'unknown parameter "x"'),
        ({"target": ""}, "no target is given, and task classification needs one"),
        ({"architecture": {"type": "cnn"}}, "cnn needs images"),
        ({"architecture": {"type": "mlp", "input_shape": [2]}}, r"input_shape \[2\] holds 2 numbers"),
        (
            {"architecture": {"type": "mlp", "batch_norm": True}, "hyperparams": {"batch_size": 1}},
            "cannot learn from batches of one row",
        ),
        (
            {"architecture": {"type": "mlp", "batch_norm": True}, "hyperparams": {"micro_batch_size": 1}},
            "cannot learn from batches of one row",
        ),
    ],
)
def test_an_impossible_request_is_refused(options: dict[str, Any], fault: str) -> None:
    with pytest.raises(RequestError, match=fault):
        assemble(table(NUMBERS, FEW), spec(**{"target": "y", **options}))


@pytest.mark.parametrize(
    ("rows", "fault"),
    [
        ([], "the table has no rows"),
        (FEW[:2], "2 rows with a target"),
        ([(i, float(i), None) for i in range(9)], "is NULL in all 9 rows"),
        ([(i, float(i), "a") for i in range(40)], "single class a"),
        ([(i, 1.0, "ab"[i % 2]) for i in range(40)], "nothing to learn from"),
    ],
)
def test_a_table_that_cannot_be_learned_from_is_refused(rows: list[Any], fault: str) -> None:
    with pytest.raises(DataError, match=fault) as caught:
        assemble(table(NUMBERS, rows), spec("y"))
    assert caught.value.hint


def test_an_array_column_that_is_always_null_is_refused() -> None:
    rows = [(i, float(i), "ab"[i % 2], None) for i in range(40)]
    with pytest.raises(DataError, match='column "v" is NULL in all 40 rows'):
        assemble(table([*NUMBERS, ("v", "real[]")], rows), spec("y"))


@pytest.mark.postgres
def test_a_table_in_postgresql_is_prepared_as_the_same_table_in_memory(database: Database) -> None:
    with database.connect() as connection:
        columns = ", ".join(f"{name} {kind}" for name, kind in datasets.columns("digits"))
        connection.execute(f"create table digits ({columns}, primary key (id))")
        with connection.cursor() as cursor, cursor.copy("copy digits from stdin") as copy:
            for row in datasets.rows("digits"):
                copy.write_row(row)
        oid_row = connection.execute("select 'digits'::regclass::oid").fetchone()
        assert oid_row is not None
        relation = Relation(oid=oid_row[0], schema="public", name="digits")
        request = spec("label")
        real = prepare(connection, type(request)(**{**fields_of(request), "relation": relation}))
        with pytest.raises(MissingError):
            prepare(
                connection,
                type(request)(**{**fields_of(request), "relation": relation, "target": "nothing"}),
            )
    memory = assemble(sample("digits"), request)
    assert np.array_equal(real.train.x.numpy(), memory.train.x.numpy())
    assert torch.equal(real.test.y, memory.test.y)
    assert len(real.data_digest) == 64


def fields_of(request: Any) -> dict[str, Any]:
    return {name: getattr(request, name) for name in type(request).__dataclass_fields__}


def test_the_column_of_a_split_is_a_feature_only_if_it_orders_the_rows_and_is_requested() -> None:
    described = [("id", "bigint"), ("x", "int"), ("at", "int"), ("tested", "boolean"), ("y", "double precision")]
    read = table(described, [[row, row % 7, row, row % 4 == 0, float(row % 5)] for row in range(80)])

    def features(**options: Any) -> tuple[str, ...]:
        return assemble(read, spec("y", Task.REGRESSION, **options)).preprocessor.recipe.features

    last, column = {"last": 0.2, "by": "at"}, {"column": "tested"}
    assert features(split=last) == ("x", "tested")
    assert features(split=last, features=("x", "at")) == ("x", "at")
    assert features(split=column) == ("x", "at")
    with pytest.raises(RequestError, match='"tested" says which rows test, and is also a feature'):
        features(split=column, features=("x", "tested"))
    with pytest.raises(RequestError, match='column "y" is the target'):
        features(split={"last": 0.2, "by": "y"})
    with pytest.raises(MissingError, match='split: column "gone" does not exist'):
        features(split={"last": 0.2, "by": "gone"}, features=("x",))
