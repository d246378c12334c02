"""Measures the cost of serving tensors from the device's memory at planned addresses, against malloc, in turns.

    python -m indb_tensile.bench serving --model squeezenet resnet50 [--batch 2] [--side 64] [--rounds 9]

Both sides run the same captured step under the same plan (liveness) in one process, which restarts with the shim
preloaded. One side's tensors are served. Each network has one row with medians over the rounds: the processor time
served over ordinary, which other load on the machine does not distort, and the same ratio for a second ordinary
runner, which shows the noise. It also has the time that planning the addresses took.
"""

import argparse
import time
from collections.abc import Sequence
from statistics import median
from typing import Any

import torch

from indb_tensile import config
from indb_tensile.bench.harness.execution.benchmark_processes import preload
from indb_tensile.bench.harness.execution.device_rig import UNTHROTTLED, emulated
from indb_tensile.bench.harness.execution.trial import StepTrial, TrainingSubject
from indb_tensile.bench.harness.networks import known_networks as networks
from indb_tensile.bench.harness.networks.known_networks import NETWORKS
from indb_tensile.bench.harness.processes.process_exit import run
from indb_tensile.bench.harness.results.rows import stamped
from indb_tensile.device.device import REGION_BYTES
from indb_tensile.executor.run.placer import Placer
from indb_tensile.executor.run.program_offsets import plan_offsets
from indb_tensile.executor.run.timeline import unroll
from indb_tensile.scheduler.memory.peak import LIVENESS, peak


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a row for each network."""
    options = _parser().parse_args(arguments)
    preload()
    torch.set_num_threads(1)
    for name in options.models:
        network = networks.find(name)
        network = network if options.side is None else network.resized(options.side)
        print(stamped(measure(TrainingSubject.of(network, options.batch), options.rounds)), flush=True)


def measure(subject: TrainingSubject, rounds: int) -> dict[str, Any]:
    """Return the row of one network."""
    step = subject.capture()
    started_s = time.perf_counter()
    offsets = plan_offsets(step, LIVENESS, unroll(step.graph, LIVENESS), REGION_BYTES)
    planning_s = time.perf_counter() - started_s
    with emulated(UNTHROTTLED, 3 * offsets.size_bytes + 4 * config.MIB) as opened:
        placer = Placer(opened.serving)
        trials = [
            StepTrial(subject, step, opened, sample_every=1 << 62, placer=p) for p in (Placer(), placer, Placer())
        ]
        for trial in trials:
            trial.adopt(LIVENESS)
            trial.iterate()
        before = placer.served
        times_ns = [[_iteration_ns(trial) for trial in trials] for _ in range(rounds)]
        after = placer.served
        for trial in trials:
            trial.runner.close()
    assert before is not None
    assert after is not None
    return {
        "model": subject.name,
        "batch": len(subject.x),
        "operators": len(step.graph.operators),
        "allocations": (after.planned - before.planned) // rounds,
        "unplanned": after.unplanned - before.unplanned,
        "step_ms": round(median(plain for plain, _, _ in times_ns) / 1e6, 2),
        "served": round(median(served / plain for plain, served, _ in times_ns), 3),
        "noise": round(median(repeated / plain for plain, _, repeated in times_ns), 3),
        "planning_s": round(planning_s, 3),
        "placed_over_peak": round(offsets.size_bytes / peak(step.graph, LIVENESS), 4),
    }


def _iteration_ns(trial: StepTrial) -> int:
    started_ns = time.thread_time_ns()
    trial.iterate()
    return time.thread_time_ns() - started_ns


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--models", "--model", nargs="+", required=True, choices=list(NETWORKS))
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--side", type=int, default=None, help="pixels or tokens, fewer than the network's own")
    parser.add_argument("--rounds", type=int, default=9)
    return parser


if __name__ == "__main__":
    run(main)
