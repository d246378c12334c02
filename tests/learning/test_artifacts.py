"""A stored model or checkpoint is read back unchanged, and a malformed one is refused."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from indb_tensile.errors import DatabaseError, MissingError, RequestError
from indb_tensile.job import Task
from indb_tensile.learning.models.artifacts import Checkpoint, pack, unpack
from indb_tensile.learning.models.model_predictor import ModelPredictor
from indb_tensile.learning.relation import datasets
from indb_tensile.learning.training.preparation import assemble
from indb_tensile.learning.training.prepared_training import Prepared
from tests.learning.tables import bundle, sample, score, spec, table, train


def stored(prepared: Prepared) -> ModelPredictor:
    """Write the model, read the bytes as from the catalog, and load the model."""
    made = bundle(prepared)
    return ModelPredictor.load(json.loads(json.dumps(made.to_json())), made.to_bytes())


def objects(name: str) -> list[dict[str, Any]]:
    names = [column for column, _ in datasets.columns(name)]
    return [dict(zip(names, row, strict=True)) for row in datasets.rows(name)]


def test_tensors_are_read_back_bit_for_bit_with_their_metadata() -> None:
    base = torch.arange(12.0).reshape(3, 4)
    tensors = {
        "plain": base,
        "view": base[1:],
        "transposed": base.T,
        "scalar": torch.tensor(7),
        "bytes": torch.arange(5, dtype=torch.uint8),
        "special": torch.tensor([float("nan"), -0.0, float("inf")]),
    }
    again, metadata = unpack(pack(tensors, {"epoch": "3"}))
    assert metadata == {"epoch": "3"}
    assert set(again) == set(tensors)
    for name, tensor in tensors.items():
        assert again[name].dtype == tensor.dtype
        assert again[name].numpy().tobytes() == tensor.contiguous().numpy().tobytes()


def test_bytes_that_are_not_tensors_are_refused() -> None:
    good = pack({"a": torch.ones(100)}, {})
    for bad in (b"", b"nonsense" * 10, good[:-5], good[:8]):
        with pytest.raises(DatabaseError, match="cannot be read"):
            unpack(bad)


def test_a_checkpoint_is_read_back_whole() -> None:
    made = Checkpoint(
        weights={"0.weight": torch.ones(2, 2)},
        optimizer={"0.weight/exp_avg": torch.zeros(2, 2), "step": torch.tensor(3.0)},
        random={"torch": torch.get_rng_state()},
        position={"epoch": 4, "early_stop": {"best": 0.5}},
    )
    again = Checkpoint.from_bytes(b"".join(made.parts()))
    assert again.position == made.position
    for written, read in (
        (made.weights, again.weights),
        (made.optimizer, again.optimizer),
        (made.random, again.random),
    ):
        assert written.keys() == read.keys()
        assert all(torch.equal(written[name], read[name]) for name in written)


def test_a_malformed_checkpoint_is_refused() -> None:
    with pytest.raises(DatabaseError, match="has no position"):
        Checkpoint.from_bytes(pack({"weights/a": torch.ones(1)}, {}))
    with pytest.raises(DatabaseError, match='tensor "loose" of no known part'):
        Checkpoint.from_bytes(pack({"loose": torch.ones(1)}, {"position": "{}"}))


def test_a_stored_classifier_predicts_as_the_trained_one() -> None:
    prepared = assemble(sample("iris"), spec("target", hyperparams={"epochs": 3}))
    train(prepared)
    predictor = stored(prepared)
    assert predictor.labels == ("setosa", "versicolor", "virginica")
    assert predictor.features == tuple(name for name, _ in datasets.columns("iris")[1:-1])
    answers = predictor.predict_columns(prepared.held_out)
    with torch.inference_mode():
        outputs = prepared.module.eval()(prepared.test.x)
    assert [list(answer.vector) for answer in answers] == outputs.tolist()
    assert [predictor.labels.index(answer.label or "") for answer in answers] == outputs.argmax(dim=1).tolist()
    assert all(answer.value is None and sum(answer.probabilities) == pytest.approx(1) for answer in answers)
    assert predictor.evaluate_columns(prepared.held_out) == score(prepared, prepared.test)


def test_rows_from_sql_are_predicted_and_evaluated_like_the_table() -> None:
    prepared = assemble(sample("diabetes"), spec("target", Task.REGRESSION, hyperparams={"epochs": 3}))
    train(prepared)
    predictor = stored(prepared)
    rows = objects("diabetes")
    by_name = predictor.predict_rows(rows)
    by_place = predictor.predict_rows([[row[name] for name in predictor.features] for row in rows])
    assert by_name == by_place
    values = np.array([answer.value for answer in by_name], np.float64)
    truth = np.array([row["target"] for row in rows])
    assert predictor.evaluate_rows(rows)["mae"] == pytest.approx(np.abs(values - truth).mean())
    assert by_name[0].label is None
    assert predictor.predict_rows([]) == []
    with pytest.raises(RequestError, match="no rows to evaluate"):
        predictor.evaluate_rows([])
    with pytest.raises(MissingError, match='no target column "target"'):
        predictor.evaluate_rows([dict.fromkeys(predictor.features, 0)])


def test_numeric_and_boolean_labels_are_predicted_as_values() -> None:
    described = [("id", "bigint"), ("a", "double precision"), ("y", "boolean")]
    prepared = assemble(table(described, [(i, float(i), i % 3 == 0) for i in range(60)]), spec("y"))
    answer = stored(prepared).predict_rows([{"a": 1.0}])[0]
    assert (answer.label, answer.value) in {("true", 1.0), ("false", 0.0)}


def test_a_model_with_one_image_feature_accepts_a_bare_array() -> None:
    prepared = assemble(sample("digits"), spec("label", architecture={"type": "cnn", "channels": [4]}))
    predictor = stored(prepared)
    row = objects("digits")[0]
    assert predictor.predict_rows([row["pixels"]]) == predictor.predict_rows([row])


def test_a_prediction_does_not_depend_on_the_other_rows_of_its_batch() -> None:
    prepared = assemble(sample("digits"), spec("label"))
    predictor = stored(prepared)
    rows = objects("digits")[:64]
    whole = predictor.predict_rows(rows)
    assert [predictor.predict_rows([row])[0].label for row in rows] == [answer.label for answer in whole]


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"format": 2}, "format 2"),
        ({"outputs": "many"}, "cannot be read"),
        ({"architecture": {"type": "mlp", "hidden": [3]}}, "do not fit their architecture"),
    ],
)
def test_a_stored_model_with_changed_fields_is_refused(change: Mapping[str, Any], fault: str) -> None:
    made = bundle(assemble(sample("iris"), spec("target")))
    with pytest.raises(DatabaseError, match=fault):
        ModelPredictor.load({**made.to_json(), **change}, made.to_bytes())
