"""Each loss by name is that of its definition, for equal and weighted rows, and of the members of an ensemble."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from indb_tensile.errors import DataError, RequestError
from indb_tensile.job import Task
from indb_tensile.learning.encoding.packed_targets import pack
from indb_tensile.learning.networks.hyperparams import TrainingSettings
from indb_tensile.learning.networks.weighted_losses import loss_of
from indb_tensile.learning.training.preparation import assemble
from indb_tensile.learning.training.prepared_training import Prepared
from tests.learning.tables import bundle, score, spec, table, train

CLASSES = torch.tensor([0, 2, 1, 2])
VALUES = torch.tensor([[0.0], [1.0], [3.0], [0.5]])
WEIGHTS = torch.tensor([0.0, 1.0, 2.0, 0.5])


def loss(task: Task, weighted: bool = False, members: bool = False, **options: Any) -> nn.Module:
    return loss_of(task, TrainingSettings.parse(options, 10), weighted=weighted, members=members)


def outputs(columns: int) -> torch.Tensor:
    return torch.randn(4, columns, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"loss": "mae"}, nn.L1Loss(reduction="none")),
        ({"loss": "huber"}, nn.HuberLoss(reduction="none")),
        ({"loss": "poisson"}, nn.PoissonNLLLoss(reduction="none")),
        ({"loss": "mse"}, nn.MSELoss(reduction="none")),
        (
            {"loss": "quantile", "quantile": 0.9},
            lambda o, y: torch.where(y > o, 0.9 * (y - o), 0.1 * (o - y)),
        ),
    ],
)
def test_losses_of_values_are_those_of_their_definitions(options: dict[str, Any], expected: Any) -> None:
    own, rows = outputs(1), expected(outputs(1), VALUES)
    assert loss(Task.REGRESSION, **options)(own, VALUES).item() == pytest.approx(rows.mean().item())
    weighted = loss(Task.REGRESSION, weighted=True, **options)(own, pack(VALUES, WEIGHTS))
    assert weighted.item() == pytest.approx((rows * WEIGHTS[:, None]).mean().item())


def _focal(own: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
    chance = own.softmax(1)[torch.arange(len(own)), classes]
    return -((1 - chance) ** 2) * chance.log()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, nn.CrossEntropyLoss(reduction="none")),
        ({"label_smoothing": 0.2}, nn.CrossEntropyLoss(reduction="none", label_smoothing=0.2)),
        ({"loss": "focal"}, _focal),
        ({"loss": "focal", "gamma": 0}, nn.CrossEntropyLoss(reduction="none")),
    ],
)
def test_losses_of_classes_are_those_of_their_definitions(options: dict[str, Any], expected: Any) -> None:
    own, rows = outputs(3), expected(outputs(3), CLASSES)
    assert loss(Task.CLASSIFICATION, **options)(own, CLASSES).item() == pytest.approx(rows.mean().item())
    weighted = loss(Task.CLASSIFICATION, weighted=True, **options)
    assert weighted(own, pack(CLASSES, WEIGHTS)).item() == pytest.approx((rows * WEIGHTS).mean().item())
    members = loss(Task.CLASSIFICATION, weighted=True, members=True, **options)
    repeated = own.unsqueeze(1).expand(-1, 5, -1)
    assert members(repeated, pack(CLASSES, WEIGHTS)).item() == pytest.approx((rows * WEIGHTS).mean().item())


@pytest.mark.parametrize("gamma", [0, 0.5, 2])
def test_the_focal_loss_of_a_certain_row_has_a_finite_gradient(gamma: float) -> None:
    own = torch.tensor([[100.0, -100.0], [-100.0, 100.0]], requires_grad=True)
    loss(Task.CLASSIFICATION, loss="focal", gamma=gamma)(own, torch.tensor([0, 0])).backward()
    assert own.grad is not None
    assert own.grad.isfinite().all()


def test_the_default_losses_are_torchs_own() -> None:
    assert type(loss(Task.CLASSIFICATION)) is nn.CrossEntropyLoss
    assert type(loss(Task.CLASSIFICATION, loss="cross_entropy", label_smoothing=0)) is nn.CrossEntropyLoss
    assert type(loss(Task.REGRESSION)) is nn.MSELoss


DESCRIBED = [("id", "bigint"), ("x", "double precision"), ("y", "double precision"), ("word", "text")]


def _prepared(target: str, **hyperparams: Any) -> Prepared:
    rng = np.random.default_rng(1)
    rows = []
    for row in range(600):
        x = float(rng.uniform(-1, 1))
        rows.append([row, x, float(rng.poisson(1000 * np.exp(2 * x))), "ab"[row % 2]])
    task = Task.CLASSIFICATION if target == "word" else Task.REGRESSION
    return assemble(table(DESCRIBED, rows), spec(target, task, hyperparams=hyperparams, features=("x",)))


def test_counts_are_predicted_in_their_own_unit_and_never_below_zero() -> None:
    prepared = _prepared("y", loss="poisson", epochs=30)
    train(prepared)
    assert score(prepared, prepared.test)["r2"] > 0.97
    predictor = bundle(prepared)
    restored = predictor.preprocessor.from_json(predictor.preprocessor.to_json()).target
    assert restored == prepared.preprocessor.target
    values = restored.restore(prepared.module(torch.linspace(-9, 2, 20)[:, None]).detach().numpy())
    assert (values >= 0).all()


def test_a_quantile_has_its_share_of_the_rows_below_it() -> None:
    rng = np.random.default_rng(2)
    rows = [[row, x := float(rng.uniform(-1, 1)), x + float(rng.normal()), "a"] for row in range(600)]
    options = {"loss": "quantile", "quantile": 0.9, "epochs": 10}
    prepared = assemble(table(DESCRIBED, rows), spec("y", Task.REGRESSION, hyperparams=options, features=("x",)))
    train(prepared)
    with torch.no_grad():
        below = (prepared.train.targets < prepared.module.eval()(prepared.train.x)).float().mean()
    assert below.item() == pytest.approx(0.9, abs=0.08)


@pytest.mark.parametrize(
    ("target", "options", "fault", "hint"),
    [
        ("word", {"loss": "huber"}, 'loss "huber" is not for classification', "cross_entropy, focal"),
        ("y", {"loss": "focal"}, 'loss "focal" is not for regression', "mse, mae, huber, poisson, quantile"),
        ("y", {"label_smoothing": 0.1}, '"label_smoothing" means nothing with loss mse', "Leave it out."),
        ("word", {"gamma": 1}, '"gamma" means nothing with loss cross_entropy', 'set "loss" to focal'),
    ],
)
def test_a_loss_of_another_task_is_refused(target: str, options: dict[str, Any], fault: str, hint: str) -> None:
    with pytest.raises(RequestError, match=fault) as caught:
        _prepared(target, **options)
    assert hint in caught.value.hint


def test_negative_targets_are_refused_where_counts_are_predicted() -> None:
    rows = [[row, float(row), float(row - 3), "a"] for row in range(60)]
    options = spec("y", Task.REGRESSION, hyperparams={"loss": "poisson"}, features=("x",))
    with pytest.raises(DataError, match="negative in 3 of 60 rows"):
        assemble(table(DESCRIBED, rows), options)
