"""A process that answers test_graph_cache.py: it trains the suite's models with recorded iterations.

A double of CUDA graphs records and launches them.
"""

import logging
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from indb_tensile.device.device import HostBuffer, Ticket
from indb_tensile.errors import ComputationError, DeviceError
from indb_tensile.executor.capture.optimizer import OptimizerSettings
from indb_tensile.executor.capture.step_capture import CapturedStep
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

_EPOCHS = 3  # each epoch has one tail batch
_NEVER = 10**6

torch.set_num_threads(1)
torch.backends.mha.set_fastpath_enabled(False)


_serving = private()


class _Training:
    """Has a runner on the doubles of the device and the graphs."""

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
        self.now_ns = 0  # only `take_longer` advances the clock
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


def _plan_within_iteration(step: CapturedStep, make: Callable[..., Plan]) -> Plan:
    """Return a random plan without swaps whose copies continue into the next iteration.

    The other swaps then copy always, so that none relies on a removed copy.
    """
    plan = make(step.graph, 1)
    timeline = unroll(step.graph, plan)
    carried = {gap.swap for gap in (*timeline.outgoing, *timeline.incoming)}
    return replace(plan, swaps=tuple(replace(swap, copies=True) for swap in plan.swaps if swap not in carried))


def _plans(steps: tuple[CapturedStep, ...]) -> dict[str, tuple[Plan, ...]]:
    return {
        "liveness": (LIVENESS,) * len(steps),
        "vanilla": (VANILLA,) * len(steps),
        "swaps": tuple(_plan_within_iteration(step, random_plan) for step in steps),
        "orders": tuple(_plan_within_iteration(step, random_rewritten_plan) for step in steps),
        "carried": tuple(random_plan(step.graph, 1) for step in steps),
        "orders carried": tuple(random_rewritten_plan(step.graph, 2) for step in steps),
    }


_OPTIMIZERS = {
    "mlp": OptimizerSettings(kind="sgd", momentum=0.9, nesterov=True),
    "cnn": OptimizerSettings(kind="adamw", weight_decay=0.1, clip_norm=0.1),
}


def trained() -> dict[str, Any]:
    """Return for each model of the command line and each kind of plan whether its bits are eager's, and how many
    iterations were launched.
    """
    answers = {}
    for kind in sys.argv[1:]:
        job, steps = prepared(kind, settings=_OPTIMIZERS[kind])
        eager, training = Eager(job), _Training(job, steps)
        for generation, (name, plans) in enumerate(_plans(steps).items()):
            training.runner.adopt(plans, generation)
            before, recorded = training.runner.launched, training.graphs.recorded
            same = bits(drive(training.runner, job, _EPOCHS)) == bits(drive(eager, job, _EPOCHS))
            answers[f"{kind} {name}"] = {
                "bits": same and state_bits(training.state.export()) == state_bits(eager.export()),
                "launched": training.runner.launched > before,
                "recorded": training.graphs.recorded - recorded,
                "peak": training.device.high_water_bytes - max(map(peak, (s.graph for s in steps), plans)),
            }
        training.runner.close()
    return answers


def sampled() -> dict[str, Any]:
    """Time every third iteration. Report the plan's peak and the duration of the other iterations' graph."""
    job, steps = prepared("mlp", settings=_OPTIMIZERS["mlp"])
    training = _Training(job, steps, sample_every=3)
    training.graphs.launches = training.take_longer
    training.runner.adopt((LIVENESS,) * 3, 1)
    for _ in range(12):
        training.runner.train(*job.batches[0], RATES[0])
    measured = training.runner.measured()
    training.runner.close()
    assert measured is not None
    return {
        "launched": training.runner.launched,
        "samples": measured.samples,
        "iteration_ns": measured.iteration_ns,
        "peak": measured.peak_bytes == peak(steps[0].graph, LIVENESS),
    }


def started_again() -> dict[str, Any]:
    """Train twice from the same state. Every iteration but the first is launched as the same graph."""
    job, steps = prepared("mlp", settings=_OPTIMIZERS["mlp"])
    training = _Training(job, steps)
    training.runner.adopt((LIVENESS,) * 3, 1)
    start = training.state.export()
    losses = []
    for _ in range(2):
        training.state.load(start)
        losses.append(bits([training.runner.train(*job.batches[0], RATES[0]) for _ in range(6)]))
    launched = training.runner.launched
    training.runner.close()
    return {
        "same": losses[0] == losses[1],
        "launched": launched,
        "closed": [graph.closed for graph in training.graphs.made],
    }


class _Breaking(MemoryDevice):
    """Fails in the n-th call of a method, once armed."""

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
    """Return for each place where recording fails whether the bits are still eager's."""
    job, steps = prepared("mlp", settings=_OPTIMIZERS["mlp"])
    plans = tuple(_plan_within_iteration(step, random_plan) for step in steps)
    eager = Eager(job)
    expected = bits(drive(eager, job, _EPOCHS))
    answers = {}
    for name, number in (("copy in", 3), ("copy out", 1), ("move", 6), ("end", 0)):
        device = _Breaking()
        training = _Training(job, steps, device=device)
        training.graphs.begins = partial(device.arm, name, number)
        if name == "end":
            training.graphs.ends = _refuse
        training.runner.adopt(plans, 1)
        same = bits(drive(training.runner, job, _EPOCHS)) == expected
        training.runner.close()
        answers[f"{name} {number}"] = {
            "bits": same and state_bits(training.state.export()) == state_bits(eager.export()),
            "launched": training.runner.launched,
            "recorded": training.graphs.recorded,
            "used_bytes": device.used_bytes,
        }
    return answers


def _refuse() -> None:
    raise RuntimeError("operation not permitted when stream is capturing\nand how to debug it")


def refused() -> dict[str, Any]:
    """Return for each reason against recording the bits and the log lines."""
    job, steps = prepared("mlp", settings=_OPTIMIZERS["mlp"])
    answers = {}
    for name, plans, followed, placer in (
        ("nowhere", (LIVENESS,) * 3, steps, Placer()),
        ("no scripts", (LIVENESS,) * 3, tuple(replace(step, scripts={}) for step in steps), None),
    ):
        eager, training = Eager(job), _Training(job, followed, placer=placer)
        log_lines = _LogLines()
        log.addHandler(log_lines)
        training.runner.adopt(plans, 1)
        same = bits(drive(training.runner, job, _EPOCHS)) == bits(drive(eager, job, _EPOCHS))
        training.runner.adopt(plans, 2)
        drive(training.runner, job, 1)
        training.runner.close()
        log.removeHandler(log_lines)
        answers[name] = {"bits": same, "recorded": training.graphs.recorded, "log lines": log_lines.lines}
    return answers


def slower() -> dict[str, Any]:
    """Train with copies that continue into the next iteration. A launch that waits for them takes longer."""
    job, steps = prepared("mlp", settings=_OPTIMIZERS["mlp"])
    eager, training = Eager(job), _Training(job, steps)
    training.graphs.launches = training.take_longer
    training.runner.adopt(tuple(random_plan(step.graph, 1) for step in steps), 1)
    log_lines = _LogLines()
    log.addHandler(log_lines)
    losses = [
        bits([trainer.train(*job.batches[0], RATES[0]) for _ in range(12)]) for trainer in (training.runner, eager)
    ]
    log.removeHandler(log_lines)
    training.runner.close()
    return {"bits": losses[0] == losses[1], "launched": training.runner.launched, "log lines": log_lines.lines}


def lost() -> str:
    """Break the device during a recording. The job's attempt must end."""
    job, steps = prepared("mlp", settings=_OPTIMIZERS["mlp"])
    training = _Training(job, steps)

    def fail() -> None:
        raise ComputationError("an illegal address")

    training.graphs.ends = fail
    training.runner.adopt((LIVENESS,) * 3, 1)
    try:
        drive(training.runner, job, _EPOCHS)
    except ComputationError as error:
        return error.message
    return "went on"


class _LogLines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


if __name__ == "__main__":
    answer(sys.modules["__main__"])
