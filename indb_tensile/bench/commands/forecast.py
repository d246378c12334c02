"""Measures how well the simulator predicts a planned iteration: its peak, which must be exact, and its time.

    python -m indb_tensile.bench forecast [--models [resnet50 …] [--batch 8] [--side 64]] [--device emulated]
        [--machine a6000] [--rounds 5] [--iterations 5] [--json]

The networks are four small ones. With `--models` they are known ones (bench/harness/networks/known_networks.py),
without names all that have a size of their own (bench/harness/execution/cases.py), at a batch and a side at which a
step takes tenths of a second. Each takes one to three minutes, GPT-2 ten. With `--device cuda` they run on a GPU, at
their own sides and larger batches. The arena serves the steps. An emulated device stands for the machine, slowed down
until its step takes as long as here. For each network the benchmark measures operators under the liveness plan, makes
plans for budgets between the floor and the liveness peak from these latencies, and follows them. Liveness and planned
iterations take turns, so that a machine that slows down slows both. Figures are medians. `ratio` is measured over
predicted time. `simulated_ratio` is the same with the latencies that operators then had under the plan, with which a
controller continues. It judges the simulator alone, whereas `ratio` also contains operators that a plan makes faster
(less memory is in use, more of it in caches) or slower (copies take bandwidth). `eor` is measured time over that of
the liveness iterations of the same run. `first_ratio` is the time of the liveness iterations over what is foretold
before a first training: the sum of the latencies of operators that run without a step, measured again in each round.
It is not measured on a GPU, where the step has taken the memory.

The exit code is 1 if a median `simulated_ratio` is more than 3 % off, or if a peak is: by a byte, or on a GPU by more
than 1 %.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import nn

from indb_tensile import config
from indb_tensile.bench.harness.execution.benchmark_processes import preload, run_each_alone
from indb_tensile.bench.harness.execution.cases import SIZES, BenchmarkCase, add_sizes
from indb_tensile.bench.harness.execution.device_rig import DeviceRig, RunTarget, add_target, set_up, target
from indb_tensile.bench.harness.execution.trial import StepTrial, TrainingSubject, calibrated_step, workload
from indb_tensile.bench.harness.networks import known_networks as networks
from indb_tensile.bench.harness.processes.argument_types import whole
from indb_tensile.bench.harness.processes.process_exit import run
from indb_tensile.executor.run.state import HOST
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import LIVENESS, floor, liveness_peak
from indb_tensile.scheduler.planner import JobPlan, Workload, foresee, plan_jobs

CLASSES = 10
BUDGETS = (0.8, 0.5, 0.2)  # shares of the way from the floor to the liveness peak
BAR = 0.03  # largest relative error of a simulated time
PEAK_BAR = 0.01  # largest relative error of a peak on a GPU


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallNetwork:
    """A network, a batch, and the shape of one row."""

    name: str
    architecture: dict[str, Any]
    shape: tuple[int, ...]
    rows: int

    def subject(self) -> TrainingSubject:
        """Return the network with random weights and rows.

        The import needs more packages than known networks do, and a machine with a GPU may lack them.
        """
        from indb_tensile.learning.networks import architectures

        module = architectures.build(self.architecture, self.shape, CLASSES)
        x, y = torch.randn(self.rows, *self.shape), torch.randint(0, CLASSES, (self.rows,))
        return TrainingSubject(name=self.name, module=module, loss=nn.CrossEntropyLoss(), x=x, y=y)


NETWORKS = (
    SmallNetwork(
        name="mlp", architecture={"type": "mlp", "hidden": [2048] * 3, "dropout": 0.2}, shape=(64,), rows=256
    ),
    SmallNetwork(
        name="cnn",
        architecture={"type": "cnn", "channels": [48], "depth": 6, "hidden": [128], "dropout": 0.2},
        shape=(1, 8, 8),
        rows=256,
    ),
    SmallNetwork(
        name="transformer",
        architecture={
            "type": "layers",
            "layers": [
                {"type": "transformer_encoder", "heads": 4, "layers": 2, "feedforward": 512, "dropout": 0.1},
                {"type": "flatten"},
                {"type": "linear"},
            ],
        },
        shape=(16, 128),
        rows=128,
    ),
    SmallNetwork(
        name="lstm",
        architecture={
            "type": "layers",
            "layers": [{"type": "lstm", "hidden": 256}, {"type": "flatten"}, {"type": "linear"}],
        },
        shape=(32, 64),
        rows=128,
    ),
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print one row per network and budget."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    known = f"of {', '.join(networks.NETWORKS)}; without names, those with a step of tenths of a second"
    parser.add_argument("--models", nargs="*", metavar="NAME", help=known)
    add_sizes(parser)
    add_target(parser)
    parser.add_argument("--rounds", type=whole(), default=5, help="turns of liveness and planned iterations")
    parser.add_argument("--iterations", type=whole(), default=5, help="iterations of each in one turn")
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    options = parser.parse_args(arguments)
    run_target = target(options)
    small = options.models is None and run_target.emulated
    models = [] if small else options.models or list(SIZES)
    run_each_alone(models)
    preload()
    torch.set_num_threads(1)
    off = 0
    for subject in _subjects(models, options, run_target):
        for row in measure(subject, run_target, rounds=options.rounds, iterations=options.iterations):
            print(json.dumps(row) if options.json else _line(row), flush=True)
            off += abs(row["simulated_ratio"] - 1) > BAR
            off += abs(row["measured_peak_bytes"] / row["peak_bytes"] - 1) > (
                0.0 if run_target.emulated else PEAK_BAR
            )
    sys.exit(int(off > 0))


def _subjects(models: Sequence[str], options: argparse.Namespace, run_target: RunTarget) -> Iterator[TrainingSubject]:
    if not models:
        yield from (network.subject() for network in NETWORKS)
    for name in models:
        yield BenchmarkCase.of(name, options.batch, options.side, emulated=run_target.emulated).subject()


def measure(
    subject: TrainingSubject, run_target: RunTarget, *, rounds: int, iterations: int
) -> Iterator[dict[str, Any]]:
    """Yield one row per budget."""
    with set_up(run_target, subject) as rig:
        trial = rig.trial(subject)
        for share in BUDGETS:
            yield _compare(rig, trial, share, rounds=rounds, iterations=iterations)
        trial.runner.close()


def _compare(rig: DeviceRig, trial: StepTrial, share: float, *, rounds: int, iterations: int) -> dict[str, Any]:
    """Run liveness and planned iterations in turns. Each plan is made from the latencies of the turn before."""
    graph, link = rig.step.graph, rig.link
    floor_bytes, high_bytes = floor(graph), liveness_peak(graph)
    budget_bytes = round(floor_bytes + share * (high_bytes - floor_bytes))
    unplanned: list[int] = []
    planned: list[int] = []
    predicted: list[int] = []
    simulated: list[int] = []
    first: list[int] = []
    peaks: list[tuple[int, int]] = []  # planned and measured
    for _ in range(rounds):
        measured = trial.run(LIVENESS, iterations)
        unplanned.append(measured.iteration_ns)
        if rig.opened.torch_device == HOST:
            first.append(sum(calibrated_step(trial.step)[1]))
        plan = _plan(workload(trial.step, measured.latency_ns), budget_bytes, link)
        measured = trial.run(plan.plans[0], iterations, rig.reset_high_water)
        planned.append(measured.iteration_ns)
        predicted.append(plan.forecast.iteration_ns)
        (predicted_again,) = foresee([workload(trial.step, measured.latency_ns)], [plan], link=link)
        simulated.append(predicted_again.forecast.iteration_ns)
        peaks.append((plan.peak_bytes, rig.peak_bytes(measured.peak_bytes)))
    peak_bytes, measured_bytes = max(peaks, key=lambda both: abs(both[1] / both[0] - 1))
    return {
        "network": trial.subject.name,
        "batch": len(trial.subject.x),
        "link_bytes_per_s": link.out_bytes_per_s,
        "liveness_peak_bytes": high_bytes,
        "floor_bytes": floor_bytes,
        "peak_bytes": peak_bytes,
        "measured_peak_bytes": measured_bytes,
        "swaps": plan.swaps,
        "foretold_ms": round(median(predicted) / 1e6, 2),
        "measured_ms": round(median(planned) / 1e6, 2),
        "ratio": _ratio(planned, predicted),
        "simulated_ratio": _ratio(planned, simulated),
        "eor": _ratio(planned, unplanned),
        "first_ratio": _ratio(unplanned, first) if first else None,
    }


def _ratio(measured: Sequence[int], others: Sequence[int]) -> float:
    """Return the median ratio over the rounds."""
    return round(median(m / other for m, other in zip(measured, others, strict=True)), 3)


def _plan(work: Workload, budget_bytes: int, link: Link) -> JobPlan:
    plans = plan_jobs([work], budget_bytes=budget_bytes, link=link)
    assert isinstance(plans, tuple)  # no budget here is below the floor
    return plans[0]


def _line(row: dict[str, Any]) -> str:
    sizes = ", ".join(
        f"{name} {row[f'{name}_bytes'] / config.MIB:.1f} MB" for name in ("liveness_peak", "floor", "peak")
    )
    return (
        f"{row['network']:<12} {sizes}, {row['swaps']} swaps; predicted {row['foretold_ms']} ms, "
        f"measured {row['measured_ms']} ms, ratio {row['ratio']}, simulated_ratio {row['simulated_ratio']}, "
        f"eor {row['eor']}, first_ratio {row['first_ratio']}"
    )


if __name__ == "__main__":
    run(main)
