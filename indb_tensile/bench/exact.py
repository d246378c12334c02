"""Whether results stay the same, bit for bit: every network under every policy's plan, run on a device.

    python -m indb_tensile.bench.exact [--models resnet50 …] [--policies capuchin …] [--batch 2] [--side 32]
        [--kinds [NAME …]] [--seeds 3] [--budgets 0.6 0.2] [--iterations 2] [--device emulated] [--machine a6000]
        [--json]

Per network and seed (of weights, rows and what operators draw) the captured step is trained for some iterations
without a plan, by eager PyTorch, and under the plan of each policy for each budget, a share of the way from the floor
to the liveness peak. Everything that is trained is compared: parameters, buffers and, between plans, the optimizer's
state. Planned steps are served from the arena, at planned addresses; the unplanned one, with which they are compared,
is in ordinary memory where there is any. On a GPU all compute in torch's own precision (precision.py), and a captured
batch normalisation runs torch's native kernels where eager's runs cuDNN's: there the bits of the unplanned captured
step are the measure, and eager's may differ. One row each as soon as it ran, and what is planned on the error output;
it ends with 1 where anything differs. The whole matrix takes a minute or two for each network.

`turnover` is what the link that plans are made for moves during an iteration without a plan, over the liveness peak,
and `simulated_turnover` that of the same step on the machine, by its roofline (bench/turnover.py).

With `--kinds` small networks of twenty kinds are tried instead (bench/kinds.py), with other optimizers than Adam,
in parts, in half precision and with averages of weights: `--kinds --policies tensile+ --seeds 1` takes two minutes.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import torch

from indb_tensile.bench import rows
from indb_tensile.bench.cases import Case
from indb_tensile.bench.ending import run
from indb_tensile.bench.kinds import KINDS, Kind, find_kind
from indb_tensile.bench.networks import NETWORKS
from indb_tensile.bench.options import portion, whole
from indb_tensile.bench.plain import train_plainly
from indb_tensile.bench.processes import alone, preload
from indb_tensile.bench.rig import Rig, Target, add_target, set_up, target
from indb_tensile.bench.rivals import EAGER, SEED, Values
from indb_tensile.bench.trial import Subject, Trial, same_bits, workload
from indb_tensile.bench.turnover import simulated_turnover, turnover
from indb_tensile.executor.placer import Placer
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.peak import LIVENESS, floor, liveness_peak, peak
from indb_tensile.scheduler.plan import Plan
from indb_tensile.scheduler.planner import Workload
from indb_tensile.scheduler.policies import POLICIES

Row = dict[str, Any]

# Bits do not depend on sizes, and a minute is enough for no large ones; Inception needs 75 pixels.
SIDE = 32
SIDES = {"inception_v3": 75, "inception_v4": 75, "bert": 16, "gpt2": 16, "lstm": 8}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is tried on each network."""

    policies: tuple[str, ...] = tuple(POLICIES)
    budgets: tuple[float, ...] = (0.6, 0.2)
    target: Target = field(default_factory=Target)
    iterations: int = 2  # the second starts from a state that a plan left


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a row for each run, and how many were exact."""
    given = _parser().parse_args(arguments)
    kinds = [find_kind(name) for name in (KINDS if given.kinds == [] else given.kinds or ())]
    models: list[str] = ([] if kinds else list(NETWORKS)) if given.models is None else given.models
    if kinds:
        alone([kind.name for kind in kinds], "--kinds", find_kind)
    else:
        alone(models)
    preload()
    torch.set_num_threads(1)
    found: list[Row] = []
    asked = Asked(
        policies=rows.known_policies(given.policies),
        budgets=tuple(given.budgets),
        target=target(given),
        iterations=given.iterations,
    )
    sources: list[Kind | Case] = [*kinds]
    for name in models:
        side = given.side or SIDES.get(name, SIDE)
        sources.append(Case.of(name, given.batch, side, emulated=asked.target.emulated))
    for source in sources:
        for row in measure(map(source.subject, range(given.seeds)), asked):
            found.append(row)
            print(rows.stamped(row) if given.json else _line(row), flush=True)
    exact = sum(row["exact"] for row in found)
    told = f"{exact} of {len(found)} runs are equal bit for bit" + ("" if exact == len(found) else ": NOT EXACT")
    print(told, file=sys.stderr if given.json else sys.stdout)
    sys.exit(int(exact < len(found)))


def measure(subjects: Iterator[Subject], asked: Asked) -> Iterator[Row]:
    """A row for eager and for each plan of each subject; subjects differ in their seeds alone."""
    first = next(subjects)
    with set_up(asked.target, first, throttled=False) as rig:
        plans: dict[Plan, str] = {}
        for seed, subject in enumerate(chain([first], subjects)):
            labels = {"model": subject.name, "batch": len(subject.x), "seed": seed}
            unplanned, eager = _unplanned(subject, rig, asked)
            yield labels | eager
            trial = rig.trial(subject)
            measured = trial.run(LIVENESS, 1)
            plans = plans or _plans(workload(trial.step, measured.latency_ns), rig.link, asked)
            figures = {
                "turnover": round(turnover(trial.step.graph, rig.link, measured.iteration_ns), 3),
                "simulated_turnover": round(simulated_turnover(trial.step.graph, asked.target.stands_for), 3),
            }
            for row in _judged(trial, plans, unplanned, asked.iterations):
                yield labels | row | figures
            trial.runner.close()


def _plans(work: Workload, link: Link, asked: Asked) -> dict[Plan, str]:
    """Each plan that is another one than those before, and whose it is first."""
    (graph,) = work.graphs
    low, high = floor(graph), liveness_peak(graph)
    found: dict[Plan, str] = {}
    for policy in asked.policies:
        for share in asked.budgets:
            found.setdefault(_planned(work, policy, round(low + share * (high - low)), link), policy)
    return found


def _planned(work: Workload, policy: str, budget_bytes: int, link: Link) -> Plan:
    started_s = time.perf_counter()
    ((plan,),) = POLICIES[policy]([work], budget_bytes=budget_bytes, link=link)
    taken_s = time.perf_counter() - started_s
    print(f"{policy} planned {len(plan.swaps)} swaps in {taken_s:.1f} s", file=sys.stderr, flush=True)
    return plan


def _unplanned(subject: Subject, rig: Rig, asked: Asked) -> tuple[Values, Row]:
    """What all are compared with, and eager's row.

    Where the device is the host's memory, nothing of it is placed; a GPU has no other memory than the job's. Eager
    has no optimizer state under our names.
    """
    trial = rig.trial(subject, placer=Placer() if asked.target.emulated else None)
    unplanned = _trained(trial, LIVENESS, asked.iterations)
    trial.runner.close()
    exact = _alike(_eager(subject, rig, asked.iterations), unplanned)
    return unplanned, {"policy": EAGER, "swaps": 0, "operators": None, "peak_bytes": None, "exact": exact}


def _judged(trial: Trial, plans: dict[Plan, str], unplanned: Values, iterations: int) -> Iterator[Row]:
    """A row for each plan."""
    graph = trial.step.graph
    for plan, policy in plans.items():
        yield {
            "policy": policy,
            "swaps": len(plan.swaps),
            "operators": len(plan.executions) or len(graph.operators),
            "peak_bytes": peak(graph, plan),
            "exact": _alike(_trained(trial, plan, iterations), unplanned),
        }


def _trained(trial: Trial, plan: Plan, iterations: int) -> Values:
    """All that is kept after so many iterations under this plan."""
    trial.adopt(plan)
    trial.restart()
    torch.manual_seed(SEED)
    for _ in range(iterations):
        trial.iterate()
    return trial.state.export()


def _eager(subject: Subject, rig: Rig, iterations: int) -> Values:
    """Parameters, buffers and averages after PyTorch's own iterations; the module is as before."""
    torch.manual_seed(SEED)
    return train_plainly(subject, iterations, rig.opened.torch_device)


def _alike(values: Values, others: Values) -> bool:
    """Whether all of `values` are equal, bit for bit."""
    return all(same_bits(tensor, others[name]) for name, tensor in values.items())


def _line(row: Row) -> str:
    told = "exact" if row["exact"] else "NOT EXACT"
    line = f"{row['model']:<13} seed {row['seed']} {row['policy']:<13} {row['swaps']:>4} swaps  {told}"
    return line + (f"  turnover {row['turnover']:.2f}" if "turnover" in row else "")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    default = Asked()
    parser.add_argument("--models", nargs="+", metavar="NAME", help="all, unless --kinds is given")
    parser.add_argument("--kinds", nargs="*", metavar="NAME", help=f"all, or some of: {', '.join(KINDS)}")
    parser.add_argument("--policies", nargs="+", default=[], metavar="NAME", help=f"of {', '.join(POLICIES)}")
    parser.add_argument("--batch", type=whole(), default=2)
    parser.add_argument("--side", "--pixels", type=whole(), help="pixels a side, or tokens; without it few")
    parser.add_argument("--seeds", type=whole(), default=3)
    parser.add_argument(
        "--budgets", nargs="+", type=portion, default=default.budgets, help="from the floor to liveness"
    )
    parser.add_argument("--iterations", type=whole(), default=default.iterations)
    add_target(parser)
    parser.add_argument("--json", action="store_true", help="one object a line")
    return parser


if __name__ == "__main__":
    run(main)
