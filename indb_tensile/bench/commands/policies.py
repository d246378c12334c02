"""Compares all policies on known networks: memory saved against both baselines, overhead and planning time.

    python -m indb_tensile.bench policies [--models resnet50 …] [--policies tensile+ …] [--links 25 …]
        [--machines a6000 …] [--budgets 12] [--refine 4] [--beside FILE …] [--processes 1] [--json]

The cases are the reference machine with links of 12, 25 and 55 GB/s, and an A100 and an H200 with 25 GB/s. Each
policy plans for budgets from the liveness peak down to the floor, for half and 70 % of the liveness peak, and for the
least possible memory. A policy that follows budgets also plans for budgets that close in on the least memory at
overheads of 2 and 10 %. Our own policy also plans for every rival's peak. check.py judges each plan and the simulator
scores it. Each new plan has a row; a repeated plan has none. The verdict says whether our points cover all points
(overhead, peak) of each rival, that is, are at least as good in both, and whether the savings that the design demands
are reached. The exit code is 1 if either is not so, or if a plan breaks a rule. With --json rows go to stdout and the
verdict to stderr.

Some rivals take minutes for a case, and their plans do not change when our policy does. --beside therefore reads
rivals' rows that --json printed earlier, and then only our own policy is planned, unless --policies names others.

Where a step updates no buffer, PyTorch's `activation_memory_budget` (bench/harness/planning/mincut.py) is also a
rival.
"""

import argparse
import multiprocessing
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NoReturn, TypeVar

from indb_tensile.bench.harness.networks.known_networks import NETWORKS, Network, find, graph_of
from indb_tensile.bench.harness.processes.process_exit import run
from indb_tensile.bench.harness.results import result_tables
from indb_tensile.bench.harness.results import rows as shared
from indb_tensile.bench.harness.results.result_tables import Remarks
from indb_tensile.bench.harness.results.rows import MINCUT, PlanningCase, Row
from indb_tensile.scheduler.graph import Role
from indb_tensile.scheduler.policies import DEFAULT_POLICY, POLICIES
from indb_tensile.scheduler.policies.policy import Plans
from indb_tensile.scheduler.timing.machines import LINKS_GB_S, MACHINES, REFERENCE, machine

CASE = ("model", "machine", "link_gb_s")
_ELSEWHERE_GB_S = 25.0
_MOST_OPERATORS = 2_000
_Case = TypeVar("_Case")

# Savings that our policy must reach on the reference machine at 25 GB/s: network, overhead, share of the liveness
# peak.
BARS = (
    ("resnet50", 1.10, 0.45),
    ("resnet50", 1.02, 0.30),
    ("inception_v3", 1.10, 0.42),
    ("inception_v4", 1.10, 0.42),
    ("densenet121", 1.10, 0.38),
    ("vgg16", 1.10, 0.30),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySweep:
    """One case to compare policies on, by names. The worker process that plans it builds the graph."""

    model: str
    machine: str
    link_gb_s: float
    policies: tuple[str, ...]
    budgets: int
    refine: int
    batch: int | None = None
    beside: tuple[Row, ...] = ()  # rows of rivals from earlier runs


def main(arguments: Sequence[str] | None = None) -> None:
    """Print rows or tables, and the verdict."""
    options = _parser().parse_args(arguments)
    finish(options, CASE, lambda: measure(_sweeps(options), sweep_case, options.processes), bars)


def finish(
    options: argparse.Namespace,
    names: Sequence[str],
    make_rows: Callable[[], Iterator[Row]],
    remarks: Remarks = lambda _: iter(()),
) -> NoReturn:
    """Print rows as they are make_rows, or tables of them; then print the verdict and exit with its code."""
    rows: list[Row] = []
    rows += recorded_rivals(options)
    for row in make_rows() if not options.recorded else shared.recorded(options.recorded):
        rows.append(row)
        if options.json:
            print(shared.stamped(row), flush=True)
    if options.markdown:
        print("\n".join(result_tables.markdown(rows, names, remarks)))
    elif not options.json:
        result_tables.print_tables(rows, names)
    lines = [*result_tables.verdict(rows, names), *remarks(rows)]
    for line in lines:
        print(line, file=sys.stderr if options.json or options.markdown else sys.stdout)
    sys.exit(int(any("NOT" in line for line in lines) or any(row["faults"] for row in rows)))


def measure(cases: Sequence[_Case], sweep: Callable[[_Case], Iterator[Row]], processes: int) -> Iterator[Row]:
    """Yield the rows of each case, in order. With several processes a case's rows come when the case is done."""
    if processes == 1:
        for case in cases:
            yield from sweep(case)
        return
    context = multiprocessing.get_context("spawn")
    # Only this process handles an interrupt; it ends the others.
    with context.Pool(processes, signal.signal, (signal.SIGINT, signal.SIG_IGN)) as pool:
        for case_rows in pool.imap(partial(_listed, sweep), cases):
            yield from case_rows


def bars(rows: Sequence[Row]) -> Iterator[str]:
    """Yield whether the design's bars are reached, for those that the rows cover."""
    at = shared.group_by(rows, *CASE, "policy")
    for model, overhead, least_saving in BARS:
        points = at.get((model, REFERENCE.name, _ELSEWHERE_GB_S, DEFAULT_POLICY))
        if points is None:
            continue
        best = shared.best_msr(points, overhead)
        saving = "nothing" if best is None else f"{best:.1%}"
        reached = best is not None and best >= least_saving
        verdict = "saves" if reached else "NOT REACHED:"
        yield f"{model} at EOR <= {overhead:.2f}: {verdict} {saving}, of {least_saving:.0%}"


def _listed(sweep: Callable[[_Case], Iterator[Row]], case: _Case) -> list[Row]:
    return list(sweep(case))


def sweep_case(options: PolicySweep) -> Iterator[Row]:
    """Yield the rows of all policies on one case."""
    network = find(options.model)
    batch = network.batch if options.batch is None else options.batch
    graph = graph_of(options.model, batch)
    labels = {"model": options.model, "batch": batch, "operators": len(graph.operators)}
    case = shared.make_case([graph], machine(options.machine), options.link_gb_s, labels=labels)
    rival_plans = _mincut(network, batch, case) if MINCUT in options.policies else iter(())
    policies = [name for name in options.policies if name != MINCUT]
    yield from shared.sweep(
        case, policies, budgets=options.budgets, refine=options.refine, rival_plans=rival_plans, beside=options.beside
    )


def _mincut(network: Network, batch: int, case: PlanningCase) -> Iterator[tuple[str, Plans, float]]:
    """Yield the plans that PyTorch itself would make.

    A step that updates buffers has none, because PyTorch recomputes the operators that read them. Very large steps
    have none, because each minimum cut takes many seconds.
    """
    (workload,) = case.workloads
    (graph,) = workload.graphs
    updates = any(graph.tensors[t].role is Role.BUFFER for o in graph.operators for t in o.writes)
    if updates or len(graph.operators) > _MOST_OPERATORS:
        return
    from indb_tensile.bench.harness.planning.mincut import mincut_plans  # torch's compiler takes seconds to import

    for plan, planning_ms in mincut_plans(network, batch, graph, workload.latency_ns[0]):
        yield MINCUT, ((plan,),), planning_ms


def _sweeps(options: argparse.Namespace) -> list[PolicySweep]:
    for name in options.models:
        find(name)
    for name in options.machines:
        machine(name)
    machines = options.machines or [REFERENCE.name]
    pairs = [(name, link) for name in machines for link in options.links or LINKS_GB_S]
    if not options.machines and not options.links:
        pairs += [("a100", _ELSEWHERE_GB_S), ("h200", _ELSEWHERE_GB_S)]
    return [sweep_of(options, model, name, link) for model in options.models or NETWORKS for name, link in pairs]


def sweep_of(
    options: argparse.Namespace, model: str, machine_name: str, link_gb_s: float, **more: int
) -> PolicySweep:
    """Return a case with the options of the sweep."""
    labels = {"model": model, "machine": machine_name, "link_gb_s": link_gb_s, **more}
    beside = [
        row for row in recorded_rivals(options) if all(row.get(name) == value for name, value in labels.items())
    ]
    return PolicySweep(
        model=model,
        machine=machine_name,
        link_gb_s=link_gb_s,
        policies=shared.known_policies(options.policies or ([DEFAULT_POLICY] if options.beside else []), MINCUT),
        budgets=options.budgets,
        refine=options.refine,
        beside=tuple(beside),
        **more,
    )


def recorded_rivals(options: argparse.Namespace) -> list[Row]:
    """Return the rows of rivals from earlier runs."""
    return [row for row in shared.recorded(options.beside) if row["policy"] != DEFAULT_POLICY]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_sweep_options(parser)
    add_beside(parser)
    parser.add_argument("--machines", nargs="+", default=[], metavar="NAME", help=f"of {', '.join(MACHINES)}")
    return parser


def add_beside(parser: argparse.ArgumentParser) -> None:
    """Add the option --beside, for benchmarks whose rows contain all fields that identify a case."""
    parser.add_argument("--beside", nargs="+", default=[], metavar="FILE", help="rivals' rows that --json printed")


def add_sweep_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of every benchmark that sweeps budgets."""
    parser.add_argument("--models", nargs="+", default=[], metavar="NAME", help=f"of {', '.join(NETWORKS)}")
    parser.add_argument(
        "--policies", nargs="+", default=[], metavar="NAME", help=f"of {', '.join((*POLICIES, MINCUT))}"
    )
    parser.add_argument("--links", nargs="+", type=float, default=[], metavar="GB/S")
    parser.add_argument(
        "--budgets", type=int, default=12, help="number of budgets from the liveness peak to the floor"
    )
    parser.add_argument("--refine", type=int, default=4, help="further budgets around each overhead of 2 and 10 %%")
    parser.add_argument("--processes", type=int, default=1, help="cases planned at once; slows down planning times")
    parser.add_argument("--recorded", nargs="+", default=[], metavar="FILE", help="rows from --json; plan nothing")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one JSON object per line")
    form.add_argument("--markdown", action="store_true", help="print tables for a document")
    parser.set_defaults(beside=[])


if __name__ == "__main__":
    run(main)
