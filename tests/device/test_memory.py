"""The ledger's count of device memory equals the allocations of torch, byte for byte."""

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.profiler import record_function

from indb_tensile.executor.capture.step_capture import CapturedStep
from indb_tensile.executor.latency.allocation_profile import allocation_profiler, allocations
from indb_tensile.executor.run.runner import Runner
from indb_tensile.scheduler.graph import StepGraph
from indb_tensile.scheduler.memory.peak import LIVENESS, VANILLA, load
from indb_tensile.scheduler.plan import Plan
from tests.device.memory_device import MemoryDevice
from tests.executor.conftest import prepared
from tests.executor.models import DAILY_KINDS, Job
from tests.executor.plans import random_plan, random_rewritten_plan

# An iteration's result, the loss of one float32, is on the host, which the ledger does not count.
RETURNED_BYTES = 4

CHOICES: dict[str, Callable[[StepGraph], Plan]] = {
    "liveness": lambda _: LIVENESS,
    "vanilla": lambda _: VANILLA,
    "some swaps": lambda graph: random_plan(graph, 1),
    "other swaps": lambda graph: random_plan(graph, 2),
    "every swap": lambda graph: random_plan(graph, 3, share=1.0),
    "repeated and delayed operators": lambda graph: random_rewritten_plan(graph, 4, share=0.0),
    "repeated and delayed operators, every swap": lambda graph: random_rewritten_plan(graph, 5, share=1.0),
}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Run with one thread, as the executor's tests do, which share calibrated steps with these in one process.

    The workspace of a convolution depends on the number of threads.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Watched(MemoryDevice):
    """Marks the profile at every move, so that each allocation can be assigned to its operator."""

    def move(self, freed_bytes: int, taken_bytes: int) -> None:
        super().move(freed_bytes, taken_bytes)
        with record_function(f"move {self.used_bytes}"):
            pass


def _replay(profiler: Any) -> list[tuple[str, int]]:
    """Return the moves of the ledger in order, each with torch's peak until the next move."""
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
    used_bytes, moves = 0, [("", 0)]
    for _, kind, value in sorted(changes):
        if kind == 1:
            moves.append((str(value), used_bytes))
        else:
            used_bytes += int(value)
            moves[-1] = (moves[-1][0], max(moves[-1][1], used_bytes))
    return moves


def _third_iteration(job: Job, steps: tuple[CapturedStep, ...], plan: Plan) -> tuple[list[tuple[str, int]], int]:
    """Return the moves of one steady iteration with torch's peaks, and the bytes used before the iteration.

    The profiler runs from the start, because it omits frees of memory whose allocation it has not seen.
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
        gc.disable()  # no reference cycle of earlier iterations and tests is freed during this iteration
        try:
            with record_function("iteration"):
                runner.train(x, y, 0.01)
        finally:
            gc.enable()
    replayed = _replay(profiler)
    start = next(k for k, (name, _) in enumerate(replayed) if name == "iteration")
    return replayed[start:], used_bytes


@pytest.mark.filterwarnings("ignore:.*unknown size.*")
@pytest.mark.by_day("cnn-", "transformer-every swap", "tied-")
@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("kind", DAILY_KINDS)
def test_torchs_allocations_equal_the_ledgers_count(kind: str, choice: str) -> None:
    job, steps = prepared(kind)
    graph = steps[0].graph
    plan = CHOICES[choice](graph)
    moves, used_bytes = _third_iteration(job, steps, plan)
    before = moves[0][1] - RETURNED_BYTES  # the loss is allocated before the iteration
    ledger = [int(name.removeprefix("move ")) - used_bytes for name, _ in moves[1:]]
    torch_bytes = [used - before - RETURNED_BYTES for _, used in moves[1:]]
    assert max(torch_bytes) == max(ledger) == max(load(graph, plan)) - used_bytes
    # Between two moves torch never allocates more than the ledger counts, whatever the operator does inside. At its
    # peak an operator has exactly that memory; before it makes its outputs it has less.
    assert all(used <= counted for used, counted in zip(torch_bytes, ledger, strict=True))


def test_a_release_frees_torchs_memory() -> None:
    job, steps = prepared("mlp")
    unreleased, _ = _third_iteration(job, steps, VANILLA)
    released, _ = _third_iteration(job, steps, LIVENESS)
    spared = max(load(steps[0].graph, VANILLA)) - max(load(steps[0].graph, LIVENESS))
    peaks = [max(used for _, used in moves) - moves[0][1] for moves in (unreleased, released)]
    assert peaks[0] - peaks[1] == spared > 0


def test_an_iteration_leaves_no_allocation() -> None:
    job, steps = prepared("cnn")
    device = MemoryDevice()
    runner = Runner(device, job.state(), steps[:1], sample_every=1000)
    runner.adopt((LIVENESS,), 1)
    x, y = job.batches[0]
    runner.train(x, y, 0.01)
    with allocation_profiler() as profiler:
        for _ in range(3):
            runner.train(x, y, 0.01)
    remaining_bytes = sum(size for _, size in allocations(profiler.profiler.kineto_results.experimental_event_tree()))
    assert remaining_bytes == 0
    assert isinstance(runner.train(x, y, 0.01), torch.Tensor)
