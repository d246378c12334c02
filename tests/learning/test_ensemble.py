"""An ensemble has members that learn as they would alone, and predicts the mean of their predictions."""

from typing import Any

import numpy as np
import pytest
import torch

from indb_tensile.bench.harness.tables.sample_tables import make_table
from indb_tensile.errors import RequestError
from indb_tensile.job import JobSpec, Relation, Task
from indb_tensile.learning.models.artifacts import ModelBundle
from indb_tensile.learning.models.model_predictor import ModelPredictor
from indb_tensile.learning.networks import architectures
from indb_tensile.learning.networks.ensemble import Ensemble, EnsembleLoss
from indb_tensile.learning.networks.hyperparams import settings_of
from indb_tensile.learning.networks.member_mean import OutputKind, member_mean
from indb_tensile.learning.training.preparation import assemble
from indb_tensile.learning.training.prepared_training import Prepared
from indb_tensile.learning.training.starting_weights import StartingWeights
from indb_tensile.request.network_rules import ARCHITECTURES, ENSEMBLE_ARCHITECTURES, PAIR_ARCHITECTURES
from tests.learning.test_several_targets import columns

MEMBERS = 3


def prepared(target: str, task: Task, architecture: dict[str, Any] | None = None, **hyperparams: Any) -> Prepared:
    spec = JobSpec(
        model="m",
        relation=Relation(oid=1, schema="public", name="t"),
        target=target,
        task=task,
        architecture=architecture or {"type": "mlp", "hidden": [8], "dropout": 0},
        features=("x",),
        hyperparams={"ensemble": MEMBERS, **hyperparams},
    )
    return assemble(make_table(columns()), spec)


def bundle_of(made: Prepared) -> ModelBundle:
    return ModelBundle(
        architecture=made.architecture,
        input_shape=made.input_shape,
        outputs=made.outputs,
        task=made.task,
        preprocessor=made.preprocessor,
        weights=dict(made.module.state_dict()),
        ensemble=made.settings.ensemble,
    )


@pytest.mark.parametrize("target", ["f", "a", "tags", "v"])
def test_a_stored_ensemble_predicts_the_mean_of_its_members(target: str) -> None:
    task = {"f": Task.CLASSIFICATION, "tags": Task.MULTILABEL}.get(target, Task.REGRESSION)
    made = prepared(target, task)
    assert isinstance(made.module, Ensemble)
    loaded = ModelPredictor.load(bundle_of(made).to_json(), bundle_of(made).to_bytes())
    x = made.test.x
    outputs = torch.stack([member.eval()(x) for member in made.module.members])
    mean = loaded.outputs(x.numpy())
    match task:
        case Task.CLASSIFICATION:
            own, expected = torch.from_numpy(mean).softmax(dim=1), outputs.softmax(dim=2).mean(dim=0)
        case Task.MULTILABEL:
            own, expected = torch.from_numpy(mean).sigmoid(), outputs.sigmoid().mean(dim=0)
        case _:
            own, expected = torch.from_numpy(mean), outputs.mean(dim=0)
    assert torch.allclose(own, expected, atol=1e-6)


def test_members_have_the_first_weights_of_their_seeds() -> None:
    declared = {"type": "mlp", "hidden": [4]}
    whole = architectures.build(declared, (3,), 2, seed=5, task=Task.CLASSIFICATION, ensemble=2)
    assert isinstance(whole, Ensemble)
    for place, member in enumerate(whole.members):
        alone = architectures.build(declared, (3,), 2, seed=5 + place, task=Task.CLASSIFICATION)
        assert all(map(torch.equal, member.state_dict().values(), alone.state_dict().values()))


@pytest.mark.parametrize("weighted", [False, True])
def test_a_member_has_the_loss_and_the_gradients_that_it_would_have_alone(weighted: bool) -> None:
    more: dict[str, Any] = {"weight": "b"} if weighted else {}
    made, alone = prepared("a", Task.REGRESSION, **more), prepared("a", Task.REGRESSION, **more, ensemble=1)
    assert isinstance(made.module, Ensemble)
    assert isinstance(made.loss, EnsembleLoss)
    loss = made.loss(made.module(made.train.x), made.train.y)
    loss.backward()
    own = alone.loss(alone.module(alone.train.x), alone.train.y)
    own.backward()
    first = list(made.module.members[0].parameters())
    for ours, theirs in zip(first, alone.module.parameters(), strict=True):
        assert ours.grad is not None
        assert theirs.grad is not None
        assert torch.allclose(ours.grad, theirs.grad, rtol=1e-4, atol=1e-7)
    losses = [alone.loss(member(made.train.x), made.train.y).item() for member in made.module.members]
    assert loss.item() == pytest.approx(sum(losses) / MEMBERS, rel=1e-5)
    assert made.loss(made.module.eval()(made.test.x), made.test.y).shape == ()


@pytest.mark.parametrize("kind", ["residual_mlp", "dcn", "layers"])
def test_every_network_for_tables_may_be_an_ensemble(kind: str) -> None:
    layers = {"layers": [{"type": "linear", "out": 4}, {"type": "batch_norm1d"}, {"type": "linear"}]}
    made = prepared("f", Task.CLASSIFICATION, {"type": kind, **(layers if kind == "layers" else {})})
    assert made.module(made.train.x[:5]).shape == (5, MEMBERS, 2)
    assert made.module.eval()(made.train.x[:5]).shape == (5, 2)


@pytest.mark.parametrize(
    "kind", sorted(set(ARCHITECTURES) - {*ENSEMBLE_ARCHITECTURES, *PAIR_ARCHITECTURES, "pretrained"})
)
def test_other_models_are_refused_as_ensembles(kind: str) -> None:
    with pytest.raises(RequestError, match=f'"ensemble" means nothing with architecture {kind}') as caught:
        prepared("f", Task.CLASSIFICATION, {"type": kind})
    assert "mlp" in caught.value.detail


def test_a_training_starts_from_the_first_network_of_an_ensemble() -> None:
    whole = bundle_of(prepared("a", Task.REGRESSION))
    first = whole.first_member()
    assert first.first_member() is first
    assert {f"members.0.{name}" for name in first.weights} < set(whole.weights)
    module = first.module()
    for parameter in module.parameters():
        parameter.data.zero_()
    StartingWeights(model="m", version=1, bundle=first).load_into(module, first.preprocessor)
    assert all(torch.equal(tensor, first.weights[name]) for name, tensor in module.state_dict().items())


@pytest.mark.parametrize(
    ("hyperparams", "architecture", "rows", "members"),
    [
        ({}, "auto", 999, 5),
        ({}, "auto", 1000, 1),
        ({"seed": 3, "learning_rate": 0.1}, "auto", 50, 5),
        ({"epochs": 3}, "auto", 50, 1),
        ({"ensemble": 1}, "auto", 50, 1),
        ({"ensemble": 2, "epochs": 3}, "auto", 5000, 2),
        ({}, "mlp", 50, 1),
    ],
)
def test_small_tables_get_an_ensemble_if_everything_is_left_to_the_package(
    hyperparams: dict[str, Any], architecture: str, rows: int, members: int
) -> None:
    spec = JobSpec(
        model="m",
        relation=Relation(oid=1, schema="public", name="t"),
        target="y",
        task=Task.REGRESSION,
        architecture={"type": architecture},
        hyperparams=hyperparams,
    )
    requested = hyperparams.get("ensemble", 1)
    assert settings_of(spec, {"type": "mlp"}, rows).ensemble == members
    assert settings_of(spec, {"type": "cnn"}, rows).ensemble == requested
    assert settings_of(spec, {"type": "mlp"}, rows, starts=True).ensemble == requested


def test_the_mean_of_probabilities_is_one_again_however_large_the_outputs() -> None:
    outputs = torch.tensor([[[200.0, -200.0], [-200.0, -200.0]]])
    assert member_mean(outputs, OutputKind.LABELS).sigmoid().tolist() == [[0.5, 0.0]]
    assert np.allclose(member_mean(outputs, OutputKind.CLASSES).softmax(dim=1).tolist(), [[0.75, 0.25]])
