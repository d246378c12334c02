"""Run benchmarks on the GPU's back end with a double of its driver, so that torch computes on the CPU.

The process is started with the double and the preloaded shim (test_on_gpu.py), and prints the rows of each benchmark
as one line. A process has one device, so each benchmark runs in a fork of this process, which has
imported everything.
"""

import json
import multiprocessing
import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch

from indb_tensile.bench.commands import exact, forecast, maxbatch, step
from indb_tensile.bench.harness.comparisons.batch_trials import ExecutedBatches, open_executor
from indb_tensile.bench.harness.comparisons.turns import TurnLimits
from indb_tensile.bench.harness.execution import device_rig
from indb_tensile.bench.harness.execution.cases import BenchmarkCase
from indb_tensile.bench.harness.execution.device_rig import RunTarget
from indb_tensile.bench.harness.execution.trial import TrainingSubject
from indb_tensile.bench.harness.results.rows import Row
from tests.bench.subjects import Tiny, tiny

GPU = RunTarget(device="cuda")


def run_step() -> list[Row]:
    """Run two rounds, with torch's own methods in a second process."""
    return step.measure(
        Tiny(),
        step.StepOptions(target=GPU, activations=(), budgets=(0.7,), pace=TurnLimits(rounds=2, duels=1, turn_s=0.0)),
    )


def run_exact() -> list[Row]:
    """Run two seeds under two policies."""
    return list(exact.measure(map(tiny, range(2)), exact.ExactOptions(target=GPU, policies=("tensile", "tensile+"))))


def run_forecast() -> list[Row]:
    """Run one round at each budget."""
    return list(forecast.measure(tiny(), GPU, rounds=1, iterations=1))


def run_maxbatch() -> list[Row]:
    """Search the largest batch within the memory that eager needs for 64 rows."""
    case = _TinyCase(name="tiny", batch=64, side=64)
    with open_executor(case, GPU) as executor:
        return list(
            maxbatch.measure({"model": "tiny"}, ExecutedBatches(executor, executor.eager(64).peak_bytes, 64), [0.0])
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _TinyCase(BenchmarkCase):
    """The tiny network with any batch."""

    def subject(self, seed: int = 0) -> TrainingSubject:
        return tiny(seed, self.batch)


def main() -> None:
    """Run the benchmarks one after the other."""
    torch.set_num_threads(1)
    # As a user's process, but torch seems to have CUDA and computes on the CPU.
    vars(device_rig).update(torch_device=lambda _: torch.device("cpu"), torch_cuda=lambda: "12.8")
    for benchmark in (run_step, run_exact, run_forecast, run_maxbatch):
        copy = multiprocessing.get_context("fork").Process(target=_write_rows, args=(benchmark,))
        copy.start()
        copy.join()
        if copy.exitcode:
            sys.exit(copy.exitcode)


def _write_rows(benchmark: Callable[[], list[Row]]) -> None:
    sys.stdout.write(json.dumps({benchmark.__name__: benchmark()}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
