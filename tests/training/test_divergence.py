"""Check that a network that diverged is not published, and that the error names a way out."""

import math

import pytest
import torch

from indb_tensile.errors import RequestError
from worker.training.divergence import require_finite

SOUND = {"weight": torch.ones(1, 2), "bias": torch.ones(1), "mask": torch.tensor([0.0, -math.inf])}


@pytest.fixture
def module() -> torch.nn.Module:
    module = torch.nn.Linear(2, 1)
    module.register_buffer("mask", torch.zeros(2))
    return module


def test_finite_weights_and_infinite_masks_pass(module: torch.nn.Module) -> None:
    require_finite(module, SOUND | {"steps": torch.tensor(3)}, epoch=1, learning_rate=0.1)


@pytest.mark.parametrize(("name", "value"), [("weight", math.inf), ("weight", math.nan), ("mask", math.nan)])
def test_weights_that_are_not_finite_are_refused_with_a_smaller_learning_rate(
    module: torch.nn.Module, name: str, value: float
) -> None:
    weights = SOUND | {name: torch.tensor([1.0, value])}

    with pytest.raises(RequestError) as caught:
        require_finite(module, weights, epoch=5, learning_rate=0.1)

    assert caught.value.message == "the training diverged: after epoch 5 the weights are not finite"
    assert caught.value.hint == (
        "Train with a learning_rate below 0.1 and with bounded gradients: "
        """hyperparams => '{"learning_rate": 0.01, "clip_norm": 1}'."""
    )
