"""Layers and losses whose kernels torch's tracing or its fakes misreport are captured with the bits of eager."""

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from indb_tensile.errors import RequestError
from indb_tensile.executor.capture.optimizer import OptimizerSettings
from indb_tensile.executor.capture.step_capture import capture_training
from indb_tensile.executor.capture.step_trace import Loss
from indb_tensile.executor.latency.calibrate import calibrate, unknown_signatures
from indb_tensile.executor.run.runner import Runner
from indb_tensile.scheduler.memory.peak import LIVENESS
from tests.device.memory_device import MemoryDevice
from tests.executor.conftest import GRANT_BYTES
from tests.executor.driving import bits, drive, state_bits
from tests.executor.eager import Eager
from tests.executor.models import Job
from tests.executor.plans import random_plan
from tests.nightly import nightly_unless

Layer = Callable[[torch.Tensor], torch.Tensor]
_resize = functional.interpolate


class Convolved(nn.Module):
    """Applies a convolution, then the layer."""

    def __init__(self, dimensions: int, layer: Layer) -> None:
        super().__init__()
        build = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dimensions - 1]
        self.convolution = build(2, 3, 3, padding=1)
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(self.convolution(x))


LAYERS: dict[str, tuple[int, Layer]] = {
    "linear": (1, partial(_resize, size=9, mode="linear")),
    "nearest in one": (1, partial(_resize, size=9, mode="nearest")),
    "nearest": (2, partial(_resize, scale_factor=1.5, mode="nearest")),
    "nearest exactly": (2, partial(_resize, scale_factor=1.5, mode="nearest-exact")),
    "bilinear": (2, partial(_resize, scale_factor=1.5, mode="bilinear")),
    "bilinear to corners": (2, partial(_resize, size=(9, 5), mode="bilinear", align_corners=True)),
    "bicubic": (2, partial(_resize, scale_factor=1.5, mode="bicubic")),
    "bilinear without aliases": (2, partial(_resize, size=(3, 4), mode="bilinear", antialias=True)),
    "bicubic without aliases": (2, partial(_resize, size=(3, 4), mode="bicubic", antialias=True)),
    "trilinear": (3, partial(_resize, scale_factor=2, mode="trilinear")),
    "hardshrink": (2, functional.hardshrink),
    "softshrink": (2, functional.softshrink),
    "unfold": (2, partial(functional.unfold, kernel_size=3)),
    "fold": (2, lambda h: functional.fold(functional.unfold(h, 3), (6, 6), 3)),
    "solved without checks": (2, lambda h: torch.linalg.inv_ex(h @ h.mT + 9 * torch.eye(6))[0]),
    "product": (2, lambda h: h.prod(1)),
    "product of few zeros": (2, lambda h: (h - h[:, :1, 2:3].detach()).prod(-1, keepdim=True)),
    "product of many zeros": (2, lambda h: h.relu().prod(2)),
    "product of all": (1, lambda h: h * (1 + h / 9).prod()),
    "product of all with one zero": (1, lambda h: h * (h - h[0, 0, 0].detach()).prod()),
    "product of all with zeros": (1, lambda h: h * (1 + h.relu().flatten()).prod() + h.relu().prod()),
    "product of a number": (1, lambda h: h * h.sum().prod()),
    "product in double precision": (2, lambda h: h.prod(1, dtype=torch.float64).float()),
    "determinant": (2, torch.linalg.det),
    "determinant of singular matrices": (2, lambda h: torch.linalg.det(h * torch.arange(6.0)) + torch.linalg.det(h)),
    "logarithm of a determinant": (2, lambda h: torch.linalg.slogdet(h)[1]),
}

# In the day one layer of each group of kernels.
DAILY_LAYERS = (
    *("linear", "nearest exactly", "bilinear to corners", "bicubic without aliases", "trilinear"),
    *("hardshrink", "softshrink", "unfold", "fold", "solved without checks"),
    *("product of few zeros", "product of many zeros", "product of all with one zero", "product in double precision"),
    *("determinant of singular matrices", "logarithm of a determinant"),
)


@pytest.mark.by_day("bicubic without aliases", "softshrink", "fold")
@pytest.mark.parametrize("name", nightly_unless(lambda name: name in DAILY_LAYERS, LAYERS))
def test_a_layer_is_captured_by_the_kernels_that_eager_calls(name: str) -> None:
    dimensions, layer = LAYERS[name]
    torch.manual_seed(0)
    module = Convolved(dimensions, layer)
    x = torch.randn(3, 2, *[6] * dimensions)
    require_eager_bits(module, x, torch.randn_like(module(x)), nn.MSELoss())


def test_binary_cross_entropy_is_calibrated_with_valid_labels() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 2), nn.Sigmoid())
    require_eager_bits(module, torch.randn(4, 3), torch.rand(4, 2), nn.BCELoss())


@pytest.mark.parametrize(
    ("zero_infinity", "reduction"),
    nightly_unless(lambda case: case in ((False, "mean"), (True, "sum")), product([False, True], ["mean", "sum"])),
)
def test_the_ctc_loss_is_captured_if_its_lengths_are_numbers(reduction: str, zero_infinity: bool) -> None:
    def loss(predicted: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        rows = len(y)
        scores = predicted.transpose(0, 1).log_softmax(-1)
        moments: Any = (9, 7, 9)[:rows]  # torch's annotations allow tensors only
        lengths: Any = (3, 2, 4)[:rows]
        return functional.ctc_loss(scores, y, moments, lengths, reduction=reduction, zero_infinity=zero_infinity)

    torch.manual_seed(0)
    require_eager_bits(nn.Linear(5, 6), torch.randn(3, 9, 5), torch.randint(1, 6, (3, 4)), loss)


def test_the_ctc_loss_is_refused_if_its_lengths_are_tensors() -> None:
    def loss(predicted: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        scores = predicted.transpose(0, 1).log_softmax(-1)
        return functional.ctc_loss(scores, y, torch.full((len(y),), 9), (y > 0).sum(1))

    y = torch.ones(3, 4, dtype=torch.int64)
    with pytest.raises(RequestError, match=r"aten\._ctc_loss\.Tensor") as caught:
        capture_training(nn.Linear(5, 6), loss, torch.zeros(3, 9, 5), y, OptimizerSettings())
    assert "input_lengths and target_lengths as tuples" in caught.value.hint


def test_least_squares_are_refused_with_the_way_out() -> None:
    module = Convolved(2, lambda h: torch.linalg.lstsq(h, h)[0])
    x = torch.zeros(3, 2, 6, 6)
    with pytest.raises(RequestError, match=r"aten\.linalg_lstsq\.default") as caught:
        capture_training(module, functional.mse_loss, x, torch.zeros(3, 3, 6, 6), OptimizerSettings())
    assert "torch.linalg.pinv" in caught.value.hint


@pytest.mark.parametrize(
    ("layer", "function"),
    [
        (lambda h: torch.linalg.inv(h + 9 * torch.eye(6)), "torch.linalg.inv"),
        (lambda h: torch.linalg.solve(h + 9 * torch.eye(6), h), "torch.linalg.solve"),
        (lambda h: torch.linalg.cholesky(h @ h.mT + torch.eye(6)), "torch.linalg.cholesky"),
    ],
)
def test_operators_that_check_values_are_refused(layer: Layer, function: str) -> None:
    x = torch.zeros(3, 2, 6, 6)
    with pytest.raises(RequestError, match=f"the model checks values .*{function}") as caught:
        capture_training(Convolved(2, layer), functional.mse_loss, x, torch.zeros(3, 3, 6, 6), OptimizerSettings())
    assert "inv_ex" in caught.value.hint


def require_eager_bits(module: nn.Module, x: torch.Tensor, y: torch.Tensor, loss: Loss) -> None:
    job = Job(
        module=module,
        settings=OptimizerSettings(kind="sgd"),
        batches=((x, y), (x, y), (x[:2], y[:2])),
        held_out=(x, y),
        loss=loss,
    )
    captured = job.steps
    steps = calibrate(captured, unknown_signatures(captured, {}), {}, GRANT_BYTES).steps
    eager = Eager(job)
    expected_seen, expected = bits(drive(eager, job)), state_bits(eager.export())
    for chosen in ((LIVENESS,) * 3, tuple(random_plan(step.graph, 1, share=1.0) for step in steps)):
        state = job.state()
        runner = Runner(MemoryDevice(), state, steps)
        runner.adopt(chosen, 1)
        assert bits(drive(runner, job)) == expected_seen
        assert state_bits(state.export()) == expected
        runner.close()
