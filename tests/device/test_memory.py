"""The ledger's account is what the allocator of torch really does, byte for byte."""

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.profiler import record_function

from indb_tensile.executor.capture.capture import CapturedStep
from indb_tensile.executor.latency.allocation_profile import allocation_profiler, allocations
from indb_tensile.executor.run.runner import Runner
from indb_tensile.scheduler.graph import StepGraph
from indb_tensile.scheduler.memory.peak import LIVENESS, VANILLA, load
from indb_tensile.scheduler.plan import Plan
from tests.device.memory_device import MemoryDevice
from tests.executor.conftest import prepared
from tests.executor.models import SHAPES, Job
from tests.executor.plans import random_plan, random_rewritten_plan

# What an iteration returns lives on the host, where the ledger does not look: the loss, one float32.
RETURNED_BYTES = 4

CHOICES: dict[str, Callable[[StepGraph], Plan]] = {
    "liveness": lambda _: LIVENESS,
    "vanilla": lambda _: VANILLA,
    "some swaps": lambda graph: random_plan(graph, 1),
    "other swaps": lambda graph: random_plan(graph, 2),
    "every swap": lambda graph: random_plan(graph, 3, share=1.0),
    "some again, some later": lambda graph: random_rewritten_plan(graph, 4, share=0.0),
    "some again, some later, every swap": lambda graph: random_rewritten_plan(graph, 5, share=1.0),
}


class Watched(MemoryDevice):
    """Marks the profile at every move, so that allocations can be told apart by the operator they belong to."""

    def move(self, freed_bytes: int, taken_bytes: int) -> None:
        super().move(freed_bytes, taken_bytes)
        with record_function(f"move {self.used_bytes}"):
            pass


def _replay(profiler: Any) -> list[tuple[str, int]]:
    """Moves of the ledger in order, each with the most that torch held from it to the next."""
    marks: list[tuple[int, str]] = []
    waiting = list(profiler.profiler.kineto_results.experimental_event_tree())
    events = list(waiting)
    while waiting:
        event = waiting.pop()
        if event.name.startswith(("move ", "iteration")):
            marks.append((event.start_time_ns, event.name))
        waiting.extend(event.children)
    changes: list[tuple[int, int, Any]] = [(t, 0, size) for t, size in allocations(events)]
    changes += [(t, 1, name) for t, name in marks]
    held, seen = 0, [("", 0)]
    for _, kind, what in sorted(changes):
        if kind == 1:
            seen.append((str(what), held))
        else:
            held += int(what)
            seen[-1] = (seen[-1][0], max(seen[-1][1], held))
    return seen


def _third_iteration(job: Job, steps: tuple[CapturedStep, ...], plan: Plan) -> tuple[list[tuple[str, int]], int]:
    """The moves of one steady iteration with what torch held, and what was used before it.

    The profiler runs from the start: it leaves out frees of what it has not seen allocated.
    """
    device = Watched()
    x, y = job.batches[0]
    with allocation_profiler() as profiler:
        state = job.state()
        runner = Runner(device, state, steps[:1], sample_every=1000)
        runner.adopt((plan,), 1)
        for _ in range(2):
            runner.train(x, y, 0.01)
        used_bytes = device.used_bytes
        gc.disable()  # what earlier iterations and tests left in circles is not freed in the middle of this one
        try:
            with record_function("iteration"):
                runner.train(x, y, 0.01)
        finally:
            gc.enable()
    replayed = _replay(profiler)
    start = next(k for k, (name, _) in enumerate(replayed) if name == "iteration")
    return replayed[start:], used_bytes


@pytest.mark.filterwarnings("ignore:.*unknown size.*")
@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("kind", SHAPES)
def test_torch_holds_what_the_ledger_says(kind: str, choice: str) -> None:
    job, steps = prepared(kind)
    graph = steps[0].graph
    plan = CHOICES[choice](graph)
    moves, used_bytes = _third_iteration(job, steps, plan)
    before = moves[0][1] - RETURNED_BYTES  # the loss is allocated ahead of the iteration
    ledger = [int(name.removeprefix("move ")) - used_bytes for name, _ in moves[1:]]
    torch_held = [held - before - RETURNED_BYTES for _, held in moves[1:]]
    assert max(torch_held) == max(ledger) == max(load(graph, plan)) - used_bytes
    # Between two moves torch never holds more than the ledger, whatever the operator does inside. At its peak
    # an operator holds exactly that; before it has made its outputs it holds less.
    assert all(held <= allowed for held, allowed in zip(torch_held, ledger, strict=True))


def test_a_release_really_frees() -> None:
    job, steps = prepared("mlp")
    kept, _ = _third_iteration(job, steps, VANILLA)
    released, _ = _third_iteration(job, steps, LIVENESS)
    spared = max(load(steps[0].graph, VANILLA)) - max(load(steps[0].graph, LIVENESS))
    highest = [max(held for _, held in moves) - moves[0][1] for moves in (kept, released)]
    assert highest[0] - highest[1] == spared > 0


def test_an_iteration_leaves_nothing_behind() -> None:
    job, steps = prepared("cnn")
    device = MemoryDevice()
    runner = Runner(device, job.state(), steps[:1], sample_every=1000)
    runner.adopt((LIVENESS,), 1)
    x, y = job.batches[0]
    runner.train(x, y, 0.01)
    with allocation_profiler() as profiler:
        for _ in range(3):
            runner.train(x, y, 0.01)
    held = sum(size for _, size in allocations(profiler.profiler.kineto_results.experimental_event_tree()))
    assert held == 0
    assert isinstance(runner.train(x, y, 0.01), torch.Tensor)
