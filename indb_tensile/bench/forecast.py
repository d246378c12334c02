"""How well the simulator foretells a planned iteration on the emulated device: its peak exactly, its time as a ratio.

    python -m indb_tensile.bench.forecast [--models [resnet50 …] [--batch 8] [--side 64]] [--machine a6000]
        [--rounds 5] [--iterations 5] [--json]

Four small networks; with `--models` known ones (bench/networks.py), all nine without names, each at a batch and a
side at which a step takes tenths of a second: one to three minutes each, ten for GPT-2. Steps are served from the
arena. The device is the machine with its clock slowed down to this very step. Per network: operators are measured
under the liveness plan, then plans between the liveness peak and the floor are made from these latencies and
followed. Liveness and planned iterations take turns, so that a machine that slows down slows both; figures are
medians. `ratio` is measured over foretold time; `simulated_ratio` the same with the latencies that operators then had
under the plan, which are what a controller goes on with: it judges the simulator alone, where in `ratio` are also the
operators that a plan makes faster (less memory is in use, more of it in caches) or slower (copies take bandwidth).
`eor` is measured time over that of the liveness iterations of the same run. It ends with 1 where a median
`simulated_ratio` is more than 3 % off.
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
from indb_tensile.bench.ending import run
from indb_tensile.bench.options import whole
from indb_tensile.bench.trial import (
    SIZES,
    Subject,
    Trial,
    alone,
    emulated,
    placer,
    preload,
    slowed_link,
    small,
    workload,
)
from indb_tensile.learning import architectures
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.machines import MACHINES, REFERENCE, machine
from indb_tensile.scheduler.peak import LIVENESS, floor, liveness_peak, vanilla_peak
from indb_tensile.scheduler.planner import JobPlan, Workload, foresee, plan_jobs

CLASSES = 10
BUDGETS = (0.8, 0.5, 0.2)  # of the way from the floor to the liveness peak
BAR = 0.03  # what a simulated time may be off


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
    parser.add_argument("--batch", type=whole(), help="of known networks; without it one for each, as for --side")
    parser.add_argument("--side", "--pixels", type=whole(), help="their pixels a side, or tokens")
    parser.add_argument("--machine", choices=MACHINES, default=REFERENCE.name, help="what the device stands for")
    parser.add_argument("--rounds", type=whole(), default=5, help="turns of liveness and planned iterations")
    parser.add_argument("--iterations", type=whole(), default=5, help="iterations of each in one turn")
    parser.add_argument("--json", action="store_true", help="one object a line")
    given = parser.parse_args(arguments)
    models = [] if given.models is None else given.models or list(SIZES)
    alone(models)
    preload()
    torch.set_num_threads(1)
    off = 0
    for subject in _subjects(models, given.batch, given.side):
        for row in measure(subject, given.machine, rounds=given.rounds, iterations=given.iterations):
            print(json.dumps(row) if given.json else _line(row), flush=True)
            off += abs(row["simulated_ratio"] - 1) > BAR
    sys.exit(int(off > 0))


def _subjects(models: Sequence[str], batch: int | None, side: int | None) -> Iterator[Subject]:
    if not models:
        yield from (network.subject() for network in NETWORKS)
    for network in map(networks.find, models):
        rows, _ = SIZES.get(network.name, (2, None))
        yield Subject.of(small(network, side), rows if batch is None else batch)


def measure(subject: Subject, machine_name: str, *, rounds: int, iterations: int) -> Iterator[dict[str, Any]]:
    """One row per budget."""
    step = subject.capture()
    link = slowed_link(subject, step, machine(machine_name), iterations)
    with emulated(link, 2 * vanilla_peak(step.graph)) as device:
        trial = Trial(subject, step, device, placer=placer(device, step))
        for share in BUDGETS:
            yield _compare(trial, share, link, rounds=rounds, iterations=iterations)
        trial.runner.close()


def _compare(trial: Trial, share: float, link: Link, *, rounds: int, iterations: int) -> dict[str, Any]:
    """Liveness and planned iterations in turns; each plan is made from the latencies of the turn before."""
    graph = trial.step.graph
    floor_bytes, high_bytes = floor(graph), liveness_peak(graph)
    budget_bytes = round(floor_bytes + share * (high_bytes - floor_bytes))
    unplanned: list[int] = []
    planned: list[int] = []
    foretold: list[int] = []
    simulated: list[int] = []
    for _ in range(rounds):
        found = trial.run(LIVENESS, iterations)
        unplanned.append(found.iteration_ns)
        plan = _plan(workload(trial.step, found.latency_ns), budget_bytes, link)
        found = trial.run(plan.plans[0], iterations)
        planned.append(found.iteration_ns)
        foretold.append(plan.forecast.iteration_ns)
        (again,) = foresee([workload(trial.step, found.latency_ns)], [plan], link=link)
        simulated.append(again.forecast.iteration_ns)
        assert found.peak_bytes == plan.peak_bytes, f"planned {plan.peak_bytes}, measured {found.peak_bytes} bytes"
    return {
        "network": trial.subject.name,
        "batch": len(trial.subject.x),
        "link_bytes_per_s": link.out_bytes_per_s,
        "liveness_peak_bytes": high_bytes,
        "floor_bytes": floor_bytes,
        "peak_bytes": plan.peak_bytes,
        "measured_peak_bytes": found.peak_bytes,
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
