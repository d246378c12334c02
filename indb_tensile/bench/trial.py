"""One network in training on an emulated device: what benchmarks of the executor share."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import prod

import torch
from torch import nn

from indb_tensile import config
from indb_tensile.bench.networks import Network, drawn, find
from indb_tensile.errors import DeviceError, RequestError
from indb_tensile.executor.calibrate import calibrate, unknown_signatures
from indb_tensile.executor.capture import CapturedStep, capture_training
from indb_tensile.executor.device import REGION_BYTES, EmulatedDevice, Ledger
from indb_tensile.executor.hardware import Memory, memory
from indb_tensile.executor.optimizer import OptimizerSettings
from indb_tensile.executor.placer import Placer
from indb_tensile.executor.runner import Measurement, Runner
from indb_tensile.executor.serving import LIBRARY, Serving, preloading
from indb_tensile.executor.state import State
from indb_tensile.executor.trace import Loss
from indb_tensile.job import JobId
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.machines import Machine, Pace, latencies, slowed
from indb_tensile.scheduler.peak import LIVENESS, liveness_peak, peak, vanilla_peak
from indb_tensile.scheduler.plan import Plan
from indb_tensile.scheduler.workload import Workload

ADAM = OptimizerSettings(kind="adam")
RATE = 1e-3
WARM_ITERATIONS = 2
UNTHROTTLED = Link(out_bytes_per_s=10**13, in_bytes_per_s=10**13)
_CUT_OFF = 128  # exit codes above it are those of processes that a signal ended
_AGAIN = "TENSILE_BENCH_PRELOADED"  # set in the process that was started with the shim


# Batches and sides at which a step of a network takes tenths of a second.
SIZES = {
    "vgg16": (4, 64),
    "resnet50": (8, 64),
    "inception_v3": (4, 128),
    "densenet121": (8, 64),
    "mobilenet_v2": (8, 96),
    "squeezenet": (8, 96),
    "bert": (4, 32),
    "gpt2": (4, 32),
    "lstm": (16, 4),
}


def alone(models: Sequence[str]) -> None:
    """Several networks run in a process each, so that none has what another left; ends with the worst of their codes.

    Where one was interrupted, or nobody reads what they print any more, the others are left out.
    """
    for name in models:
        find(name)
    if len(models) < 2:
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_CUT_OFF + signal.SIGTERM))  # which ends the other one too
    worst = 0
    for name in models:
        code = subprocess.run([*_this_command(), "--models", name], check=False).returncode
        worst = max(worst, code if code >= 0 else _CUT_OFF - code)
        if worst > _CUT_OFF:
            break
    sys.exit(worst)


def preload() -> None:
    """Go on as a process whose tensors can be served from the arena: this command, started again with the shim.

    Who asks for none of it keeps torch's allocator, at the cost of one relaxed load for each allocation.
    """
    if _AGAIN not in os.environ:
        sys.stdout.flush()
        os.execve(sys.executable, _this_command(), preloading(os.environ) | {_AGAIN: "1"})  # noqa: S606 - ourselves
    if Serving.private() is None:
        raise DeviceError(f"{LIBRARY} is not preloaded", hint="Build the package with its native library.")


def _this_command() -> list[str]:
    """Whatever started this process, by name of a module or as `tensile bench`."""
    return [sys.executable, *sys.orig_argv[1:]]


def small(network: Network, side: int | None = None) -> Network:
    """At so many pixels or tokens a side; without it at so few that a step takes tenths of a second."""
    _, own = SIZES.get(network.name, (0, network.row[-1]))
    return network.resized(own if side is None else side)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A model, its loss, and one batch to train it on again and again."""

    name: str
    module: nn.Module
    loss: Loss
    x: torch.Tensor
    y: torch.Tensor

    @classmethod
    def of(cls, network: Network, batch: int, seed: int = 0) -> "Subject":
        """A known network with random weights and rows. Raises RequestError where it takes no such rows."""
        value_bytes = 8 if network.tokens else 4
        require_memory(f"{batch} rows for {network.name}", batch * prod(network.row) * value_bytes)
        module, loss, x, y = drawn(network, batch, seed)
        return cls(name=network.name, module=module.train(), loss=loss, x=x, y=y)

    def capture(self) -> CapturedStep:
        """Its training step with Adam, calibrated."""
        return self.calibrated()[0]

    def calibrated(self) -> tuple[CapturedStep, Workload]:
        """The step, and what to plan for with the latencies of operators that each ran alone."""
        captured = (capture_training(self.module, self.loss, self.x, self.y, ADAM),)
        require_memory(f"{self.name} at a batch of {len(self.x)}", liveness_peak(captured[0].graph))
        most_bytes = 2 * vanilla_peak(captured[0].graph) + config.GIB
        found = calibrate(captured, unknown_signatures(captured, {}), {}, most_bytes)
        (step,) = found.steps
        return step, workload(step, tuple(found.measured[o.signature][0] for o in step.graph.operators))


def require_memory(what: str, size_bytes: int, measure: Callable[[], Memory] = memory) -> None:
    """Raise RequestError for what cannot run here without a plan: the system would kill whoever tried."""
    most = measure()
    if size_bytes > most.size_bytes:
        raise RequestError(
            f"{what}: {size_bytes} bytes are needed, and {most.whose} has {most.size_bytes}",
            hint="Give a smaller --batch, --side or --budget.",
        )


@contextmanager
def emulated(link: Link, capacity_bytes: int, host_bytes: int | None = None) -> Iterator[EmulatedDevice]:
    """A device with such a link, all of which is one job's, and so much host memory, or four times the device's."""
    with lent(link, capacity_bytes, host_bytes=host_bytes) as (device, _):
        yield device


@contextmanager
def lent(
    link: Link, capacity_bytes: int, region_bytes: int = REGION_BYTES, host_bytes: int | None = None
) -> Iterator[tuple[EmulatedDevice, Callable[[int], int]]]:
    """The same, and how much of it the job has from now on: empty regions beyond that go back at once."""
    whole_bytes = -(-capacity_bytes // region_bytes) * region_bytes
    with Ledger.create(whole_bytes, region_bytes, link.out_bytes_per_s, link.in_bytes_per_s) as ledger:
        slot, epoch = ledger.claim_slot(1)
        ledger.grant(slot, whole_bytes)
        with EmulatedDevice(ledger.fd, slot, epoch, 4 * whole_bytes if host_bytes is None else host_bytes) as device:
            yield device, partial(ledger.grant, slot)


def slowed_link(subject: Subject, step: CapturedStep, machine: Machine, iterations: int) -> Link:
    """The machine's link, slowed down as this very step is slower here than there by its roofline."""
    with emulated(UNTHROTTLED, 2 * vanilla_peak(step.graph)) as device:
        trial = Trial(subject, step, device, placer=placer(device, step))
        here_ns = trial.run(LIVENESS, iterations).iteration_ns
        trial.runner.close()
    return slowed(machine, Pace(here_ns=here_ns, there_ns=sum(latencies(step.graph, machine))))


def placer(device: EmulatedDevice, step: CapturedStep) -> Placer:
    """Puts a step's tensors where plans say, in a process that is preloaded; elsewhere they are in ordinary memory.

    Packing is not perfect, so a plan is placed in up to a sixteenth of the step's peak more than its own.
    """
    spare_bytes = peak(step.graph, LIVENESS) // 16
    return Placer(Serving.of(device.hook_address()), region_bytes=max(REGION_BYTES, spare_bytes))


class Trial:
    """A captured step on a device, with a state that starts as the subject's module."""

    def __init__(
        self,
        subject: Subject,
        step: CapturedStep,
        device: EmulatedDevice,
        *,
        sample_every: int = 1,
        placer: Placer | None = None,
    ) -> None:
        self.subject = subject
        self.step = step
        self.state = State.create(subject.module, ADAM)
        self.runner = Runner(device, self.state, (step,), sample_every=sample_every, placer=placer)
        self._initial = self.state.export()
        self._generation = 0

    def adopt(self, plan: Plan) -> None:
        """Follow this plan from the next iteration on."""
        self._generation += 1
        self.runner.adopt((plan,), self._generation)

    def restart(self) -> None:
        """Parameters and optimizer as they were at first."""
        self.state.load(self._initial)

    def iterate(self) -> None:
        """One iteration."""
        self.runner.train(self.subject.x, self.subject.y, RATE)

    def run(self, plan: Plan, iterations: int) -> Measurement:
        """Adopt, warm up, and measure so many iterations."""
        self.adopt(plan)
        for _ in range(WARM_ITERATIONS):
            self.iterate()
        self.runner.measured()
        for _ in range(iterations):
            self.iterate()
        found = self.runner.measured()
        assert found is not None
        return found


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two values are equal bit for bit: signs of zeros count, and what is no number equals itself."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    first, second = (tensor.reshape(-1).view(torch.uint8) for tensor in (one, other))
    return torch.equal(first, second)


def workload(step: CapturedStep, latency_ns: tuple[int, ...]) -> Workload:
    """What to plan for, with these latencies."""
    return Workload(job=JobId(1), graphs=(step.graph,), latency_ns=(latency_ns,))
