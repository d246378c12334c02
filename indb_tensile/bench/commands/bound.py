"""Compares the least peak of our plans within an overhead with the proven lower bound of every plan.

    python -m indb_tensile.bench bound [--models vgg16 …] [--documents FILE …] [--overheads 1.02 1.1]
        [--levels 1 2] [--machine a6000] [--link 25] [--halvings 8] [--work 1] [--program SECONDS] [--json]

For each network and overhead, budgets between the floor and the liveness peak are halved, and the least peak of a
plan within the overhead is taken. Beside it stands the lower bound of the peak of every plan that is not slower
(scheduler/judges/peak_bound.py). Both are also given as savings of the liveness peak (MSR); `points` is their
distance in percentage points. Better plans could gain at most this distance. Part of it may be only because the bound
is not tight. `--documents` adds graphs that `tensile capture` or the catalog wrote, and `--levels` U-Nets of so many
levels. With `--program`, a mixed-integer program in which large tensors move whole
(bench/harness/planning/whole_tensors.py) is solved for so many seconds: `program_bytes` is what it proves, a second
bound that shares only the order of operators with the first. The exit code is 1 if a plan breaks a rule, is below a
bound, or if a distance is above `--most` points.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from math import inf, nan
from pathlib import Path

from indb_tensile.bench.harness.networks.known_networks import NETWORKS, find, graph_of, small_unet
from indb_tensile.bench.harness.planning.whole_tensors import program_bound
from indb_tensile.bench.harness.processes.argument_types import whole
from indb_tensile.bench.harness.processes.process_exit import run
from indb_tensile.bench.harness.results import rows as shared
from indb_tensile.bench.harness.results.rows import PlanningCase, Row
from indb_tensile.errors import MissingError
from indb_tensile.scheduler.document import read_document
from indb_tensile.scheduler.graph import StepGraph
from indb_tensile.scheduler.judges.peak_bound import bound_bytes
from indb_tensile.scheduler.policies.policy import PlanOptions
from indb_tensile.scheduler.policies.tensile_plus import JointBudgetPlanner
from indb_tensile.scheduler.score import score
from indb_tensile.scheduler.timing.machines import MACHINES, REFERENCE, machine

SEVEN = ("vgg16", "inception_v3", "inception_v4", "resnet50", "densenet121", "gpt2", "bert")
_LINK_GB_S = 25.0
_MB = 1_000_000


def main(arguments: Sequence[str] | None = None) -> None:
    """Print one row for each network and overhead."""
    options = _parser().parse_args(arguments)
    failed = False
    for row in measure(options):
        print(shared.stamped(row) if options.json else _line(row), flush=True)
        above = options.most is not None and row["points"] > options.most
        least_bytes = max(row["bound_bytes"], row.get("program_bytes", 0))
        failed |= bool(row["faults"]) or row["plan_bytes"] < least_bytes or above
    sys.exit(int(failed))


def measure(options: argparse.Namespace) -> Iterator[Row]:
    """Yield a row for each network and overhead."""
    for name, graph in _graphs(options):
        labels = {"model": name, "operators": len(graph.operators)}
        case = shared.make_case([graph], machine(options.machine), options.link, labels=labels)
        for overhead in options.overheads:
            row = least_memory(case, overhead, halvings=options.halvings, work=options.work)
            yield row if options.program is None else {**row, **_program(case, overhead, options.program)}


def least_memory(case: PlanningCase, overhead: float, *, halvings: int, work: float = 1) -> Row:
    """Return the row of the least peak of a plan within this overhead, beside the bound."""
    (workload,) = case.workloads
    (graph,) = workload.graphs
    planner = JointBudgetPlanner(case.workloads, link=case.link, options=PlanOptions(work=work))
    (best,) = score(case.workloads, planner.plans(case.liveness_peak_bytes), case.link, against=case.baselines)
    low, high = case.floor_bytes, case.liveness_peak_bytes
    for _ in range(halvings):
        budget_bytes = (low + high) // 2
        plans = planner.plans(budget_bytes)
        (scored,) = score(case.workloads, plans, case.link, against=case.baselines)
        within = scored.eor <= overhead
        if within and scored.peak_bytes < best.peak_bytes:
            best = scored
        low, high = (low, budget_bytes) if within and scored.peak_bytes <= budget_bytes else (budget_bytes, high)
    start_ns = time.process_time_ns()
    least_bytes = bound_bytes(
        graph, workload.latency_ns[0], case.link, int(overhead * case.baselines[0].iteration_ns)
    )
    bounding_ms = (time.process_time_ns() - start_ns) / 1e6
    top_bytes = case.liveness_peak_bytes
    return {
        **case.labels,
        "overhead": overhead,
        "liveness_peak_bytes": top_bytes,
        "floor_bytes": case.floor_bytes,
        "plan_bytes": best.peak_bytes,
        "eor": round(best.eor, 6),
        "bound_bytes": least_bytes,
        "msr_plan": round(1 - best.peak_bytes / top_bytes, 6),
        "msr_bound": round(1 - least_bytes / top_bytes, 6),
        "points": round(100 * (best.peak_bytes - least_bytes) / top_bytes, 3),
        "bounding_ms": round(bounding_ms, 3),
        "faults": list(best.faults),
    }


def _program(case: PlanningCase, overhead: float, limit_s: float) -> Row:
    """Return the columns of the program of whole tensors."""
    (workload,) = case.workloads
    (graph,) = workload.graphs
    start_ns = time.process_time_ns()
    iteration_ns = int(overhead * case.baselines[0].iteration_ns)
    proven = program_bound(graph, workload.latency_ns[0], case.link, iteration_ns, limit_s=limit_s)
    return {
        "program_bytes": proven.least_bytes,
        "program_solved": proven.optimal,
        "program_events": proven.events,
        "program_values": proven.values,
        "program_ms": round((time.process_time_ns() - start_ns) / 1e6, 3),
    }


def _graphs(options: argparse.Namespace) -> Iterator[tuple[str, StepGraph]]:
    for name in options.models:
        find(name)
    names = options.models or (() if options.documents or options.levels else SEVEN)
    for name in names:
        yield name, graph_of(name)
    for levels in options.levels:
        yield f"unet of {levels}", small_unet(levels)
    for path in map(Path, options.documents):
        try:
            document = read_document(path.read_bytes())
        except FileNotFoundError:
            raise MissingError(f"there is no file {path}", hint="Give a file that `tensile capture` wrote.") from None
        yield document.name, document.graph


def _line(row: Row) -> str:
    program = ""
    if "program_bytes" in row:
        solved = "need" if row["program_solved"] else "need at least"
        program = f", whole tensors {solved} {row['program_bytes'] / _MB:,.1f} MB"
    return (
        f"{row['model']:<14} {row['operators']:>6} operators at EOR {row['overhead']:.2f}: "
        f"liveness {row['liveness_peak_bytes'] / _MB:,.0f} MB, plan {row['plan_bytes'] / _MB:,.0f} MB, "
        f"bound {row['bound_bytes'] / _MB:,.0f} MB{program}; "
        f"saves {row['msr_plan']:.1%} of at most {row['msr_bound']:.1%}, "
        f"{row['points']:.1f} points apart, {len(row['faults'])} faults"
    )


def _from(least: float) -> Callable[[str], float]:
    """Return a converter to a finite number of at least `least`."""

    def convert(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = nan
        if not least <= value < inf:
            raise argparse.ArgumentTypeError(f"{text!r} is no number from {least:g} on")
        return value

    return convert


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--models", nargs="+", default=[], metavar="NAME", help=f"of {', '.join(NETWORKS)}")
    parser.add_argument("--documents", nargs="+", default=[], metavar="FILE", help="captured graphs")
    parser.add_argument("--overheads", nargs="+", type=_from(1), default=[1.02], metavar="EOR")
    parser.add_argument("--machine", default=REFERENCE.name, metavar="NAME", help=f"of {', '.join(MACHINES)}")
    parser.add_argument("--link", type=float, default=_LINK_GB_S, metavar="GB/S")
    parser.add_argument("--halvings", type=whole(), default=8, help="budgets tried for each overhead")
    parser.add_argument("--work", type=_from(0.01), default=1.0, help="multiple of the usual work of a plan")
    parser.add_argument("--levels", nargs="+", type=whole(), default=[], help="U-Nets of so many levels, on 4 rows")
    parser.add_argument("--program", type=_from(1), default=None, metavar="SECONDS", help="also solve a program")
    parser.add_argument("--most", type=_from(0), default=None, help="points at most between plan and bound")
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    return parser


if __name__ == "__main__":
    run(main)
