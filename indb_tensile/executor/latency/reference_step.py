"""The reference step, which measures how much slower this machine is than the GPU that its emulated device models.

The step is that of a small residual network whose size keeps a GPU busy: each convolution takes the GPU about 50 us,
many times its launch time. All operators of the step count: those bound by arithmetic and those bound by memory,
forward, backward and update, in the proportions of a training. On this machine the step takes a few tenths of a
second.
"""

import torch
from torch import nn
from torch.nn import functional

from indb_tensile.executor.capture.optimizer import OptimizerSettings
from indb_tensile.executor.capture.step_capture import CapturedStep, capture_training
from indb_tensile.executor.latency.calibrate import calibrate, unknown_signatures
from indb_tensile.scheduler.timing.machines import Machine, StepTimes, latencies

_GRANT_BYTES = 1 << 30
_RUNS = 3
_ROWS, _PIXELS, _CLASSES = 8, 56, 1000


def measure_pace(machine: Machine) -> StepTimes:
    """Run each operator of the reference step alone, and compare the time with the machine's roofline estimate.

    The fastest of a few runs counts, because other programs may use the processor and the result is stored.
    """
    step = reference_step()
    return min((pace_of(step, machine) for _ in range(_RUNS)), key=lambda pace: pace.here_ns)


def pace_of(step: CapturedStep, machine: Machine) -> StepTimes:
    """Compute the pace from any captured step."""
    measured = calibrate((step,), unknown_signatures((step,), {}), {}, _GRANT_BYTES).measured
    return StepTimes(
        here_ns=sum(measured[operator.signature][0] for operator in step.graph.operators),
        there_ns=sum(latencies(step.graph, machine)),
    )


def reference_step() -> CapturedStep:
    """Return the captured reference step, which is the same on every machine."""
    with torch.device("meta"):
        module = nn.Sequential(
            *(_Residual(64) for _ in range(2)),
            nn.Conv2d(64, 128, 3, stride=2, padding=1, bias=False),
            _Residual(128),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(128, _CLASSES),
        )
        x = torch.empty(_ROWS, 64, _PIXELS, _PIXELS)
        y = torch.empty(_ROWS, dtype=torch.int64)
    return capture_training(module, functional.cross_entropy, x, y, OptimizerSettings(kind="adam"))


class _Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        activations = self.norms[1](self.second(torch.relu(self.norms[0](self.first(x)))))
        return torch.relu(x + activations)
