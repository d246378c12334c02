"""A sample of the benchmark's matrix: the plans of every policy give the bits of training without a plan."""

from typing import Any

import pytest

from indb_tensile.bench.commands.exact import ExactOptions, measure
from indb_tensile.bench.harness.exactness.declared_networks import LAYERS_OF_KINDS
from indb_tensile.bench.harness.exactness.network_kinds import KINDS
from indb_tensile.bench.harness.exactness.timm_networks import missing_package
from indb_tensile.bench.harness.execution.trial import TrainingSubject
from indb_tensile.bench.harness.networks.known_networks import NETWORKS
from indb_tensile.request.hyperparam_rules import HYPERPARAMS
from indb_tensile.request.loss_rules import LOSSES
from indb_tensile.request.network_rules import ARCHITECTURES, ESTIMATORS, IMAGE_ENCODERS, LAYERS, TEXT_ENCODERS
from indb_tensile.scheduler.policies import POLICIES
from tests.bench.libraries import skip_without_library
from tests.bench.subjects import tiny


@pytest.mark.nightly
def test_every_policys_plan_gives_exact_results_for_every_seed() -> None:
    rows = list(measure(map(tiny, range(2)), ExactOptions()))
    assert all(row["exact"] for row in rows)
    assert {row["seed"] for row in rows} == {0, 1}
    assert {row["policy"] for row in rows} <= {"eager", *POLICIES}
    assert {"eager", "tensile", "tensile+", "capuchin", "vdnn"} <= {row["policy"] for row in rows}
    assert max(row["swaps"] for row in rows) > 0


def test_a_convolutional_network_is_exact_under_our_plans() -> None:
    network = NETWORKS["squeezenet"].resized(32)
    skip_without_library(network)
    rows = list(measure(iter([TrainingSubject.of(network, 2)]), ExactOptions(policies=("tensile+",), iterations=2)))
    assert [row["exact"] for row in rows] == [True] * len(rows)
    assert max(row["swaps"] for row in rows) > 0


FEW = ("complex", "accumulated", "embeddings", "ensemble", "poisson", "huber", "binary_cross_entropy", "plateau")


def _require_exact(name: str) -> None:
    options = ExactOptions(policies=("tensile+",), budgets=(0.6, 0.0), iterations=3)
    rows = list(measure(map(KINDS[name].subject, range(1)), options))
    assert [row["exact"] for row in rows] == [True] * len(rows), rows
    assert max(row["swaps"] for row in rows) > 0


@pytest.mark.by_day("embeddings")
@pytest.mark.parametrize("name", FEW)
def test_networks_of_several_kinds_are_exact(name: str) -> None:
    _require_exact(name)


@pytest.mark.nightly
@pytest.mark.parametrize("name", [name for name in KINDS if name not in FEW])
def test_every_kind_is_exact(name: str) -> None:
    _require_exact(name)


def test_every_loss_schedule_and_optimizer_trains_a_kind() -> None:
    assert {name for names in LOSSES.values() for name in names} <= set(KINDS)
    assert set(HYPERPARAMS["schedule"]["values"]) <= set(KINDS)
    kinds = {kind.settings.kind for kind in KINDS.values()}
    assert kinds == set(HYPERPARAMS["optimizer"]["values"])
    assert any(kind.settings.average_decay for kind in KINDS.values())


def test_every_network_that_a_request_may_name_is_a_kind() -> None:
    named = {kind.architecture or kind.name for kind in KINDS.values()}
    absent = set() if missing_package() is None else {"timm"}
    # `auto` is one of the others, and models of scikit-learn have no plan.
    assert set(ARCHITECTURES) - named == {"auto", *ESTIMATORS, *absent}
    texts, images = TEXT_ENCODERS, IMAGE_ENCODERS
    assert {*(f"text_{name}" for name in texts), *(f"image_{name}" for name in images)} <= set(KINDS)


def test_the_lists_of_layers_have_every_layer_that_a_request_may_name() -> None:
    def types(layers: list[dict[str, Any]]) -> set[str]:
        nested = [types(layer["layers"]) for layer in layers if layer["type"] == "residual"]
        return {layer["type"] for layer in layers}.union(*nested)

    assert set().union(*(types(layers) for _, layers in LAYERS_OF_KINDS.values())) == set(LAYERS)
