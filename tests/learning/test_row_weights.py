"""Rows weigh in the loss as their class and their column say, and nowhere else."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from indb_tensile.errors import RequestError
from indb_tensile.job import Task
from indb_tensile.learning.encoding.encoded_parts import Part
from indb_tensile.learning.encoding.packed_targets import pack
from indb_tensile.learning.networks.weighted_losses import WeightedCrossEntropy, WeightedSquares
from indb_tensile.learning.training.preparation import assemble
from indb_tensile.learning.training.prepared_training import Prepared
from tests.learning.tables import score, spec, table, train

ROWS = 300
DESCRIBED = [("id", "bigint"), ("x", "double precision"), ("w", "double precision"), ("y", "text")]


def _prepared(hyperparams: dict[str, Any], target: str = "y", **options: Any) -> Prepared:
    rows = [[row, float(row % 17), float(row % 3), "yes" if row % 10 == 0 else "no"] for row in range(ROWS)]
    task = Task.CLASSIFICATION if target == "y" else Task.REGRESSION
    return assemble(table(DESCRIBED, rows), spec(target, task, hyperparams=hyperparams, **options))


def _of(part: Part) -> list[tuple[float, float]]:
    return sorted({(round(target, 6), round(weight, 6)) for target, weight in part.y.tolist()})


def test_balanced_classes_have_equal_sums_of_weights_and_the_mean_weight_is_one() -> None:
    train_part = _prepared({"class_weight": "balanced"}).train
    weights = train_part.y[:, 1]
    sums = [float(weights[train_part.targets == code].sum()) for code in (0, 1)]
    assert sums[0] == pytest.approx(sums[1])
    assert float(weights.mean()) == pytest.approx(1.0)
    assert train_part.targets.dtype == torch.int64
    assert train_part.y[:, 0].tolist() == train_part.targets.tolist()


def test_weights_of_classes_and_of_a_column_are_multiplied_and_the_column_is_no_feature() -> None:
    prepared = _prepared({"class_weight": {"yes": 5}, "weight": "w"})
    assert prepared.preprocessor.recipe.features == ("x",)
    pairs = _of(prepared.train)
    unit = min(weight for _, weight in pairs if weight)
    relative = sorted((target, round(weight / unit, 3)) for target, weight in pairs)
    assert relative == [(0.0, 0.0), (0.0, 1.0), (0.0, 2.0), (1.0, 0.0), (1.0, 5.0), (1.0, 10.0)]
    assert {weight for _, weight in _of(prepared.valid)} <= {weight for _, weight in pairs}


@pytest.mark.parametrize(
    ("hyperparams", "target", "fault"),
    [
        ({"class_weight": "balanced"}, "x", '"class_weight" is for classification and multilabel only'),
        ({"class_weight": {"maybe": 2}}, "y", '"class_weight" names "maybe", and target "y" has no such class'),
        ({"class_weight": {"yes": -1}}, "y", '"class_weight" is'),
        ({"class_weight": {}}, "y", '"class_weight" is'),
        ({"weight": "y"}, "y", 'the weight "y" is also the target'),
        ({"weight": "y"}, "x", 'column "y" is of kind text, which cannot be a weight'),
        ({"weight": "colour"}, "y", 'column "colour" does not exist'),
    ],
)
def test_a_weight_that_makes_no_sense_is_refused(hyperparams: dict[str, Any], target: str, fault: str) -> None:
    with pytest.raises(RequestError, match=fault):
        _prepared(hyperparams, target)


@pytest.mark.parametrize(("value", "fault"), [(None, "in 1 rows"), (-1.0, "in 1 rows"), (np.inf, "in 1 rows")])
def test_a_row_without_a_weight_is_refused_and_a_weight_of_zero_is_not(value: float | None, fault: str) -> None:
    rows: list[list[Any]] = [
        [row, float(row), 0.0 if row % 2 else 1.0, "yes" if row % 3 else "no"] for row in range(60)
    ]
    options = spec("y", hyperparams={"weight": "w"})
    assert assemble(table(DESCRIBED, rows), options).train.y[:, 1].min() == 0
    rows[7][2] = value
    with pytest.raises(RequestError, match=fault):
        assemble(table(DESCRIBED, rows), options)
    with pytest.raises(RequestError, match=r"the weights of all \d+ training rows are 0"):
        assemble(table(DESCRIBED, [[*row[:2], 0.0, row[3]] for row in rows]), options)


def test_the_losses_are_weighted_means_and_those_of_torch_for_weights_of_one() -> None:
    torch.manual_seed(0)
    outputs, classes, values = torch.randn(6, 3), torch.randint(0, 3, (6,)), torch.randn(6, 1)
    ones, weights = torch.ones(6), torch.tensor([0.0, 1.0, 2.0, 1.0, 0.0, 2.0])
    assert WeightedCrossEntropy()(outputs, pack(classes, ones)) == nn.CrossEntropyLoss()(outputs, classes)
    assert WeightedSquares()(outputs[:, :1], pack(values, ones)) == pytest.approx(
        float(nn.MSELoss()(outputs[:, :1], values))
    )
    repeated = torch.tensor([1, 2, 2, 3, 5, 5])  # weight 2 counts as two equal rows
    expected = nn.CrossEntropyLoss(reduction="sum")(outputs[repeated], classes[repeated]) / 6
    assert float(WeightedCrossEntropy()(outputs, pack(classes, weights))) == pytest.approx(float(expected))


def test_balanced_weights_find_a_rare_class_that_is_missed_without_them() -> None:
    rng = np.random.default_rng(1)
    rows = []
    for row in range(600):
        rare = row % 12 == 0
        rows.append([row, float(rng.normal(1.2 if rare else 0.0)), 1.0, "yes" if rare else "no"])
    recalls = []
    for own in ({}, {"class_weight": "balanced"}):
        options = spec("y", hyperparams={"epochs": 15, **own}, features=("x",))
        prepared = assemble(table(DESCRIBED, rows), options)
        train(prepared)
        recalls.append(score(prepared, prepared.test)["balanced_accuracy"])
    assert recalls[0] == pytest.approx(0.5)
    assert recalls[1] > 0.6


SETS = [("id", "bigint"), ("x", "double precision"), ("w", "double precision"), ("tags", "text[]")]


def _of_sets(hyperparams: dict[str, Any]) -> Prepared:
    """Rows of which a tenth is red, half is tall, and all are new."""
    rows = [
        [row, float(row % 17), float(row % 3), ["new", *(["red"] * (row % 10 == 0)), *(["tall"] * (row % 2))]]
        for row in range(ROWS)
    ]
    return assemble(table(SETS, rows), spec("tags", Task.MULTILABEL, hyperparams=hyperparams))


def test_balanced_labels_count_the_same_with_and_without_each_label() -> None:
    part = _of_sets({"class_weight": "balanced"}).train
    memberships, weights = part.targets, part.y[:, 3:]
    assert torch.equal(part.y[:, :3], memberships)
    for place in (1, 2):  # red and tall
        has = memberships[:, place] > 0
        assert float(weights[has, place].sum()) == pytest.approx(part.rows / 2)
        assert float(weights[~has, place].sum()) == pytest.approx(part.rows / 2)
    assert set(weights[:, 0].tolist()) == {1.0}, "a label that all rows have is not weighed"


def test_weights_of_labels_are_those_of_the_rows_that_have_them_times_the_weight_of_the_row() -> None:
    part = _of_sets({"class_weight": {"red": 5}, "weight": "w"}).train
    weights, has = part.y[:, 3:], part.targets[:, 1] > 0
    assert float(weights.mean()) == pytest.approx(1.0)
    others = weights[:, 0]
    assert torch.allclose(weights[:, 1], torch.where(has, 5 * others, others))
    assert torch.equal(weights[:, 2], others)
    with pytest.raises(RequestError, match='"class_weight" names "blue", and target "tags" has no such class'):
        _of_sets({"class_weight": {"blue": 5}})


def test_the_loss_of_weighted_labels_is_that_of_torch() -> None:
    prepared = _of_sets({"class_weight": {"red": 5}})
    outputs = prepared.module.eval()(prepared.train.x).detach()
    scale = prepared.train.y[0, 3]  # of the label that is not weighed
    expected = functional.binary_cross_entropy_with_logits(
        outputs, prepared.train.targets, pos_weight=torch.tensor([1.0, 5.0, 1.0])
    )
    assert float(prepared.loss(outputs, prepared.train.y)) == pytest.approx(float(expected * scale))
