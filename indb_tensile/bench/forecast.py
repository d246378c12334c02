"""How well the simulator foretells a planned iteration: its peak exactly, on a GPU nearly so, its time as a ratio.

    python -m indb_tensile.bench.forecast [--models [resnet50 …] [--batch 8] [--side 64]] [--device emulated]
        [--machine a6000] [--rounds 5] [--iterations 5] [--json]

Four small networks; with `--models` known ones (bench/networks.py), all nine without names, each at a batch and a
side at which a step takes tenths of a second: one to three minutes each, ten for GPT-2; with `--device cuda` on a
GPU, at their own sides and larger batches. Steps are served from the arena. An emulated device is the machine with
its clock slowed down to this very step. Per network: operators are measured
under the liveness plan, then plans between the liveness peak and the floor are made from these latencies and
followed. Liveness and planned iterations take turns, so that a machine that slows down slows both; figures are
medians. `ratio` is measured over foretold time; `simulated_ratio` the same with the latencies that operators then had
under the plan, which are what a controller goes on with: it judges the simulator alone, where in `ratio` are also the
operators that a plan makes faster (less memory is in use, more of it in caches) or slower (copies take bandwidth).
`eor` is measured time over that of the liveness iterations of the same run. It ends with 1 where a median
`simulated_ratio` is more than 3 % off, or a peak is: by a byte, on a GPU by 1 %.
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
from indb_tensile.bench import networks
from indb_tensile.bench.cases import SIZES, Case, add_sizes
from indb_tensile.bench.ending import run
from indb_tensile.bench.options import whole
from indb_tensile.bench.processes import alone, preload
from indb_tensile.bench.rig import Rig, Target, add_target, set_up, target
from indb_tensile.bench.trial import Subject, Trial, workload
from indb_tensile.learning import architectures
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.peak import LIVENESS, floor, liveness_peak
from indb_tensile.scheduler.planner import JobPlan, Workload, foresee, plan_jobs

CLASSES = 10
BUDGETS = (0.8, 0.5, 0.2)  # of the way from the floor to the liveness peak
BAR = 0.03  # what a simulated time may be off
PEAK_BAR = 0.01  # and a peak on a GPU


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """A network, a batch, and the shape of one row."""

    name: str
    architecture: dict[str, Any]
    shape: tuple[int, ...]
    rows: int

    def subject(self) -> Subject:
        """The network with random weights and rows."""
        module = architectures.build(self.architecture, self.shape, CLASSES)
        x, y = torch.randn(self.rows, *self.shape), torch.randint(0, CLASSES, (self.rows,))
        return Subject(name=self.name, module=module, loss=nn.CrossEntropyLoss(), x=x, y=y)


NETWORKS = (
    Network(name="mlp", architecture={"type": "mlp", "hidden": [2048] * 3, "dropout": 0.2}, shape=(64,), rows=256),
    Network(
        name="cnn",
        architecture={"type": "cnn", "channels": [48], "depth": 6, "hidden": [128], "dropout": 0.2},
        shape=(1, 8, 8),
        rows=256,
    ),
    Network(
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
    Network(
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
    known = f"of {', '.join(networks.NETWORKS)}; without a name those of which a step is soon done"
    parser.add_argument("--models", nargs="*", metavar="NAME", help=known)
    add_sizes(parser)
    add_target(parser)
    parser.add_argument("--rounds", type=whole(), default=5, help="turns of liveness and planned iterations")
    parser.add_argument("--iterations", type=whole(), default=5, help="iterations of each in one turn")
    parser.add_argument("--json", action="store_true", help="one object a line")
    given = parser.parse_args(arguments)
    where = target(given)
    small = given.models is None and where.emulated
    models = [] if small else given.models or list(SIZES)
    alone(models)
    preload()
    torch.set_num_threads(1)
    off = 0
    for subject in _subjects(models, given, where):
        for row in measure(subject, where, rounds=given.rounds, iterations=given.iterations):
            print(json.dumps(row) if given.json else _line(row), flush=True)
            off += abs(row["simulated_ratio"] - 1) > BAR
            off += abs(row["measured_peak_bytes"] / row["peak_bytes"] - 1) > (0.0 if where.emulated else PEAK_BAR)
    sys.exit(int(off > 0))


def _subjects(models: Sequence[str], given: argparse.Namespace, where: Target) -> Iterator[Subject]:
    if not models:
        yield from (network.subject() for network in NETWORKS)
    for name in models:
        yield Case.of(name, given.batch, given.side, emulated=where.emulated).subject()


def measure(subject: Subject, where: Target, *, rounds: int, iterations: int) -> Iterator[dict[str, Any]]:
    """One row per budget."""
    with set_up(where, subject) as rig:
        trial = rig.trial(subject)
        for share in BUDGETS:
            yield _compare(rig, trial, share, rounds=rounds, iterations=iterations)
        trial.runner.close()


def _compare(rig: Rig, trial: Trial, share: float, *, rounds: int, iterations: int) -> dict[str, Any]:
    """Liveness and planned iterations in turns; each plan is made from the latencies of the turn before."""
    graph, link = rig.step.graph, rig.link
    floor_bytes, high_bytes = floor(graph), liveness_peak(graph)
    budget_bytes = round(floor_bytes + share * (high_bytes - floor_bytes))
    unplanned: list[int] = []
    planned: list[int] = []
    foretold: list[int] = []
    simulated: list[int] = []
    peaks: list[tuple[int, int]] = []  # planned and measured
    for _ in range(rounds):
        found = trial.run(LIVENESS, iterations)
        unplanned.append(found.iteration_ns)
        plan = _plan(workload(trial.step, found.latency_ns), budget_bytes, link)
        found = trial.run(plan.plans[0], iterations, rig.reset_high_water)
        planned.append(found.iteration_ns)
        foretold.append(plan.forecast.iteration_ns)
        (again,) = foresee([workload(trial.step, found.latency_ns)], [plan], link=link)
        simulated.append(again.forecast.iteration_ns)
        peaks.append((plan.peak_bytes, rig.peak_bytes(found.peak_bytes)))
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
        "foretold_ms": round(median(foretold) / 1e6, 2),
        "measured_ms": round(median(planned) / 1e6, 2),
        "ratio": _ratio(planned, foretold),
        "simulated_ratio": _ratio(planned, simulated),
        "eor": _ratio(planned, unplanned),
    }


def _ratio(measured: Sequence[int], others: Sequence[int]) -> float:
    """The median over the rounds."""
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
        f"{row['network']:<12} {sizes}, {row['swaps']} swaps; foretold {row['foretold_ms']} ms, "
        f"measured {row['measured_ms']} ms, ratio {row['ratio']}, simulated_ratio {row['simulated_ratio']}, "
        f"eor {row['eor']}"
    )


if __name__ == "__main__":
    run(main)
