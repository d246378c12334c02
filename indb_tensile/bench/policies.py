"""All policies on known networks: memory saved against both baselines, overhead, planning time, and who leads.

    python -m indb_tensile.bench.policies [--models resnet50 …] [--policies tensile+ …] [--links 25 …]
        [--machines a6000 …] [--budgets 12] [--refine 4] [--beside FILE …] [--processes 1] [--json]

On the reference machine with links of 12, 25 and 55 GB/s, and on an A100 and an H200 with 25. Each policy is asked
for budgets from the liveness peak down to the floor, for half and 70 % of the liveness peak, and for the least memory
it can; where it heeds them, also for budgets that close in on the least memory at overheads of 2 and 10 %. Our own is
asked for every rival's peak besides. Each plan is judged by check.py and scored by the simulator, and has a row; a
plan that came before has none. The verdict says whether a rival reaches a point (overhead, peak) than which ours has
none at least as good in both, and whether the bars of the design are reached; it ends with 1 where either is missed
or a plan breaks a rule. With --json rows go to stdout and the verdict to stderr.

Some rivals take minutes a case, and none of them changes when ours does: --beside takes what they reached from rows
that --json printed, and no policy is planned but ours unless --policies names it.

Where a step updates no buffer, PyTorch's `activation_memory_budget` (bench/mincut.py) is a rival as well.
"""

import argparse
import multiprocessing
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NoReturn, TypeVar

from indb_tensile.bench import rows as shared
from indb_tensile.bench import tables
from indb_tensile.bench.ending import run
from indb_tensile.bench.networks import NETWORKS, Network, find, graph_of
from indb_tensile.bench.rows import MINCUT, Case, Plans, Row
from indb_tensile.bench.tables import Remarks
from indb_tensile.scheduler.graph import Role
from indb_tensile.scheduler.machines import LINKS_GB_S, MACHINES, REFERENCE, machine
from indb_tensile.scheduler.policies import DEFAULT_POLICY, POLICIES

CASE = ("model", "machine", "link_gb_s")
_ELSEWHERE_GB_S = 25.0
_MOST_OPERATORS = 2_000
_Case = TypeVar("_Case")

# What saves at least so much of the liveness peak on the reference machine at 25 GB/s: network, overhead, saving.
BARS = (
    ("resnet50", 1.10, 0.45),
    ("resnet50", 1.02, 0.30),
    ("inception_v3", 1.10, 0.42),
    ("inception_v4", 1.10, 0.42),
    ("densenet121", 1.10, 0.38),
    ("vgg16", 1.10, 0.30),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One case to compare policies on, in words: it is made where it is planned."""

    model: str
    machine: str
    link_gb_s: float
    policies: tuple[str, ...]
    budgets: int
    refine: int
    batch: int | None = None
    beside: tuple[Row, ...] = ()  # what rivals reached before


def main(arguments: Sequence[str] | None = None) -> None:
    """Print rows or tables, and the verdict."""
    given = _parser().parse_args(arguments)
    finish(given, CASE, lambda: measure(_asked(given), swept, given.processes), bars)


def finish(
    given: argparse.Namespace,
    names: Sequence[str],
    made: Callable[[], Iterator[Row]],
    remarks: Remarks = lambda _: iter(()),
) -> NoReturn:
    """Print rows as they are made, or tables of them; then the verdict, which is also the exit code."""
    found: list[Row] = []
    found += before(given)
    for row in made() if not given.recorded else shared.recorded(given.recorded):
        found.append(row)
        if given.json:
            print(shared.stamped(row), flush=True)
    if given.markdown:
        print("\n".join(tables.markdown(found, names, remarks)))
    elif not given.json:
        tables.print_tables(found, names)
    lines = [*tables.verdict(found, names), *remarks(found)]
    for line in lines:
        print(line, file=sys.stderr if given.json or given.markdown else sys.stdout)
    sys.exit(int(any("NOT" in line for line in lines) or any(row["faults"] for row in found)))


def measure(asked: Sequence[_Case], sweep: Callable[[_Case], Iterator[Row]], processes: int) -> Iterator[Row]:
    """The rows of each case, in order; with several processes a case's come when it is done."""
    if processes == 1:
        for one in asked:
            yield from sweep(one)
        return
    context = multiprocessing.get_context("spawn")
    # An interrupt is for this process, which ends the others.
    with context.Pool(processes, signal.signal, (signal.SIGINT, signal.SIG_IGN)) as pool:
        for found in pool.imap(partial(_listed, sweep), asked):
            yield from found


def bars(rows: Sequence[Row]) -> Iterator[str]:
    """What the design demands on the reference machine, where it was measured."""
    at = shared.by(rows, *CASE, "policy")
    for model, overhead, least in BARS:
        points = at.get((model, REFERENCE.name, _ELSEWHERE_GB_S, DEFAULT_POLICY))
        if points is None:
            continue
        best = shared.best_msr(points, overhead)
        told = "nothing" if best is None else f"{best:.1%}"
        reached = best is not None and best >= least
        yield f"{model} at EOR <= {overhead:.2f}: {'saves' if reached else 'NOT REACHED:'} {told}, of {least:.0%}"


def _listed(sweep: Callable[[_Case], Iterator[Row]], asked: _Case) -> list[Row]:
    return list(sweep(asked))


def swept(asked: Asked) -> Iterator[Row]:
    """All policies on one case."""
    network = find(asked.model)
    batch = network.batch if asked.batch is None else asked.batch
    graph = graph_of(asked.model, batch)
    labels = {"model": asked.model, "batch": batch, "operators": len(graph.operators)}
    case = shared.make_case([graph], machine(asked.machine), asked.link_gb_s, labels=labels)
    given = _mincut(network, batch, case) if MINCUT in asked.policies else iter(())
    policies = [name for name in asked.policies if name != MINCUT]
    yield from shared.sweep(
        case, policies, budgets=asked.budgets, refine=asked.refine, given=given, beside=asked.beside
    )


def _mincut(network: Network, batch: int, case: Case) -> Iterator[tuple[str, Plans, float]]:
    """What PyTorch itself would make again; not for steps that update buffers, since it makes again what read them.

    Nor for very large ones, where each minimum cut takes many seconds.
    """
    (workload,) = case.workloads
    (graph,) = workload.graphs
    updates = any(graph.tensors[t].role is Role.BUFFER for o in graph.operators for t in o.writes)
    if updates or len(graph.operators) > _MOST_OPERATORS:
        return
    from indb_tensile.bench.mincut import mincut_plans  # torch's compiler takes seconds to import

    for plan, planning_ms in mincut_plans(network, batch, graph, workload.latency_ns[0]):
        yield MINCUT, ((plan,),), planning_ms


def _asked(given: argparse.Namespace) -> list[Asked]:
    for name in given.models:
        find(name)
    for name in given.machines:
        machine(name)
    machines = given.machines or [REFERENCE.name]
    pairs = [(name, link) for name in machines for link in given.links or LINKS_GB_S]
    if not given.machines and not given.links:
        pairs += [("a100", _ELSEWHERE_GB_S), ("h200", _ELSEWHERE_GB_S)]
    return [asked_of(given, model, name, link) for model in given.models or NETWORKS for name, link in pairs]


def asked_of(given: argparse.Namespace, model: str, machine_name: str, link_gb_s: float, **more: int) -> Asked:
    """A case with the sweep that was asked for."""
    labels = {"model": model, "machine": machine_name, "link_gb_s": link_gb_s, **more}
    beside = [row for row in before(given) if all(row.get(name) == value for name, value in labels.items())]
    return Asked(
        model=model,
        machine=machine_name,
        link_gb_s=link_gb_s,
        policies=shared.known_policies(given.policies or ([DEFAULT_POLICY] if given.beside else []), MINCUT),
        budgets=given.budgets,
        refine=given.refine,
        beside=tuple(beside),
        **more,
    )


def before(given: argparse.Namespace) -> list[Row]:
    """What rivals reached when they were planned before."""
    return [row for row in shared.recorded(given.beside) if row["policy"] != DEFAULT_POLICY]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_sweep_options(parser)
    add_beside(parser)
    parser.add_argument("--machines", nargs="+", default=[], metavar="NAME", help=f"of {', '.join(MACHINES)}")
    return parser


def add_beside(parser: argparse.ArgumentParser) -> None:
    """The option of benchmarks whose cases are told apart by what stands in a row."""
    parser.add_argument("--beside", nargs="+", default=[], metavar="FILE", help="rows of rivals that --json printed")


def add_sweep_options(parser: argparse.ArgumentParser) -> None:
    """The options of every benchmark that sweeps budgets."""
    parser.add_argument("--models", nargs="+", default=[], metavar="NAME", help=f"of {', '.join(NETWORKS)}")
    parser.add_argument(
        "--policies", nargs="+", default=[], metavar="NAME", help=f"of {', '.join((*POLICIES, MINCUT))}"
    )
    parser.add_argument("--links", nargs="+", type=float, default=[], metavar="GB/S")
    parser.add_argument("--budgets", type=int, default=12, help="from the liveness peak to the floor")
    parser.add_argument("--refine", type=int, default=4, help="more budgets around each overhead of 2 and 10 %%")
    parser.add_argument("--processes", type=int, default=1, help="cases planned at once; planning times then suffer")
    parser.add_argument("--recorded", nargs="+", default=[], metavar="FILE", help="what --json wrote; plan nothing")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="one object a line")
    form.add_argument("--markdown", action="store_true", help="tables for a document")
    parser.set_defaults(beside=[])


if __name__ == "__main__":
    run(main)
