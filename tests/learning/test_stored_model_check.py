"""Check that a stored model that contradicts itself is refused before anything of its size is built."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from indb_tensile.errors import TensileError
from indb_tensile.job import Task
from indb_tensile.learning.models.stored_model_check import check_stored_model
from indb_tensile.learning.training.preparation import assemble
from tests.learning.tables import bundle, sample, spec

Stored = dict[str, Any]
Tensors = dict[str, tuple[str, tuple[int, ...]]]


@pytest.fixture(scope="module")
def made() -> tuple[str, Tensors]:
    """A stored model as JSON, and its tensors."""
    own = bundle(
        assemble(sample("diabetes"), spec("target", Task.REGRESSION, architecture={"type": "mlp", "hidden": [4]}))
    )
    return json.dumps(own.to_json()), {name: ("F32", tuple(tensor.shape)) for name, tensor in own.weights.items()}


def test_a_stored_model_of_ours_passes(made: tuple[str, Tensors]) -> None:
    check_stored_model(json.loads(made[0]), made[1])


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda m, _: m.update(more=1), 'the stored model has the unknown member "more"'),
        (lambda m, _: m["preprocessor"].update(more=1), 'preprocessor has the unknown member "more"'),
        (lambda m, _: m["preprocessor"]["numbers"].update(more=1), 'numbers has the unknown member "more"'),
        (lambda m, _: m.pop("outputs"), "the stored model cannot be read"),
        (lambda m, _: m.update(outputs="1"), "the stored model cannot be read"),
        (lambda m, _: m.update(format=99), "the stored model has format 99"),
        (lambda m, _: m.update(ensemble=1 << 40), "an ensemble of 1099511627776, and 32 are the most"),
        (lambda m, _: m.update(input_shape=[1 << 60]), "the stored model has the input_shape"),
        (lambda m, _: m.update(input_shape=[7]), "numbers, and its input_shape is"),
        (lambda m, _: m.update(outputs=3), "the stored model has 3 outputs for regression"),
        (lambda m, _: m.update(task="classification"), "outputs for classification"),
        (lambda m, _: m["preprocessor"]["numbers"].update(required=[1 << 50]), "are the most"),
        (lambda m, _: m["architecture"].update(hidden=[1 << 50]), "hidden"),
        (lambda m, _: m["architecture"].update(hidden=[16_000, 16_000, 16_000]), "and the network|lack the tensor"),
        (lambda _, t: t.pop(min(t)), "the weights lack the tensor"),
        (lambda _, t: t.update(extra=("F32", (1,))), 'the weights have a tensor "extra"'),
        (lambda _, t: t.update({min(t): ("I64", t[min(t)][1])}), "of the weights is I64"),
    ],
)
def test_a_contradiction_is_refused_by_name(
    made: tuple[str, Tensors], change: Callable[[Stored, Tensors], object], fault: str
) -> None:
    stored, tensors = json.loads(made[0]), dict(made[1])
    change(stored, tensors)
    with pytest.raises(TensileError, match=fault):
        check_stored_model(stored, tensors)
