"""Every architecture explains a row: the attributions sum to the prediction less that of the baseline."""

import asyncio
import json
from typing import Any

import numpy as np
import pytest

from indb_tensile.errors import RequestError
from indb_tensile.job import ModelVersionId, Task
from indb_tensile.learning.encoding.baseline_input import baseline_input
from indb_tensile.learning.models.artifacts import ModelBundle
from indb_tensile.learning.models.model_predictor import ModelPredictor
from indb_tensile.learning.training.preparation import assemble
from indb_tensile.learning.training.prepared_training import Prepared
from indb_tensile.request.network_rules import ARCHITECTURES
from tests.learning.tables import bundle, spec, table
from worker.serving.answers import Answers
from worker.serving.attributions import attribution_rows
from worker.serving.prediction_batches import Batches
from worker.serving.requests import Attribute

VERSION = ModelVersionId(1)
ROW = {"a": 2.5, "kind": "k1", "n": None, "day": "2024-01-20"}
FLAT = sorted({"mlp", "tabm", "residual_mlp", "ft_transformer", "dcn", "wide_and_deep"} & set(ARCHITECTURES))


def prepared(task: Task, architecture: str) -> Prepared:
    rows = [
        (i, i / 7, f"k{i % 3}", None if i % 9 == 0 else i % 5, f"2024-01-{i % 28 + 1:02}", f"class {i % 3}", i * 1.5)
        for i in range(80)
    ]
    described = [("id", "int"), ("a", "double precision"), ("kind", "text"), ("n", "int"), ("day", "date")]
    target = "label" if task is Task.CLASSIFICATION else "y"
    data = table([*described, ("label", "text"), ("y", "double precision")], rows)
    features = ["a", "kind", "n", "day"]
    return assemble(data, spec(target, task, architecture={"type": architecture}, features=features))


def predictor_of(made: Prepared, *, with_baseline: bool = True) -> ModelPredictor:
    baseline = baseline_input(made.train.x, made.preprocessor) if with_baseline else None
    plain = bundle(made)
    stored = plain.to_json() | ({} if baseline is None else {"baseline": list(baseline)})
    return ModelPredictor(ModelBundle.load(json.loads(json.dumps(stored)), plain.to_bytes()))


def explain(predictor: ModelPredictor, **options: Any) -> list[list[Any]]:
    async def run() -> list[list[Any]]:
        batches = Batches()
        try:
            request = Attribute(version=VERSION, rows=[ROW], **options)
            return await attribution_rows(batches, request, Answers(predictor), owner=0)
        finally:
            batches.close()

    return asyncio.run(run())


@pytest.mark.parametrize("architecture", FLAT)
def test_attributions_sum_to_the_prediction_less_that_of_the_baseline(architecture: str) -> None:
    predictor = predictor_of(prepared(Task.CLASSIFICATION, architecture))
    (expected,) = predictor.predict_rows([ROW])
    attributions = explain(predictor)
    assert {row[0] for row in attributions} == set(ROW)
    assert {row[3] for row in attributions} == {expected.label}
    assert [row[5] for row in attributions] == pytest.approx([max(expected.probabilities)] * 4)
    assert sum(row[1] for row in attributions) == pytest.approx(attributions[0][5] - attributions[0][4], abs=1e-6)
    assert [abs(row[1]) for row in attributions] == sorted((abs(row[1]) for row in attributions), reverse=True)
    assert attributions == explain(predictor)
    of_all = [explain(predictor, label=label) for label in predictor.labels]
    total = np.sum([[row[1] for row in sorted(rows)] for rows in of_all], axis=0)
    assert total == pytest.approx(np.zeros(4), abs=1e-6), "probabilities sum to one for each coalition"


def test_a_number_is_explained_in_its_own_unit() -> None:
    predictor = predictor_of(prepared(Task.REGRESSION, "mlp"))
    (expected,) = predictor.predict_rows([ROW])
    attributions = explain(predictor)
    assert (attributions[0][3], attributions[0][5]) == (None, pytest.approx(expected.value))
    assert sum(row[1] for row in attributions) == pytest.approx(attributions[0][5] - attributions[0][4], abs=1e-4)


def test_an_unknown_label_and_a_version_without_a_baseline_are_refused() -> None:
    made = prepared(Task.CLASSIFICATION, "mlp")
    with pytest.raises(RequestError, match='does not know the label "none"') as caught:
        explain(predictor_of(made), label="none")
    assert caught.value.hint == "Its labels are class 0, class 1, class 2."
    with pytest.raises(RequestError, match="no baseline row") as caught:
        explain(predictor_of(made, with_baseline=False))
    assert caught.value.sqlstate == "55000"
