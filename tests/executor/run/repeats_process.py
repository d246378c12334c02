"""What test_repeats.py looks at: the suite's models trained by recorded iterations, on a double of the graphs."""

import logging
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from indb_tensile.device.device import HostBuffer, Ticket
from indb_tensile.errors import ComputationError, DeviceError
from indb_tensile.executor.capture.capture import CapturedStep
from indb_tensile.executor.capture.optimizer import OptimizerSettings
from indb_tensile.executor.run.placer import Placer
from indb_tensile.executor.run.runner import Runner
from indb_tensile.executor.run.timeline import unroll
from indb_tensile.scheduler.memory.peak import LIVENESS, VANILLA, peak
from indb_tensile.scheduler.plan import Plan
from tests.device.memory_device import MemoryDevice
from tests.device.preloaded import answer, private
from tests.executor.conftest import prepared
from tests.executor.driving import bits, drive, state_bits
from tests.executor.eager import RATES, Eager
from tests.executor.models import Job
from tests.executor.plans import random_plan, random_rewritten_plan
from tests.executor.rewinding import RewindingGraphs

log = logging.getLogger("executor")
log.setLevel(logging.INFO)

_EPOCHS = 3  # the last smaller batch comes once in each
_NEVER = 10**6

torch.set_num_threads(1)
torch.backends.mha.set_fastpath_enabled(False)


_serving = private()


class _Trained:
    """A runner on the doubles."""

    def __init__(
        self,
        job: Job,
        steps: tuple[CapturedStep, ...],
        *,
        sample_every: int = _NEVER,
        device: MemoryDevice | None = None,
        placer: Placer | None = None,
    ) -> None:
        self.device, self.state = device or MemoryDevice(), job.state()
        self.graphs = RewindingGraphs(self.device, _serving)
        placer = self.graphs.placer = placer or Placer(_serving)
        self.now_ns = 0  # time passes when it is told to
        self.runner = Runner(
            self.device,
            self.state,
            steps,
            placer=placer,
            graphs=self.graphs,
            sample_every=sample_every,
            clock=lambda: self.now_ns,
        )

    def take_longer(self) -> None:
        self.now_ns += 2_500_000


def _whole(step: CapturedStep, make: Callable[..., Plan]) -> Plan:
    """A random plan without the swaps whose copies run on into the next iteration; no other relies on them."""
    plan = make(step.graph, 1)
    timeline = unroll(step.graph, plan)
    carried = {gap.swap for gap in (*timeline.outgoing, *timeline.incoming)}
    return replace(plan, swaps=tuple(replace(swap, copies=True) for swap in plan.swaps if swap not in carried))


def _plans(steps: tuple[CapturedStep, ...]) -> dict[str, tuple[Plan, ...]]:
    return {
        "liveness": (LIVENESS,) * len(steps),
        "vanilla": (VANILLA,) * len(steps),
        "swaps": tuple(_whole(step, random_plan) for step in steps),
        "orders": tuple(_whole(step, random_rewritten_plan) for step in steps),
        "carried": tuple(random_plan(step.graph, 1) for step in steps),
        "orders carried": tuple(random_rewritten_plan(step.graph, 2) for step in steps),
    }


def trained() -> dict[str, Any]:
    """By model and sort of plan: whether bits are eager's, and how many of its iterations were launched."""
    found = {}
    for kind, settings in (
        ("mlp", OptimizerSettings(kind="sgd", momentum=0.9, nesterov=True)),
        ("cnn", OptimizerSettings(kind="adamw", weight_decay=0.1, clip_norm=0.1)),
    ):
        job, steps = prepared(kind, settings=settings)
        eager, ours = Eager(job), _Trained(job, steps)
        for generation, (name, plans) in enumerate(_plans(steps).items()):
            ours.runner.adopt(plans, generation)
            before, recorded = ours.runner.launched, ours.graphs.recorded
            same = bits(drive(ours.runner, job, _EPOCHS)) == bits(drive(eager, job, _EPOCHS))
            found[f"{kind} {name}"] = {
                "bits": same and state_bits(ours.state.export()) == state_bits(eager.export()),
                "launched": ours.runner.launched > before,
                "recorded": ours.graphs.recorded - recorded,
                "peak": ours.device.high_water_bytes - max(map(peak, (s.graph for s in steps), plans)),
            }
        ours.runner.close()
    return found


def sampled() -> dict[str, Any]:
    """Every third iteration is timed, and reports the plan's peak and how long the others take by their graph."""
    job, steps = prepared("mlp")
    ours = _Trained(job, steps, sample_every=3)
    ours.graphs.launches = ours.take_longer
    ours.runner.adopt((LIVENESS,) * 3, 1)
    for _ in range(12):
        ours.runner.train(*job.batches[0], RATES[0])
    measured = ours.runner.measured()
    ours.runner.close()
    assert measured is not None
    return {
        "launched": ours.runner.launched,
        "samples": measured.samples,
        "iteration_ns": measured.iteration_ns,
        "peak": measured.peak_bytes == peak(steps[0].graph, LIVENESS),
    }


def started_again() -> dict[str, Any]:
    """From the state that it began with, by the same graph but for the first iteration."""
    job, steps = prepared("mlp", settings=OptimizerSettings(kind="sgd", momentum=0.9))
    ours = _Trained(job, steps)
    ours.runner.adopt((LIVENESS,) * 3, 1)
    start = ours.state.export()
    losses = []
    for _ in range(2):
        ours.state.load(start)
        losses.append(bits([ours.runner.train(*job.batches[0], RATES[0]) for _ in range(6)]))
    launched = ours.runner.launched
    ours.runner.close()
    return {
        "same": losses[0] == losses[1],
        "launched": launched,
        "closed": [graph.closed for graph in ours.graphs.made],
    }


class _Breaking(MemoryDevice):
    """The n-th call of a name fails, once armed."""

    def __init__(self) -> None:
        super().__init__()
        self.armed: tuple[str, int] = ("", 0)

    def arm(self, name: str, number: int) -> None:
        self.armed = (name, number)

    def move(self, freed_bytes: int, taken_bytes: int) -> None:
        self._count("move")
        super().move(freed_bytes, taken_bytes)

    def copy_in(self, address: int, host: HostBuffer, size_bytes: int) -> Ticket:
        self._count("copy in")
        return super().copy_in(address, host, size_bytes)

    def copy_out(self, host: HostBuffer, address: int, size_bytes: int) -> Ticket:
        self._count("copy out")
        return super().copy_out(host, address, size_bytes)

    def _count(self, called: str) -> None:
        name, number = self.armed
        if name == called:
            self.armed = (name, number - 1)
            if number == 1:
                raise DeviceError(f"this {called} fails")


def failing() -> dict[str, Any]:
    """By where recording breaks off: whether bits are eager's all the same."""
    job, steps = prepared("cnn", settings=OptimizerSettings(kind="sgd", momentum=0.9))
    plans = tuple(_whole(step, random_plan) for step in steps)
    eager = Eager(job)
    expected = bits(drive(eager, job, _EPOCHS))
    found = {}
    for name, number in (("copy in", 3), ("copy out", 1), ("move", 6), ("end", 0)):
        device = _Breaking()
        ours = _Trained(job, steps, device=device)
        ours.graphs.begins = partial(device.arm, name, number)
        if name == "end":
            ours.graphs.ends = _refuse
        ours.runner.adopt(plans, 1)
        same = bits(drive(ours.runner, job, _EPOCHS)) == expected
        ours.runner.close()
        found[f"{name} {number}"] = {
            "bits": same and state_bits(ours.state.export()) == state_bits(eager.export()),
            "launched": ours.runner.launched,
            "recorded": ours.graphs.recorded,
            "used_bytes": device.used_bytes,
        }
    return found


def _refuse() -> None:
    raise RuntimeError("operation not permitted when stream is capturing\nand how to debug it")


def refused() -> dict[str, Any]:
    """Plans and places that nothing is recorded for, and why the log says so."""
    job, steps = prepared("mlp")
    found = {}
    for name, plans, followed, placer in (
        ("nowhere", (LIVENESS,) * 3, steps, Placer()),
        ("no scripts", (LIVENESS,) * 3, tuple(replace(step, scripts={}) for step in steps), None),
    ):
        eager, ours = Eager(job), _Trained(job, followed, placer=placer)
        said = _Said()
        log.addHandler(said)
        ours.runner.adopt(plans, 1)
        same = bits(drive(ours.runner, job, _EPOCHS)) == bits(drive(eager, job, _EPOCHS))
        ours.runner.adopt(plans, 2)
        drive(ours.runner, job, 1)
        ours.runner.close()
        log.removeHandler(said)
        found[name] = {"bits": same, "recorded": ours.graphs.recorded, "said": said.lines}
    return found


def slower() -> dict[str, Any]:
    """Copies run on into the next iteration, and launches take longer for having to end with them."""
    job, steps = prepared("mlp")
    eager, ours = Eager(job), _Trained(job, steps)
    ours.graphs.launches = ours.take_longer
    ours.runner.adopt(tuple(random_plan(step.graph, 1) for step in steps), 1)
    said = _Said()
    log.addHandler(said)
    losses = [bits([one.train(*job.batches[0], RATES[0]) for _ in range(12)]) for one in (ours.runner, eager)]
    log.removeHandler(said)
    ours.runner.close()
    return {"bits": losses[0] == losses[1], "launched": ours.runner.launched, "said": said.lines}


def lost() -> str:
    """What broke the device is no obstacle to recording: it ends the job's attempt."""
    job, steps = prepared("mlp")
    ours = _Trained(job, steps)

    def broken() -> None:
        raise ComputationError("an illegal address")

    ours.graphs.ends = broken
    ours.runner.adopt((LIVENESS,) * 3, 1)
    try:
        drive(ours.runner, job, _EPOCHS)
    except ComputationError as error:
        return error.message
    return "went on"


class _Said(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


if __name__ == "__main__":
    answer(sys.modules["__main__"])
