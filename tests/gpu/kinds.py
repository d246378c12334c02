"""Networks of several kinds that need only torch. The suite checks whether their steps run as CUDA graphs."""

from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch
from torch import nn

from indb_tensile.device.cuda import CudaRegions
from indb_tensile.executor.capture.optimizer import OptimizerSettings
from indb_tensile.executor.capture.step_capture import capture_training
from indb_tensile.executor.latency.calibrate import calibrate, unknown_signatures
from indb_tensile.executor.run.open_device import capturing_on, open_device
from indb_tensile.executor.run.placer import Placer
from indb_tensile.executor.run.runner import Runner
from indb_tensile.executor.run.state import State
from indb_tensile.scheduler.memory.peak import LIVENESS
from tests.gpu.place import ON_DOUBLE, PLACE

CLASSES = 10
ROWS, TOKENS, WIDTH = (4, 8, 16) if ON_DOUBLE else (32, 32, 256)
CHANNELS = 4 if ON_DOUBLE else 64
WARM, TIMED = (1, 2) if ON_DOUBLE else (8, 20)
RATE = 1e-3
HOST_POOL_BYTES = 1 << 30

Example = tuple[nn.Module, torch.Tensor]


class Residual(nn.Module):
    """Adds its input to the output of two convolutions with batch normalisation."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        parts = [
            [nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)] for _ in range(2)
        ]
        self.body = nn.Sequential(*parts[0], nn.ReLU(), *parts[1])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum of the input and of the convolutions' output."""
        return torch.relu(x + self.body(x))


class Cells(nn.Module):
    """Unrolls a recurrent cell."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(WIDTH, WIDTH)
        self.last = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Read token after token."""
        state = torch.zeros_like(x[:, 0])
        for token in range(TOKENS):
            state = self.cell(x[:, token], state)
        return self.last(state)  # type: ignore[no-any-return]


def _mlp() -> Example:
    layers = [nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Dropout(0.1)] * 8
    return nn.Sequential(*layers, nn.Linear(WIDTH, CLASSES)), torch.randn(ROWS, WIDTH)


def _convolutions() -> Example:
    body = [nn.Conv2d(3, CHANNELS, 3, padding=1), nn.ReLU()]
    body += [nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1), nn.ReLU()] * 4
    return nn.Sequential(*body, *_head(CHANNELS)), torch.randn(ROWS, 3, 32, 32)


def _residual() -> Example:
    body = [nn.Conv2d(3, CHANNELS, 7, stride=2, padding=3), *(Residual(CHANNELS) for _ in range(8))]
    return nn.Sequential(*body, *_head(CHANNELS)), torch.randn(ROWS, 3, 64, 64)


def _transformer() -> Example:
    layers = [nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.1, batch_first=True) for _ in range(4)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(TOKENS * WIDTH, CLASSES)), torch.randn(ROWS, TOKENS, WIDTH)


def _recurrent() -> Example:
    return Cells(), torch.randn(ROWS, TOKENS, WIDTH)


def _head(channels: int) -> tuple[nn.Module, ...]:
    return nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, CLASSES)


KINDS: dict[str, Callable[[], Example]] = {
    "mlp": _mlp,
    "convolutions": _convolutions,
    "residual": _residual,
    "transformer": _transformer,
    "recurrent": _recurrent,
}


def recorded(claim: tuple[int, int, int], regions: CudaRegions, name: str) -> dict[str, Any]:
    """Return the pace of the network's iterations, and how many of them ran as one graph."""
    place, settings = torch.device(PLACE), OptimizerSettings(kind="adam")
    torch.manual_seed(3)
    module, x = KINDS[name]()
    y = torch.randint(CLASSES, (ROWS,))
    with open_device("cuda:0", claim, HOST_POOL_BYTES, regions, place) as opened:
        with capturing_on(place):
            captured = (capture_training(module, nn.CrossEntropyLoss(), x, y, settings),)
        (step,) = calibrate(captured, unknown_signatures(captured, {}), {}, 1 << 40).steps
        state = State.create(module, settings, place)
        placer = Placer(opened.serving, region_bytes=64 << 20)
        runner = Runner(opened.device, state, (step,), placer=placer, graphs=opened.graphs)
        runner.adopt((LIVENESS,), 1)
        for _ in range(WARM):
            runner.train(x, y, RATE)
        start_s = perf_counter()
        for _ in range(TIMED):
            runner.train(x, y, RATE)
        step_ms = (perf_counter() - start_s) * 1000 / TIMED
        launched = runner.launched
        runner.close()
    return {"operators": len(step.graph.operators), "launched": launched, "step_ms": step_ms}
