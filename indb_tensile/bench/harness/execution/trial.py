"""A network in training on a device, shared by the benchmarks of the executor."""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import torch
from torch import nn

from indb_tensile import config
from indb_tensile.bench.harness.networks.known_networks import Network, random_example
from indb_tensile.device.hardware import Memory, memory
from indb_tensile.errors import RequestError
from indb_tensile.executor.capture.optimizer import OptimizerSettings
from indb_tensile.executor.capture.passes import WHOLE, Passes
from indb_tensile.executor.capture.rank_share import RankShare
from indb_tensile.executor.capture.split_normalisations import with_split_normalisations
from indb_tensile.executor.capture.step_capture import CapturedStep, capture_training
from indb_tensile.executor.capture.step_trace import Loss
from indb_tensile.executor.latency.calibrate import calibrate, unknown_signatures
from indb_tensile.executor.latency.sampled_iterations import SampledIterations
from indb_tensile.executor.run.open_device import OpenDevice, capturing_on
from indb_tensile.executor.run.placer import Placer
from indb_tensile.executor.run.runner import Runner
from indb_tensile.executor.run.state import HOST, State
from indb_tensile.job import JobId
from indb_tensile.scheduler.memory.peak import liveness_peak, vanilla_peak
from indb_tensile.scheduler.plan import Plan
from indb_tensile.scheduler.workload import Workload

ADAM = OptimizerSettings(kind="adam")
RATE = 1e-3
WARM_ITERATIONS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSubject:
    """A model, its loss, and one batch that it trains on repeatedly; the default optimizer is Adam.

    `rates` are the learning rates of successive iterations. The last one is that of all further iterations.
    """

    name: str
    module: nn.Module
    loss: Loss
    x: torch.Tensor
    y: torch.Tensor
    settings: OptimizerSettings = ADAM
    passes: Passes = WHOLE
    rates: tuple[float, ...] = (RATE,)

    def rate(self, iteration: int) -> float:
        """Return the learning rate of this iteration, from 0."""
        return self.rates[min(iteration, len(self.rates) - 1)]

    @classmethod
    def of(cls, network: Network, batch: int, seed: int = 0) -> "TrainingSubject":
        """Return a known network with random weights and rows. Raises RequestError if it accepts no such rows."""
        value_bytes = 8 if network.tokens else 4
        require_memory(f"{batch} rows for {network.name}", batch * prod(network.row) * value_bytes)
        module, loss, x, y = random_example(network, batch, seed)
        passes = Passes(micro_batch_size=network.micro_batch_size)
        return cls(name=network.name, module=module.train(), loss=loss, x=x, y=y, passes=passes)

    def capture(self, place: torch.device = HOST) -> CapturedStep:
        """Return its calibrated training step, captured where tensors are on `place`."""
        return self.calibrated(place)[0]

    def calibrated(self, place: torch.device = HOST) -> tuple[CapturedStep, Workload]:
        """Return the step, and its workload with the latencies of operators that each ran alone."""
        with capturing_on(place):
            captured = capture_training(self.module, self.loss, self.x, self.y, self.settings, self.passes)
        if place == HOST:
            captured = with_split_normalisations(captured)  # as in a trainer
            require_memory(f"{self.name} at a batch of {len(self.x)}", liveness_peak(captured.graph))
        step, latency_ns = calibrated_step(captured)
        return step, workload(step, latency_ns)


def calibrated_step(captured: CapturedStep) -> tuple[CapturedStep, tuple[int, ...]]:
    """Return the step with measured memory, and the latencies of operators as measured before a first training."""
    most_bytes = 2 * vanilla_peak(captured.graph) + config.GIB
    calibration = calibrate((captured,), unknown_signatures((captured,), {}), {}, most_bytes)
    (step,) = calibration.steps
    return step, tuple(calibration.measured[operator.signature][0] for operator in step.graph.operators)


def require_memory(purpose: str, size_bytes: int, measure: Callable[[], Memory] = memory) -> None:
    """Raise RequestError if this machine has too little memory. The system would kill the process that tried."""
    available = measure()
    if size_bytes > available.size_bytes:
        raise RequestError(
            f"{purpose}: {size_bytes} bytes are needed, and {available.whose} has {available.size_bytes}",
            hint="Give a smaller --batch, --side or --budget.",
        )


class StepTrial:
    """A captured step on a device, with a state that starts as the subject's module."""

    def __init__(
        self,
        subject: TrainingSubject,
        step: CapturedStep,
        opened: OpenDevice,
        *,
        sample_every: int = 1,
        placer: Placer | None = None,
        share: RankShare | None = None,
    ) -> None:
        self.subject = subject
        self.step = step
        self.state = State.create(subject.module, subject.settings, opened.torch_device, share)
        self.runner = Runner(
            opened.device,
            self.state,
            (step,),
            sample_every=sample_every,
            placer=placer,
            operator_clock=opened.clock,
            check=opened.check,
            graphs=opened.graphs,
        )
        self._initial = self.state.export()
        self._generation = 0
        self._iterations = 0

    def adopt(self, plan: Plan) -> None:
        """Follow this plan from the next iteration on."""
        self._generation += 1
        self.runner.adopt((plan,), self._generation)

    def restart(self) -> None:
        """Reset parameters and optimizer state to their initial values."""
        self.state.load(self._initial)
        self._iterations = 0

    def iterate(self) -> None:
        """Run one iteration."""
        self.runner.train(self.subject.x, self.subject.y, self.subject.rate(self._iterations))
        self._iterations += 1

    def run(self, plan: Plan, iterations: int, warmed: Callable[[], object] = lambda: None) -> SampledIterations:
        """Adopt the plan, warm up, call `warmed`, and measure `iterations` iterations."""
        self.adopt(plan)
        for _ in range(WARM_ITERATIONS):
            self.iterate()
        self.runner.measured()
        warmed()
        return self.measured(iterations)

    def measured(self, iterations: int = 1) -> SampledIterations:
        """Run `iterations` iterations and return the measurement since the last call."""
        for _ in range(iterations):
            self.iterate()
        measurement = self.runner.measured()
        assert measurement is not None
        return measurement


def same_bits(value: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two values are equal bit for bit: signs of zeros count, and NaN equals the same NaN."""
    if value.shape != other.shape or value.dtype != other.dtype:
        return False
    first, second = (tensor.reshape(-1).view(torch.uint8) for tensor in (value, other))
    return torch.equal(first, second)


def workload(step: CapturedStep, latency_ns: tuple[int, ...]) -> Workload:
    """Return the workload of the step with these latencies."""
    return Workload(job=JobId(1), graphs=(step.graph,), latency_ns=(latency_ns,))
