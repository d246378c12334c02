"""Checks that plans do not change results: trains every network under every policy's plans, and compares all bits.

    python -m indb_tensile.bench exact [--models resnet50 …] [--policies capuchin …] [--batch 2] [--side 32]
        [--kinds [NAME …]] [--seeds 3] [--budgets 0.6 0.2] [--iterations 2] [--device emulated] [--machine a6000]
        [--json]

For each network and seed (of weights, rows and operators' random numbers) the captured step trains for some
iterations without a plan and under the plan of each policy for each budget, and eager PyTorch trains the same
network. A budget is a share of the way from the floor to the liveness peak. The comparison covers everything that is
trained: parameters, buffers and, except with eager, the optimizer's state. The arena serves planned steps at planned
addresses. The unplanned step, the reference, is in ordinary memory on an emulated device. On a GPU all steps compute
in torch's own precision (precision.py), and a captured batch normalisation runs torch's native kernels where eager's
runs cuDNN's. There the reference is the unplanned captured step, and eager's bits may differ. Each row appears as
soon as its run is done, and progress of planning goes to the error output. The exit code is 1 if any result differs.
The whole matrix takes a minute or two for each network.

`turnover` is the bytes that the link for which plans are made can move during an iteration without a plan, divided by
the liveness peak. `simulated_turnover` is that of the same step on the machine, with the latencies of a roofline
model (bench/harness/execution/turnover.py).

With `--kinds` the benchmark runs small networks of many kinds instead (bench/harness/exactness/network_kinds.py),
with all losses and optimizers, in micro-batches, in half precision and with averages of weights. `--kinds --policies
tensile+ --seeds 1` takes three minutes.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch

from indb_tensile.bench.harness.comparisons.rivals import EAGER, SEED, Values
from indb_tensile.bench.harness.exactness.plain_steps import train_plainly
from indb_tensile.bench.harness.execution.benchmark_processes import preload, run_each_alone
from indb_tensile.bench.harness.execution.cases import BenchmarkCase
from indb_tensile.bench.harness.execution.device_rig import DeviceRig, RunTarget, add_target, set_up, target
from indb_tensile.bench.harness.execution.trial import StepTrial, TrainingSubject, same_bits, workload
from indb_tensile.bench.harness.execution.turnover import simulated_turnover, turnover
from indb_tensile.bench.harness.networks.known_networks import NETWORKS
from indb_tensile.bench.harness.processes.argument_types import portion, whole
from indb_tensile.bench.harness.processes.process_exit import run
from indb_tensile.bench.harness.results import rows
from indb_tensile.executor.run.placer import Placer
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import LIVENESS, floor, liveness_peak, peak
from indb_tensile.scheduler.plan import Plan
from indb_tensile.scheduler.planner import Workload
from indb_tensile.scheduler.policies import POLICIES

if TYPE_CHECKING:
    from indb_tensile.bench.harness.exactness.network_kinds import NetworkKind

Row = dict[str, Any]

# Small sizes, so that a network takes a minute: whether bits are equal does not depend on sizes. Inception needs 75
# pixels.
SIDE = 32
SIDES = {"inception_v3": 75, "inception_v4": 75, "bert": 16, "gpt2": 16, "lstm": 8}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactOptions:
    """The runs of each network."""

    policies: tuple[str, ...] = tuple(POLICIES)
    budgets: tuple[float, ...] = (0.6, 0.2)
    target: RunTarget = field(default_factory=RunTarget)
    iterations: int = 2  # the second starts from the state that a planned iteration left


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a row for each run, and the number of exact runs."""
    options = _parser().parse_args(arguments)
    kinds = [] if options.kinds is None else _kinds(options.kinds)
    models: list[str] = ([] if kinds else list(NETWORKS)) if options.models is None else options.models
    if not kinds:
        run_each_alone(models)
    preload()
    torch.set_num_threads(1)
    results: list[Row] = []
    runs = ExactOptions(
        policies=rows.known_policies(options.policies),
        budgets=tuple(options.budgets),
        target=target(options),
        iterations=options.iterations,
    )
    sources: list[NetworkKind | BenchmarkCase] = [*kinds]
    for name in models:
        side = options.side or SIDES.get(name, SIDE)
        sources.append(BenchmarkCase.of(name, options.batch, side, emulated=runs.target.emulated))
    for source in sources:
        for row in measure(map(source.subject, range(options.seeds)), runs):
            results.append(row)
            print(rows.stamped(row) if options.json else _line(row), flush=True)
    exact = sum(row["exact"] for row in results)
    summary = f"{exact} of {len(results)} runs are equal bit for bit" + (
        "" if exact == len(results) else ": NOT EXACT"
    )
    print(summary, file=sys.stderr if options.json else sys.stdout)
    sys.exit(int(exact < len(results)))


def _kinds(names: Sequence[str]) -> "list[NetworkKind]":
    """Return the kinds of these names, or all, each of which runs in a process of its own.

    The import needs more packages than known networks do, and a machine with a GPU may lack them.
    """
    from indb_tensile.bench.harness.exactness.network_kinds import KINDS, find_kind

    kinds = [find_kind(name) for name in names or KINDS]
    run_each_alone([kind.name for kind in kinds], "--kinds", find_kind)
    return kinds


def measure(subjects: Iterator[TrainingSubject], runs: ExactOptions) -> Iterator[Row]:
    """Yield a row for eager and for each plan of each subject. Subjects differ only in their seeds."""
    first = next(subjects)
    with set_up(runs.target, first, throttled=False) as rig:
        plans: dict[Plan, str] = {}
        for seed, subject in enumerate(chain([first], subjects)):
            labels = {"model": subject.name, "batch": len(subject.x), "seed": seed}
            unplanned, eager = _run_unplanned(subject, rig, runs)
            yield labels | eager
            trial = rig.trial(subject)
            measured = trial.run(LIVENESS, 1)
            plans = plans or _plans(workload(trial.step, measured.latency_ns), rig.link, runs)
            figures = {
                "turnover": round(turnover(trial.step.graph, rig.link, measured.iteration_ns), 3),
                "simulated_turnover": round(simulated_turnover(trial.step.graph, runs.target.stands_for), 3),
            }
            for row in _compare_plans(trial, plans, unplanned, runs.iterations):
                yield labels | row | figures
            trial.runner.close()


def _plans(work: Workload, link: Link, runs: ExactOptions) -> dict[Plan, str]:
    """Return the distinct plans, each with the first policy that made it."""
    (graph,) = work.graphs
    low, high = floor(graph), liveness_peak(graph)
    plans: dict[Plan, str] = {}
    for policy in runs.policies:
        for share in runs.budgets:
            plans.setdefault(_make_plan(work, policy, round(low + share * (high - low)), link), policy)
    return plans


def _make_plan(work: Workload, policy: str, budget_bytes: int, link: Link) -> Plan:
    started_s = time.perf_counter()
    ((plan,),) = POLICIES[policy].plan([work], budget_bytes=budget_bytes, link=link)
    taken_s = time.perf_counter() - started_s
    print(f"{policy} planned {len(plan.swaps)} swaps in {taken_s:.1f} s", file=sys.stderr, flush=True)
    return plan


def _run_unplanned(subject: TrainingSubject, rig: DeviceRig, runs: ExactOptions) -> tuple[Values, Row]:
    """Return the values of the unplanned captured step, the reference, and eager's row.

    If the device's memory is the host's, the reference is not placed in the arena; on a GPU a job has no other
    memory. Eager's optimizer state is not compared, because torch has other names for it.
    """
    trial = rig.trial(subject, placer=Placer() if runs.target.emulated else None)
    unplanned = _train(trial, LIVENESS, runs.iterations)
    trial.runner.close()
    exact = _equal_bits(_run_eager(subject, rig, runs.iterations), unplanned)
    return unplanned, {"policy": EAGER, "swaps": 0, "operators": None, "peak_bytes": None, "exact": exact}


def _compare_plans(trial: StepTrial, plans: dict[Plan, str], unplanned: Values, iterations: int) -> Iterator[Row]:
    """Yield a row for each plan."""
    graph = trial.step.graph
    for plan, policy in plans.items():
        yield {
            "policy": policy,
            "swaps": len(plan.swaps),
            "operators": len(plan.executions) or len(graph.operators),
            "peak_bytes": peak(graph, plan),
            "exact": _equal_bits(_train(trial, plan, iterations), unplanned),
        }


def _train(trial: StepTrial, plan: Plan, iterations: int) -> Values:
    """Return all trained values after `iterations` iterations under this plan."""
    trial.adopt(plan)
    trial.restart()
    torch.manual_seed(SEED)
    for _ in range(iterations):
        trial.iterate()
    return trial.state.export()


def _run_eager(subject: TrainingSubject, rig: DeviceRig, iterations: int) -> Values:
    """Return parameters, buffers and averages after PyTorch's own iterations. The module is unchanged."""
    torch.manual_seed(SEED)
    return train_plainly(subject, iterations, rig.opened.torch_device)


def _equal_bits(values: Values, others: Values) -> bool:
    """Return whether all of `values` equal `others` bit for bit."""
    return all(same_bits(tensor, others[name]) for name, tensor in values.items())


def _line(row: Row) -> str:
    verdict = "exact" if row["exact"] else "NOT EXACT"
    line = f"{row['model']:<13} seed {row['seed']} {row['policy']:<13} {row['swaps']:>4} swaps  {verdict}"
    return line + (f"  turnover {row['turnover']:.2f}" if "turnover" in row else "")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    default = ExactOptions()
    parser.add_argument("--models", nargs="+", metavar="NAME", help="default: all, unless --kinds is given")
    parser.add_argument("--kinds", nargs="*", metavar="NAME", help="all, or some; a wrong name lists them")
    parser.add_argument(
        "--policies", nargs="+", default=[], metavar="NAME", help=f"policies: {', '.join(POLICIES)} (default: all)"
    )
    parser.add_argument("--batch", type=whole(), default=2)
    parser.add_argument(
        "--side", "--pixels", type=whole(), help="pixels of an image's side, or tokens (default: small sizes)"
    )
    parser.add_argument("--seeds", type=whole(), default=3)
    parser.add_argument(
        "--budgets",
        nargs="+",
        type=portion,
        default=default.budgets,
        help="shares of the way from the floor (0) to the liveness peak (1)",
    )
    parser.add_argument("--iterations", type=whole(), default=default.iterations)
    add_target(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    return parser


if __name__ == "__main__":
    run(main)
